/* Chat formats: the demo model's golden prompts, and what a request may and may not do. */

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "engine/text/chat.h"

#define DEMO "conf/models/nginx-directives-moe"


static moe_chat_t *load(const char *directory, const char *override)
{
    moe_error_t error = { 0 };
    moe_chat_t *chat = moe_chat_load(directory, override, &error);

    if (chat == NULL) {
        fail_msg("%s", error.message);
    }
    return chat;
}


static void golden(void **state)
{
    json_t *file = json_load_file("t/golden/golden.json", JSON_ALLOW_NUL, NULL);
    const json_t *items = json_object_get(file, "items");
    moe_chat_t *chat = load(DEMO, NULL);
    int rendered = 0;

    for (size_t i = 0; i < json_array_size(items); i++) {
        const json_t *item = json_array_get(items, i), *text = json_object_get(item, "text");
        char *messages = json_dumps(json_object_get(item, "messages"), 0);
        moe_text_t out = { 0 };
        moe_error_t error;

        if (messages == NULL) {
            continue;
        }
        rendered++;
        assert_int_equal(moe_chat_render(chat, messages, strlen(messages), NULL, 0, 1, 0, &out,
                                         &error), 0);
        assert_int_equal(out.bytes.size, json_string_length(text));
        assert_memory_equal(out.bytes.data, json_string_value(text), out.bytes.size);
        moe_text_free(&out);
        free(messages);
    }
    assert_true(rendered > 5);
    moe_chat_free(chat);
    json_decref(file);
}


int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(golden)
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
