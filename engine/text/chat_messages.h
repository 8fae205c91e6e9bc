/*
 * A request's messages as template variables.
 */

#ifndef MOE_CHAT_MESSAGES_H
#define MOE_CHAT_MESSAGES_H

#include <jansson.h>

#include "engine/core/error.h"

/* What a template makes of messages, where templates differ. */
typedef struct {
    int takes_parts;            /* contents may be lists; else their parts are joined by newlines */
    int knows_developer;        /* the role; else it is given as system */
    const char *reasoning;      /* the member it looks for what the assistant thought in */
} moe_chat_form_t;

/*
 * Parses and checks a JSON array of messages: objects with a role; the content a string, null,
 * missing (null where there are tool calls) or a list of text parts.  They are given the form.
 * New reference; NULL with MOE_INVALID, the message names the place.
 */
json_t *moe_chat_messages_parse(const char *data, size_t size, const moe_chat_form_t *form,
                                moe_error_t *error);

/*
 * Replaces tool calls' arguments that are a string holding a JSON object, or nothing, by that
 * object.  Returns how many were replaced, -1 on lack of memory.
 */
int moe_chat_messages_parse_arguments(json_t *messages, moe_error_t *error);

/* Replaces contents of tool calls' messages that are null by empty strings, with such a result. */
int moe_chat_messages_fill_contents(json_t *messages, moe_error_t *error);

/* Adds contents of tool calls' messages to their thinking, where they have both; the same. */
int moe_chat_messages_join_thoughts(json_t *messages, moe_error_t *error);

/* The text of the last message, which must be the assistant's and not blank, as a borrowed string
 * of `messages`.  NULL with MOE_INVALID. */
const json_t *moe_chat_messages_final_text(const json_t *messages, moe_error_t *error);

#endif
