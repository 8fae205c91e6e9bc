/* Formats of numbers: values of blocks, and numbers put into them. */

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "engine/core/half.h"
#include "engine/model/format.h"
#include "t/unit/tiny_model.h"


/* Blocks of byte[i] = 37 i + 11 with fields put over; values by gguf-py's dequantiser. */
static void test_golden_blocks(void **state)
{
    static const struct {
        moe_dtype_t dtype;
        struct {
            int at;
            uint16_t value;             /* f16; for MXFP4 a byte */
        } fields[2];
        double sum, moment;             /* of w[i], of i * w[i] */
        struct {
            int at;
            float value;
        } values[12];
    } rows[] = {
        { MOE_Q4_0, { { 0, 0x3800 } }, -10.5, -248.5,
          { { 0, -1.5f }, { 1, 1 }, { 15, -4 }, { 16, -1.5f }, { 31, 0 } } },
        { MOE_Q8_0, { { 0, 0x3800 } }, -88, -3952,
          { { 0, 42.5f }, { 1, 61 }, { 15, -64 }, { 16, -45.5f }, { 31, -24 } } },
        { MOE_Q4_K, { { 0, 0x3800 }, { 2, 0x3400 } }, 27220, 3759200,
          { { 0, 157.75f }, { 1, -12.75f }, { 15, 80.25f }, { 31, 80.25f }, { 32, 4 },
            { 64, 210.25f }, { 100, 47.5f }, { 128, 211.5f }, { 200, 69.25f }, { 255, 24.25f } } },
        { MOE_Q5_K, { { 0, 0x3800 }, { 2, 0x3400 } }, 58108, 7955616,
          { { 0, 405.75f }, { 1, -12.75f }, { 15, 80.25f }, { 31, 80.25f }, { 32, 56 },
            { 64, 210.25f }, { 100, 117.5f }, { 128, 523.5f }, { 200, 69.25f }, { 255, 54.25f } } },
        { MOE_Q6_K, { { 208, 0x3800 } }, 2306, 389904,
          { { 0, -715.5f }, { 1, 848 }, { 15, -159 }, { 16, -216 }, { 31, -48 }, { 32, 115.5f },
            { 64, -1520 }, { 100, 1261.5f }, { 128, -175.5f }, { 200, 544.5f }, { 255, -30 } } },
        { MOE_MXFP4, { { 0, 120 } }, 0.09765625, 2.39453125,
          { { 0, 0 }, { 1, 0.0234375f }, { 15, -0.01171875f }, { 16, 0.01171875f },
            { 31, 0.0234375f } } },
    };

    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        const size_t n = moe_dtype_block(rows[i].dtype);
        unsigned char block[256];
        float values[MOE_BLOCK_LIMIT];
        double sum = 0, moment = 0;

        for (int b = 0; b < 256; b++) {
            block[b] = (unsigned char) (37 * b + 11);
        }
        for (int f = 0; f < 2; f++) {
            if (rows[i].fields[f].value != 0) {
                memcpy(block + rows[i].fields[f].at, &rows[i].fields[f].value,
                       rows[i].dtype == MOE_MXFP4 ? 1 : 2);
            }
        }
        moe_widen(rows[i].dtype, block, n, values);
        for (size_t k = 0; k < n; k++) {
            sum += (double) values[k];
            moment += (double) k * (double) values[k];
        }
        for (size_t k = 0; k == 0 || (k < 12 && rows[i].values[k].at != 0); k++) {
            assert_true(values[rows[i].values[k].at] == rows[i].values[k].value);
        }
        assert_true(sum == rows[i].sum && moment == rows[i].moment);
    }
}


/* Q5_0 is in no list of golden blocks: its fifth bits one by one, and what E8M0 means at its
 * ends. */
static void test_other_blocks(void **state)
{
    unsigned char block[22] = { 0, 0x3c };         /* a scale of 1 */
    float values[32];

    for (int bit = 0; bit < 32; bit++) {
        memset(block + 2, 0, sizeof(block) - 2);
        block[2 + bit / 8] = (unsigned char) (1 << bit % 8);
        block[6 + bit % 16] = bit < 16 ? 5 : 5 << 4;
        moe_widen(MOE_Q5_0, block, 32, values);
        for (int i = 0; i < 32; i++) {
            assert_true(values[i] == (i == bit ? 5.0f : -16.0f));
        }
    }
    memset(block, 0x22, sizeof(block));
    block[0] = 0;
    moe_widen(MOE_MXFP4, block, 32, values);
    assert_true(values[0] == 0x1p-127f);
    block[0] = 255;
    moe_widen(MOE_MXFP4, block, 32, values);
    assert_true(isnan(values[0]));
}


/* There and back: the error that a format's step allows, and none for numbers that it has. */
static void test_narrow(void **state)
{
    static const struct {
        moe_dtype_t dtype;
        double most;                    /* relative error */
    } rows[] = {
        { MOE_F32, 0 }, { MOE_F16, 3e-4 }, { MOE_BF16, 2e-3 }, { MOE_Q8_0, 6e-3 },
        { MOE_Q6_K, 0.02 }, { MOE_Q5_K, 0.04 }, { MOE_Q5_0, 0.05 },
        { MOE_Q4_K, 0.08 }, { MOE_Q4_0, 0.1 }, { MOE_MXFP4, 0.15 },
    };
    float values[1024], widened[1024], again[1024];
    _Alignas(4) unsigned char data[4096];
    tiny_files_t random = { .random = 5 };

    for (size_t i = 0; i < 1024; i++) {
        values[i] = (tiny_random(&random) + tiny_random(&random) + tiny_random(&random)) / 50;
    }
    for (size_t i = 0; i < 8; i++) {
        values[512 + i] = 0x1p-20f * (float) i;         /* f16's subnormal numbers */
    }
    memset(values + 256, 0, 256 * sizeof(float));
    for (size_t r = 0; r < sizeof(rows) / sizeof(rows[0]); r++) {
        double error = 0, norm = 0;

        moe_narrow(rows[r].dtype, values, 1024, data);
        moe_widen(rows[r].dtype, data, 1024, widened);
        for (size_t i = 0; i < 1024; i++) {
            error += pow((double) values[i] - (double) widened[i], 2);
            norm += pow((double) values[i], 2);
        }
        error = sqrt(error / norm);
        if (!(error <= rows[r].most && error >= rows[r].most / 4)) {
            fail_msg("format %d: error %g", (int) rows[r].dtype, error);
        }
        if (moe_dtype_block(rows[r].dtype) == 1) {
            moe_narrow(rows[r].dtype, widened, 1024, data);
            moe_widen(rows[r].dtype, data, 1024, again);
            assert_memory_equal(again, widened, sizeof(again));
        }
    }
    assert_int_equal(f16_from_f32(65504), 0x7bff);
    assert_int_equal(f16_from_f32(-65520), 0xfc00);
    assert_int_equal(f16_from_f32(0x1p-24f), 1);
    assert_int_equal(f16_from_f32(0x1p-25f), 0);
    assert_int_equal(f16_from_f32(1.0f + 0x1p-11f), 0x3c00);
    assert_int_equal(f16_from_f32(1.0f + 0x1.8p-10f), 0x3c02);
}


int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_golden_blocks),
        cmocka_unit_test(test_other_blocks),
        cmocka_unit_test(test_narrow),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
