/* The header of a safetensors file: whatever it says, a tensor that is accepted lies in the file and
 * is as large as its shape says. */

#include "engine/model/safetensors.h"
#include "t/fuzz/fuzz.h"


static void check_tensor(const moe_tensor_t *tensor, const moe_mapping_t *mapping)
{
    const unsigned char *data = tensor->data;
    size_t elements = 1;

    fuzz_check(tensor->n_dims <= MOE_TENSOR_DIMS);
    fuzz_check(data >= mapping->data && data <= mapping->data + mapping->size);
    fuzz_check(tensor->size <= (size_t) (mapping->data + mapping->size - data));
    for (unsigned i = 0; i < tensor->n_dims; i++) {
        fuzz_check(!__builtin_mul_overflow(elements, tensor->shape[i], &elements));
    }
    if (tensor->dtype) {
        fuzz_check(tensor->size == moe_dtype_bytes(tensor->dtype, elements));
    }
}


int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    moe_mapping_t mapping = { data, size };
    moe_tensor_list_t list = { 0 };
    moe_error_t error;

    if (moe_safetensors_read(&list, &mapping, "model.safetensors", 0, &error) == 0) {
        for (size_t i = 0; i < list.count; i++) {
            check_tensor(&list.entries[i].tensor, &mapping);
        }
    } else {
        fuzz_check(error.code == MOE_BAD_MODEL || error.code == MOE_LIMIT);
        fuzz_check(strlen(error.message) > 0);
    }
    moe_tensor_list_free(&list);
    return 0;
}
