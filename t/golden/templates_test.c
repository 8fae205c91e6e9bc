/*
 * Chat templates: single constructs and whole chats in the ways of each family, byte for byte what
 * Jinja2 renders.  Templates and data: t/golden/templates.py.
 */

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/text/chat.h"

#define TEMPLATES "t/golden/templates/"


static json_t *load(const char *path)
{
    json_error_t where;
    json_t *json = json_load_file(path, JSON_ALLOW_NUL, &where);

    if (json == NULL) {
        fail_msg("%s: %s, line %d", path, where.text, where.line);
    }
    return json;
}


static void check_text(const char *what, const char *which, const moe_text_t *text,
                       const json_t *expected)
{
    if (text->bytes.size != json_string_length(expected)
        || memcmp(text->bytes.size > 0 ? text->bytes.data : "", json_string_value(expected),
                  text->bytes.size) != 0)
    {
        fail_msg("%s: %s\n  expected %s\n  rendered %.*s", what, which,
                 json_string_value(expected), (int) text->bytes.size, text->bytes.data);
    }
}


static void cases(void **state)
{
    json_t *rows = load(TEMPLATES "cases.json");

    assert_true(json_array_size(rows) >= 280);
    for (size_t i = 0; i < json_array_size(rows); i++) {
        const json_t *row = json_array_get(rows, i), *source = json_object_get(row, "template");
        moe_error_t error = { 0 };
        moe_template_t *template = moe_template_parse(json_string_value(source),
                                                      json_string_length(source), &error);
        moe_text_t text = { 0 };

        if (template == NULL
            || moe_template_render(template, json_object_get(row, "variables"), NULL, NULL, 0,
                                   &moe_template_default_limits, &text, &error) != 0)
        {
            fail_msg("%s: %s", json_string_value(source), error.message);
        }
        check_text("case", json_string_value(source), &text, json_object_get(row, "expected"));
        moe_template_free(template);
        moe_text_free(&text);
    }
    json_decref(rows);
}


static moe_chat_t *open_chat(const json_t *golden, const char *name)
{
    char path[256];
    moe_error_t error;
    moe_chat_t *chat;

    snprintf(path, sizeof(path), TEMPLATES "%s.jinja", name);
    chat = moe_chat_create(json_object_get(golden, "special"), "special", path, &error);
    if (chat == NULL) {
        fail_msg("%s", error.message);
    }
    return chat;
}


static moe_chat_json_t dump(const json_t *json)
{
    char *data = json == NULL ? NULL : json_dumps(json, 0);

    return (moe_chat_json_t) { data, data == NULL ? 0 : strlen(data) };
}


/* The conversation's own variables, and those that all have. */
static moe_chat_json_t arguments_of(const json_t *golden, const json_t *conversation)
{
    json_t *all = json_copy(json_object_get(golden, "arguments"));
    moe_chat_json_t dumped;

    json_object_update(all, json_object_get(conversation, "arguments"));
    dumped = dump(all);
    json_decref(all);
    return dumped;
}


static void check_row(const json_t *golden, const moe_chat_t *chat, const json_t *row)
{
    const char *template = json_string_value(json_array_get(row, 0));
    const char *name = json_string_value(json_array_get(row, 1));
    const json_t *conversation = json_object_get(json_object_get(golden, "conversations"), name);
    const json_t *expected = json_array_get(row, 2), *refusal = json_array_get(row, 3);
    const moe_chat_request_t request = {
        .messages = dump(json_object_get(conversation, "messages")),
        .tools = dump(json_object_get(conversation, "tools")),
        .arguments = arguments_of(golden, conversation),
        .add_generation_prompt = json_is_true(json_object_get(conversation,
                                                              "add_generation_prompt")),
        .continue_final = json_is_true(json_object_get(conversation, "continue_final_message"))
    };
    moe_error_t error = { 0 };
    moe_text_t text = { 0 };

    if (moe_chat_render(chat, &request, &text, &error) == 0) {
        if (refusal != NULL) {
            fail_msg("%s: %s: not refused", template, name);
        }
        check_text(template, name, &text, expected);
    } else if (refusal == NULL || strcmp(error.message, json_string_value(refusal)) != 0) {
        fail_msg("%s: %s: %s", template, name, error.message);
    }
    moe_text_free(&text);
    free((char *) request.messages.data);
    free((char *) request.tools.data);
    free((char *) request.arguments.data);
}


static void families(void **state)
{
    json_t *golden = load("t/golden/templates.json");
    const json_t *rows = json_object_get(golden, "rows");
    const char *current = "";
    moe_chat_t *chat = NULL;

    assert_true(json_array_size(rows) >= 280);
    for (size_t i = 0; i < json_array_size(rows); i++) {
        const json_t *row = json_array_get(rows, i);
        const char *name = json_string_value(json_array_get(row, 0));

        if (strcmp(name, current) != 0) {
            moe_chat_free(chat);
            chat = open_chat(golden, name);
            current = name;
        }
        check_row(golden, chat, row);
    }
    moe_chat_free(chat);
    json_decref(golden);
}


int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(cases),
        cmocka_unit_test(families)
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
