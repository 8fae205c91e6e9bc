/* Tensor files: damaged headers one fault at a time, shards and their index, truncation in use. */

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <fcntl.h>
#include <sys/stat.h>
#include <sys/wait.h>

#include "engine/model/mapping.h"
#include "engine/model/tensor.h"
#include "t/unit/tiny_model.h"

#define NESTED "[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[["


/* 8 bytes of length, the header's text, then `data` zero bytes. */
static void write_file(const char *directory, const char *name, uint64_t length, const char *header,
                       size_t data)
{
    size_t size = strlen(header);
    unsigned char *file = calloc(1, 8 + size + data);

    assert_non_null(file);
    for (int i = 0; i < 8; i++) {
        file[i] = (unsigned char) (length >> 8 * i);
    }
    memcpy(file + 8, header, size);
    tiny_write(directory, name, file, 8 + size + data);
    free(file);
}


static void expect_failure(const char *directory, const char *message)
{
    moe_error_t error = { 0 };

    if (moe_tensors_open(directory, &error) != NULL) {
        fail_msg("opened, expected \"%s\"", message);
    }
    assert_true(error.code == MOE_BAD_MODEL || error.code == MOE_LIMIT);
    if (strstr(error.message, message) == NULL) {
        fail_msg("expected \"%s\" in \"%s\"", message, error.message);
    }
}


static void test_damaged_headers(void **state)
{
    static const struct {
        const char *header;
        size_t data;
        const char *message;
    } cases[] = {
        { "", 0, "model.safetensors: header length 0" },
        { "  ", 0, "model.safetensors: header" },
        { "hello", 0, "model.safetensors: header" },
        { "{\"a\"", 0, "model.safetensors: header" },
        { "[]", 0, "header: not a JSON object" },
        { "{} {}", 0, "model.safetensors: header" },
        { "{\"a\": " NESTED NESTED NESTED NESTED NESTED NESTED NESTED NESTED NESTED NESTED
          NESTED NESTED NESTED NESTED NESTED NESTED NESTED NESTED NESTED NESTED NESTED NESTED
          NESTED NESTED NESTED NESTED NESTED NESTED NESTED NESTED NESTED NESTED NESTED NESTED
          NESTED NESTED NESTED NESTED NESTED NESTED NESTED NESTED NESTED NESTED NESTED NESTED
          NESTED NESTED NESTED NESTED NESTED NESTED NESTED NESTED NESTED NESTED NESTED NESTED
          NESTED NESTED NESTED NESTED NESTED NESTED, 0, "depth" },
        { "{}", 0, "model.safetensors: no tensors" },
        { "{\"__metadata__\": {\"format\": \"pt\"}}", 0, "no tensors" },
        { "{\"a\": 1}", 0, "a: not an object" },
        { "{\"a\\u0000b\": {}}", 0, "header" },
        { "{\"\xff\": {}}", 0, "header" },
        { "{\"a\": {}}", 0, "a: dtype: missing" },
        { "{\"a\": {\"dtype\": 1, \"shape\": [], \"data_offsets\": [0, 4]}}", 4, "a: dtype" },
        { "{\"a\": {\"dtype\": \"F32\", \"data_offsets\": [0, 4]}}", 4, "a: shape: missing" },
        { "{\"a\": {\"dtype\": \"F32\", \"shape\": 1, \"data_offsets\": [0, 4]}}", 4, "a: shape" },
        { "{\"a\": {\"dtype\": \"F32\", \"shape\": [-1], \"data_offsets\": [0, 4]}}", 4,
          "a: shape: dimension 0" },
        { "{\"a\": {\"dtype\": \"F32\", \"shape\": [1, 1.0], \"data_offsets\": [0, 4]}}", 4,
          "a: shape: dimension 1" },
        { "{\"a\": {\"dtype\": \"F32\", \"shape\": [1,1,1,1,1,1,1,1,1], \"data_offsets\": [0, 4]}}",
          4, "a: shape: more than 8 dimensions" },
        { "{\"a\": {\"dtype\": \"F32\", \"shape\": [1099511627776, 1099511627776], "
          "\"data_offsets\": [0, 4]}}", 4, "a: shape: the number of elements overflows" },
        { "{\"a\": {\"dtype\": \"F32\", \"shape\": [4611686018427387904], "
          "\"data_offsets\": [0, 4]}}", 4, "a: shape: the number of bytes overflows" },
        { "{\"a\": {\"dtype\": \"F32\", \"shape\": [99999999999999999999], "
          "\"data_offsets\": [0, 4]}}", 4, "header: too big integer" },
        { "{\"a\": {\"dtype\": \"F32\", \"shape\": [1]}}", 4, "a: data_offsets: missing" },
        { "{\"a\": {\"dtype\": \"F32\", \"shape\": [1], \"data_offsets\": [0]}}", 4,
          "a: data_offsets" },
        { "{\"a\": {\"dtype\": \"F32\", \"shape\": [1], \"data_offsets\": [4, 0]}}", 4,
          "a: data_offsets" },
        { "{\"a\": {\"dtype\": \"F32\", \"shape\": [1], \"data_offsets\": [-4, 0]}}", 4,
          "a: data_offsets" },
        { "{\"a\": {\"dtype\": \"F32\", \"shape\": [1], \"data_offsets\": [0, 4]}}", 3,
          "a: data_offsets: end 4 lies beyond the file's 3 bytes" },
        { "{\"a\": {\"dtype\": \"F32\", \"shape\": [1], \"data_offsets\": [0, 4]}}", 5,
          "model.safetensors: the file is 1 bytes longer" },
        { "{\"a\": {\"dtype\": \"F32\", \"shape\": [1], \"data_offsets\": "
          "[9223372036854775804, 9223372036854775807]}}", 4, "a: data_offsets: end" },
        { "{\"a\": {\"dtype\": \"F32\", \"shape\": [2], \"data_offsets\": [0, 4]}}", 4,
          "a: data_offsets: 4 bytes, its shape needs 8" },
        { "{\"a\": {\"dtype\": \"F4\", \"shape\": [3], \"data_offsets\": [0, 1]}}", 1,
          "a: data_offsets: 1 bytes, its shape needs 2" },
        { "{\"a\": {\"dtype\": \"F32\", \"shape\": [1], \"data_offsets\": [4, 8]}}", 8,
          "a: data_offsets: leave a gap after the header" },
        { "{\"a\": {\"dtype\": \"F32\", \"shape\": [1], \"data_offsets\": [0, 4]}, "
          "\"b\": {\"dtype\": \"F32\", \"shape\": [1], \"data_offsets\": [6, 10]}}", 10,
          "b: data_offsets: leave a gap after a" },
        { "{\"b\": {\"dtype\": \"F32\", \"shape\": [2], \"data_offsets\": [2, 10]}, "
          "\"a\": {\"dtype\": \"F32\", \"shape\": [1], \"data_offsets\": [0, 4]}}", 10,
          "b: data_offsets: overlap with a" },
        { "{\"a\": {\"dtype\": \"F32\", \"shape\": [1], \"data_offsets\": [0, 4]}, "
          "\"b\": {\"dtype\": \"F32\", \"shape\": [1], \"data_offsets\": [0, 4]}}", 4, "overlap" },
        { "{\"a\": {\"dtype\": \"F32\", \"shape\": [1], \"data_offsets\": [0, 4]}, "
          "\"a\": {\"dtype\": \"F32\", \"shape\": [1], \"data_offsets\": [4, 8]}}", 8,
          "duplicate object key" },
    };
    char *directory = tiny_directory();

    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        write_file(directory, "model.safetensors", strlen(cases[i].header), cases[i].header,
                   cases[i].data);
        expect_failure(directory, cases[i].message);
    }
    tiny_directory_remove(directory);
}


static void test_header_length(void **state)
{
    static const char header[] =
        "{\"a\": {\"dtype\": \"F32\", \"shape\": [1], \"data_offsets\": [0, 4]}}";
    static const uint64_t lengths[] = {
        0, 1, sizeof(header) + 4, 100000001, 1ull << 32, 1ull << 63, UINT64_MAX
    };
    char *directory = tiny_directory(), path[512], message[64];

    for (size_t i = 0; i < sizeof(lengths) / sizeof(lengths[0]); i++) {
        write_file(directory, "model.safetensors", lengths[i], header, 4);
        snprintf(message, sizeof(message), "model.safetensors: header length %llu",
                 (unsigned long long) lengths[i]);
        expect_failure(directory, message);
    }
    /* Within a file that really is that long. */
    write_file(directory, "model.safetensors", 100000001, header, 4);
    snprintf(path, sizeof(path), "%s/model.safetensors", directory);
    assert_int_equal(truncate(path, 200000000), 0);
    expect_failure(directory, "model.safetensors: header length 100000001");

    write_file(directory, "model.safetensors", sizeof(header) - 2, header, 4);
    expect_failure(directory, "model.safetensors: header: ");
    tiny_write(directory, "model.safetensors", "\1\0\0", 3);
    expect_failure(directory, "model.safetensors: too short");
    tiny_write(directory, "model.safetensors", "", 0);
    expect_failure(directory, "model.safetensors: empty file");
    tiny_directory_remove(directory);
}


/* A file cut anywhere is refused, whatever byte is the last. */
static void test_truncation(void **state)
{
    static const char header[] =
        "{\"a\": {\"dtype\": \"F32\", \"shape\": [3], \"data_offsets\": [0, 12]},"
        " \"b\": {\"dtype\": \"BF16\", \"shape\": [1], \"data_offsets\": [12, 14]}}";
    char *directory = tiny_directory(), path[512];
    moe_tensors_t *tensors;
    moe_error_t error;

    snprintf(path, sizeof(path), "%s/model.safetensors", directory);
    write_file(directory, "model.safetensors", strlen(header), header, 14);
    tensors = moe_tensors_open(directory, &error);
    assert_non_null(tensors);
    assert_int_equal(moe_tensors_count(tensors), 2);
    assert_int_equal(moe_tensors_bytes(tensors), 14);
    moe_tensors_close(tensors);
    for (long size = (long) (8 + strlen(header) + 13); size >= 0; size--) {
        assert_int_equal(truncate(path, size), 0);
        expect_failure(directory, "model.safetensors");
    }
    tiny_directory_remove(directory);
}


static void test_take(void **state)
{
    static const char header[] =
        "{\"a\": {\"dtype\": \"F32\", \"shape\": [2, 3], \"data_offsets\": [0, 24]},"
        " \"a.b\": {\"dtype\": \"F8_E4M3\", \"shape\": [4], \"data_offsets\": [24, 28]},"
        " \"c\": {\"dtype\": \"X9\", \"shape\": [1000], \"data_offsets\": [28, 30]},"
        " \"d\": {\"dtype\": \"I64\", \"shape\": [], \"data_offsets\": [30, 38]},"
        " \"e\": {\"dtype\": \"F16\", \"shape\": [0], \"data_offsets\": [38, 38]}}";
    char *directory = tiny_directory();
    moe_tensors_t *tensors;
    moe_error_t error;

    write_file(directory, "model.safetensors", strlen(header), header, 38);
    tensors = moe_tensors_open(directory, &error);
    assert_non_null(tensors);
    assert_string_equal(moe_tensors_at(tensors, 1)->type, "F8_E4M3");
    assert_null(moe_tensors_take(tensors, &error, 1, (uint64_t[]) { 6 }, "a"));
    assert_string_equal(error.message, "model.safetensors: a: shape [2, 3], expected [6]");
    assert_null(moe_tensors_take(tensors, &error, 2, (uint64_t[]) { 3, 2 }, "a"));
    assert_string_equal(error.message, "model.safetensors: a: shape [2, 3], expected [3, 2]");
    assert_null(moe_tensors_take(tensors, &error, 1, (uint64_t[]) { 4 }, "a.%c", 'b'));
    assert_string_equal(error.message, "model.safetensors: a.b: dtype F8_E4M3 is not supported");
    assert_null(moe_tensors_take(tensors, &error, 1, (uint64_t[]) { 1000 }, "c"));
    assert_string_equal(error.message, "model.safetensors: c: dtype X9 is not supported");
    assert_null(moe_tensors_take(tensors, &error, 1, (uint64_t[]) { 4 }, "b"));
    assert_string_equal(error.message, "model.safetensors: b: missing");
    assert_non_null(moe_tensors_find(tensors, "a.b"));
    assert_null(moe_tensors_find(tensors, "a."));

    assert_int_equal(moe_tensors_check_left_over(tensors, &error), -1);
    assert_non_null(strstr(error.message, "a: not part of this model (5 such tensors)"));
    assert_non_null(moe_tensors_take(tensors, &error, 2, (uint64_t[]) { 2, 3 }, "a"));
    assert_int_equal(moe_tensors_check_left_over(tensors, &error), -1);
    assert_non_null(strstr(error.message, "a.b: not part of this model (4 such tensors)"));
    moe_tensors_ignore(tensors, "a.");
    moe_tensors_ignore(tensors, "c");
    moe_tensors_ignore(tensors, "d");
    moe_tensors_ignore(tensors, "zz");
    assert_non_null(moe_tensors_take(tensors, &error, 1, (uint64_t[]) { 0 }, "e"));
    assert_int_equal(moe_tensors_check_left_over(tensors, &error), 0);
    moe_tensors_close(tensors);
    tiny_directory_remove(directory);
}


/* The same model as one file, as unaligned file and as shards gives the same bytes. */
static void test_same_bytes(void **state)
{
    tiny_model_t options = tiny_model_defaults();
    tiny_files_t files = tiny_model_make(&options);
    char *directories[3] = { tiny_directory(), tiny_directory(), tiny_directory() };
    moe_tensors_t *sets[3];
    moe_error_t error;

    tiny_model_save(&files, directories[0]);
    tiny_write_safetensors(directories[1], "model.safetensors", files.header, files.data,
                           files.size, 1);
    tiny_model_save_sharded(&files, directories[2], 5);
    for (int s = 0; s < 3; s++) {
        sets[s] = moe_tensors_open(directories[s], &error);
        assert_non_null(sets[s]);
        assert_int_equal(moe_tensors_count(sets[s]), json_object_size(files.header));
        assert_int_equal(moe_tensors_bytes(sets[s]), files.size);
    }
    for (size_t i = 0; i < moe_tensors_count(sets[0]); i++) {
        const moe_tensor_t *first = moe_tensors_at(sets[0], i);

        for (int s = 1; s < 3; s++) {
            const moe_tensor_t *other = moe_tensors_take(sets[s], &error, first->n_dims,
                                                         first->shape, "%s", first->name);

            assert_non_null(other);
            assert_int_equal((uintptr_t) other->data % moe_dtype_alignment(other->dtype), 0);
            assert_int_equal(other->size, first->size);
            assert_memory_equal(other->data, first->data, first->size);
        }
    }
    for (int s = 0; s < 3; s++) {
        moe_tensors_close(sets[s]);
        tiny_directory_remove(directories[s]);
    }
    tiny_model_free(&files);
}


static void test_damaged_index(void **state)
{
    static const struct {
        const char *index, *message;
    } cases[] = {
        { "[]", "model.safetensors.index.json: not a JSON object" },
        { "{", "model.safetensors.index.json" },
        { "{}", "weight_map: missing" },
        { "{\"weight_map\": []}", "weight_map: missing or not an object" },
        { "{\"weight_map\": {}}", "weight_map: empty" },
        { "{\"weight_map\": {\"a\": 1}}", "weight_map: a: \"\" is not a plain file name" },
        { "{\"weight_map\": {\"a\": \"\"}}", "weight_map: a:" },
        { "{\"weight_map\": {\"a\": \"../x\"}}", "weight_map: a: \"../x\"" },
        { "{\"weight_map\": {\"a\": \"..\"}}", "weight_map: a: \"..\"" },
        { "{\"weight_map\": {\"a\": \"/etc/passwd\"}}", "weight_map: a: \"/etc/passwd\"" },
        { "{\"weight_map\": {\"a\": \"1\\u0000\"}}", "weight_map: a:" },
        { "{\"weight_map\": {\"a\": \"3\"}}", "/3: No such file" },
        { "{\"weight_map\": {\"a\": \"1\", \"b\": \"1\"}}", "1: b: missing" },
        { "{\"weight_map\": {\"a\": \"1\", \"b\": \"2\", \"c\": \"1\"}}", "1: c: missing" },
        { "{\"weight_map\": {\"a\": \"1\", \"b\": \"2\", \"c\": \"4\"}}", "a: also in" },
        { "{\"weight_map\": {\"a\": \"2\", \"b\": \"1\"}}", "2: a: missing" },
    };
    static const char good[] = "{\"weight_map\": {\"a\": \"1\", \"b\": \"2\"}}";
    static const char *const names[] = { "a", "b", "a" }, *const shards[] = { "1", "2", "4" };
    char *directory = tiny_directory();
    moe_tensors_t *tensors;
    moe_error_t error;

    expect_failure(directory, "neither model.safetensors nor model.safetensors.index.json");
    for (int i = 0; i < 3; i++) {
        json_t *header = json_pack("{s:{s:s, s:[i], s:[i, i]}}", names[i], "dtype", "F32", "shape",
                                   1, "data_offsets", 0, 4);

        tiny_write_safetensors(directory, shards[i], header, "\0\0\0", 4, 0);
        json_decref(header);
    }
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        tiny_write(directory, "model.safetensors.index.json", cases[i].index,
                   strlen(cases[i].index));
        expect_failure(directory, cases[i].message);
    }
    tiny_write(directory, "model.safetensors.index.json", good, strlen(good));
    tensors = moe_tensors_open(directory, &error);
    assert_non_null(tensors);
    moe_tensors_close(tensors);
    tiny_directory_remove(directory);
}


/* In a child: use a model whose file is cut under it. */
static void use_truncated(const char *directory, const char *path, int output)
{
    moe_error_t error;
    moe_tensors_t *tensors = moe_tensors_open(directory, &error);
    volatile unsigned char sum = 0;

    dup2(output, STDERR_FILENO);
    moe_mapping_handle_sigbus();
    if (tensors == NULL || truncate(path, 4096) != 0) {
        _exit(2);
    }
    for (size_t i = 0; i < moe_tensors_count(tensors); i++) {
        const moe_tensor_t *tensor = moe_tensors_at(tensors, i);

        for (size_t at = 0; at < tensor->size; at += 512) {
            sum += ((const unsigned char *) tensor->data)[at];
        }
    }
    _exit(3);
}


static void test_truncated_in_use(void **state)
{
    tiny_model_t options = tiny_model_defaults();
    tiny_files_t files = tiny_model_make(&options);
    char *directory = tiny_directory(), path[512], expected[600], line[600] = "";
    int output[2], status;
    pid_t child;

    tiny_model_save(&files, directory);
    snprintf(path, sizeof(path), "%s/model.safetensors", directory);
    snprintf(expected, sizeof(expected),
             "moe-engine: %s: truncated or unreadable while in use\n", path);
    assert_int_equal(pipe(output), 0);
    child = fork();
    assert_int_not_equal(child, -1);
    if (child == 0) {
        use_truncated(directory, path, output[1]);
    }
    close(output[1]);
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_true(WIFEXITED(status));
    assert_int_equal(WEXITSTATUS(status), 1);
    assert_true(read(output[0], line, sizeof(line) - 1) > 0);
    for (size_t got = strlen(line);;) {
        ssize_t n = read(output[0], line + got, sizeof(line) - 1 - got);

        if (n <= 0) {
            break;
        }
        got += (size_t) n;
    }
    close(output[0]);
    assert_string_equal(line, expected);
    tiny_directory_remove(directory);
    tiny_model_free(&files);
}


int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_damaged_headers),
        cmocka_unit_test(test_header_length),
        cmocka_unit_test(test_truncation),
        cmocka_unit_test(test_take),
        cmocka_unit_test(test_same_bytes),
        cmocka_unit_test(test_damaged_index),
        cmocka_unit_test(test_truncated_in_use),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
