/*
 * A GGUF file: whatever its header says, a tensor that is accepted lies in the file and is as large
 * as its shape says; and the model, the tokenizer and the template of such a file are either
 * refused or hold what they promise.
 */

#include "engine/model/gguf.h"
#include "engine/model/model.h"
#include "engine/text/gguf_text.h"
#include "t/fuzz/fuzz.h"

#define TEXT "ab aab  the 12\n<s>\xc3\xa9\xe4\xb8\xad"


static void check_tensor(const moe_tensor_t *tensor, const moe_mapping_t *mapping)
{
    const unsigned char *data = tensor->data;
    float values[MOE_BLOCK_LIMIT];
    size_t elements = 1;

    fuzz_check(tensor->n_dims >= 1 && tensor->n_dims <= MOE_TENSOR_DIMS);
    fuzz_check(data >= mapping->data && data <= mapping->data + mapping->size);
    fuzz_check(tensor->size <= (size_t) (mapping->data + mapping->size - data));
    for (unsigned i = 0; i < tensor->n_dims; i++) {
        fuzz_check(!__builtin_mul_overflow(elements, tensor->shape[i], &elements));
    }
    if (tensor->dtype) {
        const size_t block = moe_dtype_block(tensor->dtype);

        fuzz_check(tensor->shape[tensor->n_dims - 1] % block == 0);
        fuzz_check(tensor->size == moe_dtype_bytes(tensor->dtype, elements));
        if ((uintptr_t) data % moe_dtype_alignment(tensor->dtype) == 0) {
            moe_widen(tensor->dtype, data, block, values);
            moe_widen(tensor->dtype, data + tensor->size - moe_dtype_bytes(tensor->dtype, block),
                      block, values);
        }
    }
}


static void check_tokenizer(const moe_tokenizer_t *tokenizer)
{
    moe_text_t text = { 0 };
    moe_ids_t ids = { 0 };
    moe_error_t error;
    size_t size;

    for (uint32_t id = 0; id < moe_tokenizer_size(tokenizer); id++) {
        moe_tokenizer_piece(tokenizer, id, &size);
    }
    fuzz_check(moe_text_append(&text, TEXT, strlen(TEXT), 1, &error) == 0);
    if (moe_tokenizer_encode(tokenizer, &text, MOE_ENCODE_POST_PROCESS, 0, &ids, &error) == 0) {
        for (size_t i = 0; i < ids.count; i++) {
            fuzz_check(ids.ids[i] < moe_tokenizer_size(tokenizer));
        }
    }
    moe_ids_free(&ids);
    moe_text_free(&text);
}


static void check_texts(const json_t *metadata)
{
    moe_error_t error;
    moe_tokenizer_t *tokenizer = moe_gguf_tokenizer(metadata, "x.gguf", &error);
    moe_chat_t *chat = moe_gguf_chat(metadata, "x.gguf", NULL, &error);

    if (tokenizer != NULL) {
        check_tokenizer(tokenizer);
        moe_tokenizer_free(tokenizer);
    }
    if (chat != NULL) {
        moe_chat_free(chat);
    }
}


static void check_model(const uint8_t *data, size_t size)
{
    char path[128];
    moe_error_t error;
    moe_model_t *model;

    fuzz_write("model.gguf", data, size);
    snprintf(path, sizeof(path), "%s/model.gguf", fuzz_directory());
    model = moe_model_open(path, &error);
    if (model == NULL) {
        fuzz_check(error.code == MOE_BAD_MODEL || error.code == MOE_LIMIT);
        return;
    }
    fuzz_check(model->hidden && model->vocabulary && model->n_layers && model->context);
    for (uint32_t i = 0; i < model->n_eos_ids; i++) {
        fuzz_check(model->eos_ids[i] < model->vocabulary);
    }
    moe_model_close(model);
}


int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    moe_mapping_t mapping = { data, size };
    moe_tensor_list_t list = { 0 };
    json_t *metadata;
    moe_error_t error;

    if (moe_gguf_read(&list, &mapping, "x.gguf", 0, &metadata, &error) == 0) {
        for (size_t i = 0; i < list.count; i++) {
            check_tensor(&list.entries[i].tensor, &mapping);
        }
        check_texts(metadata);
        check_model(data, size);
    } else {
        fuzz_check(error.code == MOE_BAD_MODEL || error.code == MOE_LIMIT);
        fuzz_check(strlen(error.message) > 0);
    }
    json_decref(metadata);
    moe_tensor_list_free(&list);
    return 0;
}
