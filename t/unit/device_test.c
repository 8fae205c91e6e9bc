/* The CPU device: packing, products over stacks and groups, rows to slots and back, attention in
 * waves; the same bits with any number of threads. */

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "engine/device/device.h"
#include "t/unit/tiny_model.h"

typedef struct {
    moe_pool_t *pool;
    moe_device_t *device;
    const moe_device_ops_t *ops;
} fixture_t;

static tiny_files_t numbers = {.random = 11};


static fixture_t open_device(unsigned threads)
{
    fixture_t f;
    moe_error_t error;

    f.pool = moe_pool_create(threads, &error);
    f.device = f.pool ? moe_device_cpu(f.pool, &error) : NULL;
    assert_non_null(f.device);
    f.ops = f.device->ops;
    return f;
}


static void close_device(fixture_t *f)
{
    f->ops->free(f->device);
    moe_pool_free(f->pool);
}


static float *allocate(fixture_t *f, size_t n)
{
    moe_error_t error;
    float *memory = f->ops->allocate(f->device, n * sizeof(float), &error);

    assert_non_null(memory);
    return memory;
}


static float *random_floats(fixture_t *f, size_t n)
{
    float *values = allocate(f, n);

    for (size_t i = 0; i < n; i++) {
        values[i] = tiny_random(&numbers);
    }
    return values;
}


/* One chain of fused multiply-adds that begins with the bias: what every product must give. */
static float dot(float bias, const float *x, const float *w, size_t w_step, size_t n)
{
    float sum = bias;

    for (size_t i = 0; i < n; i++) {
        sum = fmaf(x[i], w[i * w_step], sum);
    }
    return sum;
}


/* A stack of transposed slices of one matrix, each with its own columns of x and y. */
static void test_stack(void **state)
{
    enum { COUNT = 3, ROWS = 21, COLUMNS = 10, N = 200 };
    fixture_t f = open_device(2);
    const float *w = random_floats(&f, COUNT * COLUMNS * ROWS);
    const float *x = random_floats(&f, N * COUNT * COLUMNS);
    float *y = allocate(&f, N * COUNT * ROWS);
    moe_source_t sources[COUNT];
    moe_matrix_t *matrix;
    moe_linear_t job;
    moe_error_t error;

    for (size_t i = 0; i < COUNT; i++) {
        sources[i] = (moe_source_t) {
            .data = w + i * COLUMNS * ROWS, .dtype = MOE_F32, .row_stride = 1,
            .column_stride = ROWS
        };
    }
    matrix = f.ops->pack(f.device, sources, COUNT, ROWS, COLUMNS, &error);
    job = (moe_linear_t) {matrix, x, COUNT * COLUMNS, COLUMNS, y, COUNT * ROWS, ROWS};
    f.ops->linear(f.device, &job, 1, N);
    for (size_t n = 0; n < N; n++) {
        for (size_t i = 0; i < COUNT; i++) {
            for (size_t r = 0; r < ROWS; r++) {
                assert_true(y[(n * COUNT + i) * ROWS + r]
                            == dot(0, x + (n * COUNT + i) * COLUMNS, w + i * COLUMNS * ROWS + r,
                                   ROWS, COLUMNS));
            }
        }
    }
    close_device(&f);
}


/* Sources of different types become f32. */
static void test_mixed_types(void **state)
{
    const uint16_t half[2] = {0x3c00, 0xc000}, brain[2] = {0x3f80, 0x4040};
    const float single[2] = {0.1f, 0.2f}, expected[3][2] = {{1, -2}, {1, 3}, {0.1f, 0.2f}};
    const moe_source_t sources[3] = {
        {half, MOE_F16, 2, 1, NULL, NULL, 0}, {brain, MOE_BF16, 2, 1, NULL, NULL, 0},
        {single, MOE_F32, 2, 1, NULL, NULL, 0}
    };
    fixture_t f = open_device(1);
    float *x = allocate(&f, 2), *y = allocate(&f, 3);
    moe_error_t error;
    moe_matrix_t *matrix = f.ops->pack(f.device, sources, 3, 1, 2, &error);
    const moe_linear_t job = {matrix, x, 2, 0, y, 3, 1};

    for (size_t c = 0; c < 2; c++) {
        x[c] = 1;
        x[1 - c] = 0;
        f.ops->linear(f.device, &job, 1, 1);
        for (size_t i = 0; i < 3; i++) {
            assert_true(y[i] == expected[i][c]);
        }
    }
    close_device(&f);
}


/* Rows whose halves of a head are stored in pairs, in all ways of packing. */
static void test_paired_rows(void **state)
{
    enum { HEAD = 20, ROWS = 2 * HEAD, COLUMNS = 32 };
    static const moe_dtype_t types[] = {MOE_F32, MOE_BF16, MOE_Q8_0};
    float stored[ROWS * COLUMNS] = {0}, one[COLUMNS] = {1};
    _Alignas(4) unsigned char data[3][sizeof(stored)];
    fixture_t f = open_device(1);
    float *y = allocate(&f, 3 * ROWS);
    moe_source_t sources[3];
    moe_error_t error;

    /* Row r, which is about the number r, stands where pairs put it. */
    for (uint32_t r = 0; r < ROWS; r++) {
        const uint32_t within = r % HEAD, half = within / (HEAD / 2);
        float *row = stored + (r - within + 2 * (within % (HEAD / 2)) + half) * COLUMNS;

        row[0] = (float) r;
        row[1] = 127;                   /* Q8_0's scale is 1 */
    }
    for (uint32_t i = 0; i < 3; i++) {
        moe_narrow(types[i], stored, ROWS * COLUMNS, data[i]);
        sources[i] = (moe_source_t) {
            .data = data[i], .dtype = types[i], .row_stride = COLUMNS, .column_stride = 1,
            .paired = HEAD
        };
    }
    for (uint32_t first = 0; first < 3; first++) {
        for (uint32_t count = 1; count <= 3 - first; count++) {
            moe_matrix_t *matrix = f.ops->pack(f.device, sources + first, count, ROWS, COLUMNS,
                                               &error);
            const moe_linear_t job = {matrix, one, COLUMNS, 0, y, count * ROWS, ROWS};

            f.ops->linear(f.device, &job, 1, 1);
            for (uint32_t r = 0; r < count * ROWS; r++) {
                assert_true(y[r] == (float) (r % ROWS));
            }
        }
    }
    close_device(&f);
}


/* Two stacks over groups of all sizes, empty ones included; of one some matrices have biases. */
static void test_grouped(void **state)
{
    enum { COUNT = 6, ROWS = 90, COLUMNS = 33, N = 250 };
    const uint32_t offsets[COUNT + 1] = {0, 0, 1, 14, 14, 250, 250};
    fixture_t f = open_device(2);
    const float *w = random_floats(&f, 2 * COUNT * ROWS * COLUMNS);
    const float *x = random_floats(&f, N * COLUMNS), *biases = random_floats(&f, COUNT * ROWS);
    float *y = allocate(&f, 2 * N * ROWS);
    moe_source_t sources[2 * COUNT];
    moe_linear_t jobs[2];
    moe_error_t error;

    for (size_t i = 0; i < 2 * COUNT; i++) {
        sources[i] = (moe_source_t) {
            .data = w + i * ROWS * COLUMNS, .dtype = MOE_F32, .row_stride = COLUMNS,
            .column_stride = 1, .bias = i < COUNT && i % 2 == 0 ? biases + i * ROWS : NULL
        };
    }
    for (size_t j = 0; j < 2; j++) {
        jobs[j] = (moe_linear_t) {
            f.ops->pack(f.device, sources + j * COUNT, COUNT, ROWS, COLUMNS, &error), x, COLUMNS, 0,
            y + j * N * ROWS, ROWS, 0
        };
    }
    f.ops->grouped(f.device, jobs, 2, offsets);
    for (size_t i = 0; i < 2 * COUNT; i++) {
        for (size_t n = offsets[i % COUNT]; n < offsets[i % COUNT + 1]; n++) {
            for (size_t r = 0; r < ROWS; r++) {
                const float bias = sources[i].bias ? sources[i].bias[r] : 0;

                assert_true(y[(i / COUNT * N + n) * ROWS + r]
                            == dot(bias, x + n * COLUMNS, w + (i * ROWS + r) * COLUMNS, 1,
                                   COLUMNS));
            }
        }
    }
    close_device(&f);
}


#define ENTRY(row, slot) ((uint32_t) (row) << MOE_ENTRY_SLOT_BITS | (slot))

/* Rank 1 of 2 with two slots each; expert 0 is on both.  What arrives is grouped by slot, rows of
 * one slot in the order of ranks and of their lists. */
static void test_dispatch(void **state)
{
    enum { ROWS = 3, TOP_K = 2, ENTRIES = ROWS * TOP_K, WORDS = 16 };
    const uint32_t replicas[4] = {0, 2, 1, 3}, replica_offsets[4] = {0, 2, 3, 4};
    const uint32_t ids[ENTRIES] = {0, 1, 0, 2, 1, 0}, places[ENTRIES] = {1, 12, 13, 5, 14, 2};
    const uint32_t to_other[] = {3, 3, ENTRY(0, 1), ENTRY(1, 0), ENTRY(2, 1)};
    const uint32_t to_self[] = {0, 3, ENTRY(0, 0), ENTRY(1, 1), ENTRY(2, 0)};
    const uint32_t from_other[] = {2, 3, ENTRY(0, 1), ENTRY(1, 0), ENTRY(1, 1)};
    const uint32_t arrived[2][3] = {{3, 0, 4}, {1, 5, 2}};
    const uint32_t arrived_rows[2][3] = {{0, 1, 1}, {0, 1, 2}};
    const uint32_t slot_offsets[3] = {0, 3, 6}, result_offsets[3] = {0, 3, 3}, sent[3] = {0, 1, 2};
    const uint64_t expected_counts[3] = {13, 12, 11};
    uint64_t counts[3] = {10, 10, 10};
    uint32_t send[2 * WORDS], receive[2 * WORDS], memory[100] = {0};
    const moe_dispatch_t d = {
        .rank = 1, .ranks = 2, .slots = 2, .experts = 3, .top_k = TOP_K, .replicas = replicas,
        .replica_offsets = replica_offsets, .turns = memory, .counts = counts, .rows = ROWS,
        .entries = ENTRIES, .part_bytes = WORDS * sizeof(uint32_t), .send = (char *) send,
        .receive = (char *) receive, .sent = memory + 3, .arrived_rows = memory + 10,
        .arrived_places = memory + 30, .slot_offsets = memory + 50, .places = memory + 60,
        .own = memory + 70, .first_result = 2 * ENTRIES, .result_offsets = memory + 80,
    };
    fixture_t f = open_device(1);

    f.ops->plan_dispatch(f.device, &d, ids, ROWS);
    assert_memory_equal(send, to_other, sizeof(to_other));
    assert_memory_equal(send + WORDS, to_self, sizeof(to_self));
    assert_memory_equal(d.sent, sent, sizeof(sent));
    assert_memory_equal(d.result_offsets, result_offsets, sizeof(result_offsets));
    assert_memory_equal(counts, expected_counts, sizeof(counts));

    memcpy(receive, from_other, sizeof(from_other));
    f.ops->plan_arrival(f.device, &d);
    assert_memory_equal(d.slot_offsets, slot_offsets, sizeof(slot_offsets));
    for (uint32_t r = 0; r < 2; r++) {
        assert_memory_equal(d.arrived_places + r * ENTRIES, arrived[r], sizeof(arrived[r]));
        assert_memory_equal(d.arrived_rows + r * ENTRIES, arrived_rows[r], sizeof(arrived_rows[r]));
    }
    assert_memory_equal(d.places, places, sizeof(places));
    close_device(&f);
}


/* Rows by index on both sides, as many as the device says. */
static void test_convert(void **state)
{
    enum { N = 5, SIZE = 3 };
    const uint32_t from[N] = {1, 1, 0, 2, 2}, to[N] = {4, 0, 1, 3, 2}, count = 4;
    fixture_t f = open_device(1);
    float *x = random_floats(&f, 3 * SIZE), *y = allocate(&f, N * SIZE);
    const moe_conversion_t copy = {
        .size = SIZE, .from = x, .from_index = from, .to = y, .to_index = to
    };

    f.ops->convert(f.device, &copy, N, &count);
    for (size_t i = 0; i < count; i++) {
        assert_memory_equal(y + to[i] * SIZE, x + from[i] * SIZE, SIZE * sizeof(float));
    }
    assert_true(y[to[4] * SIZE] == 0);
    close_device(&f);
}


/* More rows than there is room for parts at a time: each row as when it is alone. */
static void test_attention_waves(void **state)
{
    enum { N = 150, HEADS = 20, LATENT = 16, ROPE = 4, BLOCKS = 60, ROW = 32 };
    const moe_attention_t attention = {
        .heads = HEADS, .latent = LATENT, .rope = ROPE, .scale = 0.5f
    };
    const size_t y_row = HEADS * LATENT, query_row = HEADS * (LATENT + ROPE);
    uint32_t table[BLOCKS], positions[N], sequences[N] = {0};
    float *first = NULL;

    numbers.random = 11;
    for (uint32_t b = 0; b < BLOCKS; b++) {
        table[b] = (b * 7 + 3) % BLOCKS;
    }
    for (uint32_t i = 0; i < N; i++) {
        positions[i] = i * 37 % (BLOCKS * 16);
    }
    for (unsigned threads = 1; threads <= 3; threads++) {
        fixture_t f = open_device(threads);
        const moe_rows_t all = {N, NULL, positions, sequences, table, BLOCKS};
        const moe_kv_t cache = {
            .rows = random_floats(&f, BLOCKS * 16 * ROW), .type = MOE_KV_F32,
            .block_stride = 16 * ROW * sizeof(float), .row_stride = ROW * sizeof(float),
            .block_tokens = 16
        };
        const float *query = random_floats(&f, N * query_row);
        float *y = allocate(&f, N * y_row), *alone = allocate(&f, y_row);
        moe_error_t error;

        assert_int_equal(
            f.ops->reserve_attention(f.device, &attention, BLOCKS * 16, &error), 0);
        f.ops->attend(f.device, &attention, &all, &cache, query, y);
        for (uint32_t i = 0; i < N; i += 7) {
            const moe_rows_t one = {1, NULL, positions + i, sequences, table, BLOCKS};

            f.ops->attend(f.device, &attention, &one, &cache, query + i * query_row, alone);
            assert_memory_equal(y + i * y_row, alone, y_row * sizeof(float));
        }
        numbers.random = 11;            /* the same numbers for the next device */
        first = first ? first : malloc(N * y_row * sizeof(float));
        if (threads == 1) {
            memcpy(first, y, N * y_row * sizeof(float));
        }
        assert_memory_equal(y, first, N * y_row * sizeof(float));
        close_device(&f);
    }
    free(first);
}


/* A row sees as much as its window has: what lies before is not even read. */
static void test_windows(void **state)
{
    enum { HEADS = 6, HEAD = 16, BLOCKS = 60, ROW = 2 * 2 * HEAD, LAST = BLOCKS * 16 - 3 };
    static const uint32_t windows[] = {1, 16, 17, 100, 255, 256, 257, 600, LAST, LAST + 1, UINT32_MAX};
    const uint32_t position = LAST, sequence = 0;
    uint32_t table[BLOCKS];
    fixture_t f = open_device(2);
    const moe_rows_t row = {1, NULL, &position, &sequence, table, BLOCKS};
    const float *query = random_floats(&f, HEADS * HEAD);
    float *rows = random_floats(&f, BLOCKS * 16 * ROW), *y = allocate(&f, HEADS * HEAD);
    float *whole = allocate(&f, HEADS * HEAD), *poisoned = allocate(&f, BLOCKS * 16 * ROW);
    moe_attention_t attention = {
        .heads = HEADS, .latent = HEAD, .rope = HEAD, .scale = 0.5f, .groups = 2, .apart = 1
    };
    moe_kv_t cache = {
        .rows = rows, .type = MOE_KV_F32, .block_stride = 16 * ROW * sizeof(float),
        .row_stride = ROW * sizeof(float), .block_tokens = 16
    };
    moe_error_t error;

    for (uint32_t b = 0; b < BLOCKS; b++) {
        table[b] = (b * 7 + 3) % BLOCKS;
    }
    assert_int_equal(f.ops->reserve_attention(f.device, &attention, BLOCKS * 16, &error), 0);
    f.ops->attend(f.device, &attention, &row, &cache, query, whole);
    for (size_t w = 0; w < sizeof(windows) / sizeof(windows[0]); w++) {
        attention.window = windows[w];
        cache.rows = rows;
        f.ops->attend(f.device, &attention, &row, &cache, query, y);
        assert_true((windows[w] > LAST)
                    == (memcmp(y, whole, HEADS * HEAD * sizeof(float)) == 0));
        for (uint32_t p = 0; p < BLOCKS * 16; p++) {
            const size_t at = ((size_t) table[p / 16] * 16 + p % 16) * ROW;
            const int seen = p <= LAST && LAST - p < windows[w];

            for (size_t i = 0; i < ROW; i++) {
                poisoned[at + i] = seen ? rows[at + i] : NAN;
            }
        }
        cache.rows = poisoned;
        f.ops->attend(f.device, &attention, &row, &cache, query, whole);
        assert_memory_equal(y, whole, HEADS * HEAD * sizeof(float));
        cache.rows = rows;
        attention.window = 0;
        f.ops->attend(f.device, &attention, &row, &cache, query, whole);
    }
    close_device(&f);
}


static void test_memory(void **state)
{
    fixture_t f = open_device(1);
    moe_error_t error;
    const size_t sizes[] = {0, 1, 5000, 4u << 20, (9u << 20) + 1};

    for (size_t i = 0; i < 5; i++) {
        unsigned char *memory = f.ops->allocate(f.device, sizes[i], &error);

        assert_non_null(memory);
        assert_int_equal((uintptr_t) memory % 64, 0);
        for (size_t k = 0; k < sizes[i]; k += 4096) {
            assert_int_equal(memory[k], 0);
        }
        if (sizes[i] > 0) {
            memory[sizes[i] - 1] = 1;
        }
    }
    assert_null(f.ops->allocate(f.device, SIZE_MAX, &error));
    assert_int_equal(error.code, MOE_LIMIT);
    assert_null(f.ops->allocate(f.device, SIZE_MAX / 4, &error));
    assert_int_equal(error.code, MOE_LIMIT);
    close_device(&f);
}


int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_stack),
        cmocka_unit_test(test_mixed_types),
        cmocka_unit_test(test_paired_rows),
        cmocka_unit_test(test_grouped),
        cmocka_unit_test(test_dispatch),
        cmocka_unit_test(test_convert),
        cmocka_unit_test(test_attention_waves),
        cmocka_unit_test(test_windows),
        cmocka_unit_test(test_memory),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
