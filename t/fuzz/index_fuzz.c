/* model.safetensors.index.json over two shards that exist.  A byte string, NUL, and a second one
 * replace the index and the header of the second shard. */

#include <endian.h>

#include "engine/model/tensor.h"
#include "t/fuzz/fuzz.h"

#define SHARD "{\"a\":{\"dtype\":\"F32\",\"shape\":[2,2],\"data_offsets\":[0,16]}}"
#define SECOND "{\"b\":{\"dtype\":\"BF16\",\"shape\":[8],\"data_offsets\":[0,16]}}"


/* A header of any text in front of 16 bytes of data. */
static void write_shard(const char *name, const char *header, size_t size)
{
    char file[4096 + 24] = { 0 };
    uint64_t length = htole64(size);

    if (size > 4096) {
        return;
    }
    memcpy(file, &length, sizeof(length));
    memcpy(file + sizeof(length), header, size);
    fuzz_write(name, file, sizeof(length) + size + 16);
}


int LLVMFuzzerInitialize(int *argc, char ***argv)
{
    write_shard("model-1.safetensors", SHARD, strlen(SHARD));
    return 0;
}


int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    fuzz_input_t input = { (const char *) data, size }, index = fuzz_part(&input);
    moe_tensors_t *tensors;
    moe_error_t error;

    fuzz_write("model.safetensors.index.json", index.data, index.size);
    write_shard("model-2.safetensors", input.size ? input.data : SECOND,
                input.size ? input.size : strlen(SECOND));
    tensors = moe_tensors_open(fuzz_directory(), &error);
    if (tensors == NULL) {
        fuzz_check(error.code == MOE_BAD_MODEL || error.code == MOE_LIMIT);
        return 0;
    }
    for (size_t i = 0; i < moe_tensors_count(tensors); i++) {
        const moe_tensor_t *tensor = moe_tensors_at(tensors, i);

        fuzz_check(tensor->size <= 16);
        fuzz_check(moe_tensors_find(tensors, tensor->name) == tensor);
    }
    moe_tensors_close(tensors);
    return 0;
}
