/* A client's messages and, after a NUL each, its tools and template arguments, through the demo
 * model's template: rendering ends, and an error says why. */

#include "engine/text/chat.h"
#include "t/fuzz/fuzz.h"

static moe_chat_t *chat;


int LLVMFuzzerInitialize(int *argc, char ***argv)
{
    moe_error_t error;

    chat = moe_chat_load(FUZZ_MODEL, NULL, &error);
    fuzz_check(chat != NULL);
    return 0;
}


int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    fuzz_input_t input = { (const char *) data, size };
    uint8_t flags = fuzz_byte(&input);
    fuzz_input_t messages = fuzz_part(&input), tools = fuzz_part(&input);
    moe_chat_request_t request = {
        .messages = { messages.data, messages.size }, .tools = { tools.data, tools.size },
        .arguments = { input.data, input.size },
        .add_generation_prompt = flags & 1, .continue_final = flags >> 1 & 1
    };
    moe_text_t out = { 0 };
    moe_error_t error;

    if (moe_chat_render(chat, &request, &out, &error) == -1) {
        fuzz_check(error.code == MOE_INVALID || error.code == MOE_LIMIT);
        fuzz_check(strlen(error.message) > 0);
    }
    moe_text_free(&out);
    return 0;
}
