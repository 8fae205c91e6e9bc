/*
 * Chat format of a model.
 *
 * Templates disagree on the form of messages.  Whether they know a role or a member is seen by its
 * name in them.  Two things are found out by trying.  When loading: whether the template takes
 * contents that are lists of parts, by rendering the same text both ways.  When rendering: whether
 * it wants tool calls' arguments as an object or as the string that clients send, a content that is
 * null as that or as no text, and beside tool calls a content or nothing but thoughts, by falling
 * back on the latter when the former does not render.
 */

#include "engine/text/chat.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "engine/core/json.h"
#include "engine/text/chat_messages.h"
#include "engine/text/template_string.h"

#define TEMPLATE_FILE_LIMIT ((off_t) 1 << 20)

struct moe_chat_s {
    moe_template_t *template;       /* NULL: the model has none */
    moe_chat_t *tool_use;           /* the format of chats with tools; NULL: the same */
    json_t *special;                /* name -> token text */
    json_t *roles;                  /* trusted_fields of the template */
    moe_chat_form_t form;
};

static const char *const special_names[] = {
    "bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token"
};

/* Roles are a fixed vocabulary, which templates may build markers from ("<|" + role + "|>"). */
static const char roles_json[] =
    "{\"role\": [\"system\", \"developer\", \"user\", \"assistant\", \"tool\", \"function\","
    " \"ipython\", \"observation\", \"latest_reminder\"]}";


/* 1 and the template; 0 when there is no such file; -1 with the error. */
static int load_file(const char *path, int optional, moe_template_t **template,
                     moe_error_t *error)
{
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    moe_buffer_t source = { .limit = (size_t) TEMPLATE_FILE_LIMIT };
    struct stat st;
    ssize_t n = -1;

    if (fd == -1) {
        return errno == ENOENT && optional
               ? 0 : moe_fail(error, MOE_BAD_MODEL, "%s: %s", path, strerror(errno));
    }
    if (fstat(fd, &st) == -1 || !S_ISREG(st.st_mode) || st.st_size > TEMPLATE_FILE_LIMIT) {
        close(fd);
        return moe_fail(error, MOE_BAD_MODEL, "%s: not a regular file of at most 1 MiB", path);
    }
    while (moe_buffer_reserve(&source, 4096, error) == 0
           && (n = read(fd, source.data + source.size, 4096)) > 0)
    {
        source.size += (size_t) n;
    }
    close(fd);
    if (n == 0) {
        *template = moe_template_parse(source.data, source.size, error);
    } else if (n == -1) {
        moe_fail(error, MOE_BAD_MODEL, "cannot be read");
    }
    moe_buffer_free(&source);
    return n != 0 || *template == NULL ? moe_fail_in(error, "%s", path) : 1;
}


/* One of a list of named templates; NULL when there is none of that name. */
static const json_t *named_template(const json_t *list, const char *wanted)
{
    for (size_t i = 0; i < json_array_size(list); i++) {
        const json_t *entry = json_array_get(list, i), *name = json_object_get(entry, "name");

        if (json_is_string(name) && strcmp(json_string_value(name), wanted) == 0) {
            return json_object_get(entry, "template");
        }
    }
    return NULL;
}


/* The same format with another template; its tokens must be known already. */
static moe_chat_t *new_variation(const moe_chat_t *chat, const json_t *source, moe_error_t *error)
{
    moe_chat_t *variation = calloc(1, sizeof(*variation));

    if (variation == NULL) {
        moe_fail(error, MOE_LIMIT, "out of memory");
        return NULL;
    }
    variation->special = json_incref(chat->special);
    variation->roles = json_incref(chat->roles);
    variation->template = moe_template_parse(json_string_value(source),
                                             json_string_length(source), error);
    if (variation->template == NULL) {
        moe_chat_free(variation);
        return NULL;
    }
    return variation;
}


/* A "chat_template" member: a string, or a list with "default" and maybe "tool_use". */
static int load_member(moe_chat_t *chat, const json_t *file, const char *name, moe_error_t *error)
{
    const json_t *member = json_object_get(file, "chat_template");
    const json_t *source = json_is_array(member) ? named_template(member, "default") : member;
    const json_t *tool_use = named_template(member, "tool_use");

    if (!json_is_string(source)) {
        return 0;
    }
    chat->template = moe_template_parse(json_string_value(source), json_string_length(source),
                                        error);
    if (chat->template != NULL && json_is_string(tool_use)) {
        chat->tool_use = new_variation(chat, tool_use, error);
    }
    return chat->template == NULL || (json_is_string(tool_use) && chat->tool_use == NULL)
           ? moe_fail_in(error, "%s: chat_template", name) : 1;
}


static int load_template(moe_chat_t *chat, const char *directory, const char *override,
                         const json_t *config, moe_error_t *error)
{
    char path[PATH_MAX];
    json_t *file;
    int found;

    if (override != NULL) {
        return load_file(override, 0, &chat->template, error);
    }
    if (snprintf(path, sizeof(path), "%s/chat_template.jinja", directory) >= (int) sizeof(path)) {
        return moe_fail(error, MOE_BAD_MODEL, "chat_template.jinja: path too long");
    }
    found = load_file(path, 1, &chat->template, error);
    if (found == 0) {
        found = load_member(chat, config, "tokenizer_config.json", error);
    }
    if (found != 0) {
        return found;
    }
    file = moe_json_load(directory, "chat_template.json", 1, error);
    if (file == NULL) {
        return error->code == MOE_OK ? 0 : -1;
    }
    found = load_member(chat, file, "chat_template.json", error);
    json_decref(file);
    return found;
}


/* A token given as its text or as an object with its "content"; NULL where there is none. */
static json_t *token_text(const json_t *file, const char *name)
{
    json_t *token = json_object_get(file, name);

    token = json_is_object(token) ? json_object_get(token, "content") : token;
    return json_is_string(token) ? token : NULL;
}


static int add_special(moe_chat_t *chat, const json_t *config, const json_t *map,
                       moe_error_t *error)
{
    for (size_t i = 0; i < sizeof(special_names) / sizeof(special_names[0]); i++) {
        json_t *text = token_text(config, special_names[i]);

        if (text == NULL) {
            text = token_text(map, special_names[i]);
        }
        if (text != NULL && json_object_set(chat->special, special_names[i], text) != 0) {
            return moe_fail(error, MOE_LIMIT, "out of memory");
        }
    }
    return 0;
}


/* 0 and the value in *json, NULL where none is given. */
static int parse_json(const moe_chat_json_t *given, const char *name, json_t **json,
                      moe_error_t *error)
{
    json_error_t where;

    *json = NULL;
    if (given->size == 0) {
        return 0;
    }
    *json = json_loadb(given->data, given->size, JSON_REJECT_DUPLICATES | JSON_ALLOW_NUL, &where);
    return *json != NULL ? 0 : moe_fail(error, MOE_INVALID, "%s: %s", name, where.text);
}


/* Adds the client's own variables, but none of those that the template relies on. */
static int add_arguments(json_t *variables, const moe_chat_request_t *request, moe_error_t *error)
{
    json_t *arguments;
    int status = -1;

    if (parse_json(&request->arguments, "chat template arguments", &arguments, error) != 0) {
        return -1;
    }
    if (arguments == NULL) {
        return 0;
    }
    if (!json_is_object(arguments)) {
        moe_fail(error, MOE_INVALID, "chat template arguments: not an object");
    } else {
        for (size_t i = 0; i < sizeof(special_names) / sizeof(special_names[0]); i++) {
            json_object_del(arguments, special_names[i]);
        }
        status = json_object_update(variables, arguments) == 0
                 ? 0 : moe_fail(error, MOE_LIMIT, "out of memory");
    }
    json_decref(arguments);
    return status;
}


static int add_tools(json_t *variables, const moe_chat_request_t *request, moe_error_t *error)
{
    json_t *tools;
    size_t i;

    if (parse_json(&request->tools, "tools", &tools, error) != 0) {
        return -1;
    }
    if (tools == NULL) {
        return 0;
    }
    for (i = 0; json_is_object(json_array_get(tools, i)); i++) {
        continue;
    }
    if (i == 0 || i < json_array_size(tools)) {
        json_decref(tools);
        return moe_fail(error, MOE_INVALID, "tools: not an array of at least one object");
    }
    return json_object_set_new(variables, "tools", tools) == 0
           ? 0 : moe_fail(error, MOE_LIMIT, "out of memory");
}


/* All variables but the messages.  New reference, or NULL with the error. */
static json_t *new_variables(const moe_chat_request_t *request, moe_error_t *error)
{
    /* Hugging Face always passes tools and documents. */
    json_t *variables = json_pack("{s:n, s:n}", "tools", "documents");

    if (variables == NULL) {
        moe_fail(error, MOE_LIMIT, "out of memory");
        return NULL;
    }
    if (add_arguments(variables, request, error) != 0
        || add_tools(variables, request, error) != 0)
    {
        json_decref(variables);
        return NULL;
    }
    if (json_object_set_new(variables, "add_generation_prompt",
                            json_boolean(request->add_generation_prompt)) != 0
        || json_object_set_new(variables, "continue_final_message",
                               json_boolean(request->continue_final)) != 0)
    {
        json_decref(variables);
        moe_fail(error, MOE_LIMIT, "out of memory");
        return NULL;
    }
    return variables;
}


static int render(const moe_chat_t *chat, json_t *messages, json_t *variables, moe_text_t *out,
                  moe_error_t *error)
{
    if (json_object_set(variables, "messages", messages) != 0) {
        return moe_fail(error, MOE_LIMIT, "out of memory");
    }
    return moe_template_render(chat->template, variables, chat->special, chat->roles,
                               (int64_t) time(NULL), &moe_template_default_limits, out, error);
}


static int texts_equal(const moe_text_t *a, const moe_text_t *b)
{
    return a->bytes.size == b->bytes.size && a->bytes.size > 0
           && memcmp(a->bytes.data, b->bytes.data, a->bytes.size) == 0;
}


/* Whether a list of one part renders like the part's text. */
static int takes_parts(const moe_chat_t *chat)
{
    static const moe_chat_request_t request = { .add_generation_prompt = 1 };
    json_t *plain = json_pack("[{s:s, s:s}]", "role", "user", "content", "probe");
    json_t *parts = json_pack("[{s:s, s:[{s:s, s:s}]}]", "role", "user", "content", "type",
                              "text", "text", "probe");
    moe_text_t a = { 0 }, b = { 0 };
    moe_error_t error;
    json_t *variables = new_variables(&request, &error);
    int equal;

    equal = plain != NULL && parts != NULL && variables != NULL
            && render(chat, plain, variables, &a, &error) == 0
            && render(chat, parts, variables, &b, &error) == 0 && texts_equal(&a, &b)
            && memmem(a.bytes.data, a.bytes.size, "probe", 5) != NULL;
    moe_text_free(&a);
    moe_text_free(&b);
    json_decref(variables);
    json_decref(plain);
    json_decref(parts);
    return equal;
}


/* 0, or -1 when a file exists and is damaged. */
static int load_optional(const char *directory, const char *name, json_t **file,
                         moe_error_t *error)
{
    *file = moe_json_load(directory, name, 1, error);
    return *file != NULL || error->code == MOE_OK ? 0 : -1;
}


/* An empty format. */
static moe_chat_t *new_chat(moe_error_t *error)
{
    moe_chat_t *chat = calloc(1, sizeof(*chat));

    if (chat != NULL) {
        chat->special = json_object();
        chat->roles = json_loads(roles_json, 0, NULL);
    }
    if (chat == NULL || chat->special == NULL || chat->roles == NULL) {
        moe_fail(error, MOE_LIMIT, "out of memory");
        moe_chat_free(chat);
        return NULL;
    }
    return chat;
}


/* The member of a message that the template reads the assistant's reasoning from. */
static const char *reasoning_member(const moe_template_t *template)
{
    static const char *const members[] = { "reasoning_content", "thinking", "reasoning" };

    for (size_t i = 0; i < sizeof(members) / sizeof(members[0]); i++) {
        if (moe_template_mentions(template, members[i], 1)) {
            return members[i];
        }
    }
    return members[0];
}


static void find_form(moe_chat_t *chat)
{
    chat->form.takes_parts = takes_parts(chat);
    chat->form.knows_developer = moe_template_mentions(chat->template, "developer", 0);
    chat->form.reasoning = reasoning_member(chat->template);
}


/* The format once its parts were read; `status`: whether they were. */
static moe_chat_t *finish(moe_chat_t *chat, int status)
{
    if (status != 0) {
        moe_chat_free(chat);
        return NULL;
    }
    if (chat->template != NULL) {
        find_form(chat);
    }
    if (chat->tool_use != NULL) {
        find_form(chat->tool_use);
    }
    return chat;
}


moe_chat_t *moe_chat_load(const char *directory, const char *override, moe_error_t *error)
{
    moe_chat_t *chat = new_chat(error);
    json_t *config = NULL, *map = NULL;
    int status;

    if (chat == NULL) {
        return NULL;
    }
    status = load_optional(directory, "tokenizer_config.json", &config, error) != 0
             || load_optional(directory, "special_tokens_map.json", &map, error) != 0
             || add_special(chat, config, map, error) != 0
             || load_template(chat, directory, override, config, error) == -1 ? -1 : 0;
    json_decref(config);
    json_decref(map);
    return finish(chat, status);
}


moe_chat_t *moe_chat_create(const json_t *config, const char *where, const char *override,
                            moe_error_t *error)
{
    moe_chat_t *chat = new_chat(error);
    int found;

    if (chat == NULL) {
        return NULL;
    }
    found = add_special(chat, config, NULL, error);
    if (found == 0) {
        found = override != NULL ? load_file(override, 0, &chat->template, error)
                                 : load_member(chat, config, where, error);
    }
    return finish(chat, found == -1 ? -1 : 0);
}


void moe_chat_free(moe_chat_t *chat)
{
    if (chat != NULL) {
        moe_chat_free(chat->tool_use);
        moe_template_free(chat->template);
        json_decref(chat->special);
        json_decref(chat->roles);
        free(chat);
    }
}


const char *moe_chat_source(const moe_chat_t *chat, size_t *size)
{
    *size = 0;
    chat = chat->tool_use != NULL ? chat->tool_use : chat;
    return chat->template != NULL ? moe_template_source(chat->template, size) : "";
}


int moe_chat_takes_tools(const moe_chat_t *chat)
{
    return chat->tool_use != NULL
           || (chat->template != NULL && moe_template_mentions(chat->template, "tools", 0));
}


/* 1 when bytes [start, end) hold nothing that is trusted. */
static int is_untrusted(const moe_text_t *text, size_t start, size_t end)
{
    for (size_t i = 0; i < text->n_trusted; i++) {
        if (text->trusted[i].start < end && text->trusted[i].end > start) {
            return 0;
        }
    }
    return 1;
}


static size_t leading_space(const char *data, size_t size)
{
    moe_string_t string = { .data = data, .size = size };
    size_t at = 0;

    while (at < size) {
        uint32_t code_point;
        size_t width = moe_string_character(&string, at, &code_point);

        if (!moe_is_blank(code_point)) {
            break;
        }
        at += width;
    }
    return at;
}


/*
 * Where the final message's text ends in the rendered text: behind its last occurrence in
 * untrusted bytes (so a short text is not found in the template's own markers), with the white
 * space at its end where the template kept that.  SIZE_MAX when it is not there.
 */
static size_t end_of_final(const moe_text_t *text, const json_t *final)
{
    const char *data = json_string_value(final);
    size_t size = json_string_length(final), start = leading_space(data, size);
    size_t stripped = moe_trim_end(data, size) - start;

    for (size_t at = text->bytes.size; at-- > 0;) {
        if (text->bytes.size - at >= stripped
            && memcmp(text->bytes.data + at, data + start, stripped) == 0
            && is_untrusted(text, at, at + stripped))
        {
            size_t whole = size - start;

            return text->bytes.size - at >= whole
                   && memcmp(text->bytes.data + at, data + start, whole) == 0
                   && is_untrusted(text, at, at + whole) ? at + whole : at + stripped;
        }
    }
    return SIZE_MAX;
}


/* Appends the first `size` bytes of `text`. */
static int append(const moe_text_t *text, size_t size, moe_text_t *out, moe_error_t *error)
{
    size_t at = 0;

    for (size_t i = 0; i < text->n_trusted && at < size; i++) {
        size_t start = text->trusted[i].start < size ? text->trusted[i].start : size;
        size_t end = text->trusted[i].end < size ? text->trusted[i].end : size;

        if (moe_text_append(out, text->bytes.data + at, start - at, 0, error) != 0
            || moe_text_append(out, text->bytes.data + start, end - start, 1, error) != 0)
        {
            return -1;
        }
        at = end;
    }
    return at == size ? 0 : moe_text_append(out, text->bytes.data + at, size - at, 0, error);
}


enum { EMPTY_CONTENTS = 1, STRING_ARGUMENTS = 2, JOINED_THOUGHTS = 4, VARIANTS = 8 };

/* A variant of the messages; NULL without an error when it is like one before. */
static json_t *variant_of(const json_t *messages, unsigned variant, int *calls, moe_error_t *error)
{
    json_t *copy = json_deep_copy(messages);
    int changed = 1;

    error->code = MOE_OK;
    if (copy == NULL) {
        moe_fail(error, MOE_LIMIT, "out of memory");
        return NULL;
    }
    if (!(variant & STRING_ARGUMENTS)) {
        *calls = moe_chat_messages_parse_arguments(copy, error);
        changed = *calls < 0 ? -1 : 1;
    } else if (*calls == 0) {
        changed = 0;
    }
    if (changed > 0 && (variant & EMPTY_CONTENTS)) {
        changed = moe_chat_messages_fill_contents(copy, error);
    }
    if (changed > 0 && (variant & JOINED_THOUGHTS)) {
        changed = moe_chat_messages_join_thoughts(copy, error);
    }
    if (changed <= 0) {
        json_decref(copy);
        return NULL;
    }
    return copy;
}


/* Renders the first variant of the messages that the template takes, or gives the first's error. */
static int render_variants(const moe_chat_t *chat, const json_t *messages, json_t *variables,
                           moe_text_t *out, moe_error_t *error)
{
    moe_error_t first, fault;
    int calls = 0;

    for (unsigned variant = 0; variant < VARIANTS; variant++) {
        json_t *copy = variant_of(messages, variant, &calls, &fault);
        int status = copy == NULL ? -1 : render(chat, copy, variables, out, &fault);

        json_decref(copy);
        if (status == 0) {
            return 0;
        }
        moe_text_free(out);
        if (variant == 0) {
            first = fault;
        }
        if (fault.code != MOE_OK && fault.code != MOE_INVALID) {
            break;
        }
    }
    *error = first;
    return -1;
}


static int render_messages(const moe_chat_t *chat, json_t *messages, json_t *variables,
                           int continue_final, moe_text_t *out, moe_error_t *error)
{
    const json_t *final = NULL;
    moe_text_t text = { 0 };
    size_t end = 0;
    int status;

    if (continue_final && (final = moe_chat_messages_final_text(messages, error)) == NULL) {
        return -1;
    }
    status = render_variants(chat, messages, variables, &text, error);
    if (status == 0) {
        end = final == NULL ? text.bytes.size : end_of_final(&text, final);
        status = end == SIZE_MAX
                 ? moe_fail(error, MOE_INVALID, "the chat template does not show the final message "
                            "as it is: it cannot be continued")
                 : append(&text, end, out, error);
    }
    moe_text_free(&text);
    return status;
}


int moe_chat_render(const moe_chat_t *chat, const moe_chat_request_t *request, moe_text_t *out,
                    moe_error_t *error)
{
    json_t *messages, *variables = NULL;
    int status = -1;

    if (chat->template == NULL) {
        return moe_fail(error, MOE_INVALID, "the model has no chat template");
    }
    chat = request->tools.size > 0 && chat->tool_use != NULL ? chat->tool_use : chat;
    messages = moe_chat_messages_parse(request->messages.data, request->messages.size,
                                       &chat->form, error);
    if (messages != NULL && (variables = new_variables(request, error)) != NULL) {
        status = render_messages(chat, messages, variables, request->continue_final, out, error);
    }
    json_decref(messages);
    json_decref(variables);
    if (status != 0 && error->code == MOE_LIMIT) {
        /* What a request makes the template do is the request's fault, not a full queue. */
        error->code = MOE_INVALID;
    }
    return status;
}
