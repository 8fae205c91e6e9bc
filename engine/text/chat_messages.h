/*
 * A request's messages as template variables.
 */

#ifndef MOE_CHAT_MESSAGES_H
#define MOE_CHAT_MESSAGES_H

#include <jansson.h>

#include "engine/core/error.h"

/*
 * Parses and checks a JSON array of messages: objects with a role; the content a string, null,
 * missing, or a list of text parts, which becomes one string (parts joined by newlines) where
 * `join_parts`.  New reference; NULL with MOE_INVALID, the message names the place.
 */
json_t *moe_chat_messages_parse(const char *data, size_t size, int join_parts,
                                moe_error_t *error);

/*
 * Replaces tool calls' arguments that are a string holding a JSON object by that object.
 * Returns how many were replaced, -1 on lack of memory.
 */
int moe_chat_messages_parse_arguments(json_t *messages, moe_error_t *error);

/* The text of the last message, which must be the assistant's and not blank, as a borrowed string
 * of `messages`.  NULL with MOE_INVALID. */
const json_t *moe_chat_messages_final_text(const json_t *messages, moe_error_t *error);

#endif
