/*
 * Source to tokens, with the whitespace rules of Jinja under trim_blocks and lstrip_blocks: one
 * newline after a block or comment goes, blanks between a line's start and a block go, "-" marks
 * take all whitespace on their side, "+" marks switch the automatic rules off.  Newlines are
 * normalised and the last one of the template is dropped.
 */

#include "engine/text/template_ast.h"

#include <ctype.h>
#include <string.h>

#define MAX_BRACKETS 200

typedef struct {
    moe_job_t *job;
    const char *source;
    size_t size, position;
    int line;
    int line_starting;          /* what was read last ended a line, or nothing was read yet */
    moe_token_t *tokens;
    size_t count, capacity;
    char brackets[MAX_BRACKETS];
    size_t n_brackets;
} lexer_t;


static int fail(lexer_t *lexer, const char *what)
{
    lexer->job->line = lexer->line;
    return moe_job_fail(lexer->job, "%s", what);
}


static int add_token(lexer_t *lexer, moe_token_kind_t kind, size_t start, size_t end)
{
    lexer->tokens = moe_job_grow(lexer->job, lexer->tokens, lexer->count, &lexer->capacity,
                                 sizeof(*lexer->tokens));
    if (lexer->tokens == NULL) {
        return -1;
    }
    lexer->tokens[lexer->count++] = (moe_token_t) {
        .kind = kind, .line = lexer->line, .data = lexer->source + start, .size = end - start
    };
    return 0;
}


static void move_to(lexer_t *lexer, size_t position)
{
    while (lexer->position < position) {
        lexer->line += lexer->source[lexer->position++] == '\n';
    }
    lexer->line_starting = position > 0 && lexer->source[position - 1] == '\n';
}


static int is_at(const lexer_t *lexer, size_t position, const char *text)
{
    size_t size = strlen(text);

    return lexer->size - position >= size && memcmp(lexer->source + position, text, size) == 0;
}


static size_t skip_space(const lexer_t *lexer, size_t position)
{
    moe_string_t source = { .data = lexer->source, .size = lexer->size };

    while (position < lexer->size) {
        uint32_t code_point;
        size_t size = moe_string_character(&source, position, &code_point);

        if (!moe_is_blank(code_point)) {
            break;
        }
        position += size;
    }
    return position;
}


static char sign_at(const lexer_t *lexer, size_t position)
{
    char c = position < lexer->size ? lexer->source[position] : '\0';

    return c == '-' || c == '+' ? c : '\0';
}


/* Moves behind a block's or comment's closing mark at `position`, whitespace rules applied. */
static void close_block(lexer_t *lexer, size_t position, char sign)
{
    if (sign == '-') {
        position = skip_space(lexer, position);
    } else if (sign == '\0' && position < lexer->size && lexer->source[position] == '\n') {
        position++;
    }
    move_to(lexer, position);
}


/* Adds the text up to `end`, where a tag with `sign` begins, and moves to `end`. */
static int add_text(lexer_t *lexer, size_t end, char sign, int prints)
{
    size_t start = lexer->position, stop = end, bol = end;

    if (sign == '-') {
        stop = start + moe_trim_end(lexer->source + start, end - start);
    } else if (sign == '\0' && !prints) {
        while (bol > start && lexer->source[bol - 1] != '\n') {
            bol--;
        }
        if ((bol > start || lexer->line_starting)
            && moe_trim_end(lexer->source + bol, end - bol) == 0)
        {
            stop = bol;
        }
    }
    if (stop > start && add_token(lexer, MOE_TOKEN_TEXT, start, stop) != 0) {
        return -1;
    }
    move_to(lexer, end);
    return 0;
}


static int lex_comment(lexer_t *lexer, size_t start)
{
    const char *end = memmem(lexer->source + start, lexer->size - start, "#}", 2);
    size_t at;

    if (end == NULL) {
        return fail(lexer, "comment without end");
    }
    at = (size_t) (end - lexer->source);
    close_block(lexer, at + 2, at > start ? sign_at(lexer, at - 1) : '\0');
    return 0;
}


/* Where the tag {% [+-] `word` [+-] %} at `position` ends, or 0 when it is another tag. */
static size_t match_tag(const lexer_t *lexer, size_t position, const char *word, char *open_sign,
                        char *close_sign)
{
    if (!is_at(lexer, position, "{%")) {
        return 0;
    }
    position += 2;
    *open_sign = sign_at(lexer, position);
    position = skip_space(lexer, position + (*open_sign != '\0'));
    if (!is_at(lexer, position, word)) {
        return 0;
    }
    position = skip_space(lexer, position + strlen(word));
    *close_sign = sign_at(lexer, position);
    position += *close_sign != '\0';
    return is_at(lexer, position, "%}") ? position + 2 : 0;
}


static int lex_raw(lexer_t *lexer, size_t start, char sign)
{
    char open_sign, close_sign;
    size_t at, end = 0;

    move_to(lexer, sign == '-' ? skip_space(lexer, start) : start);
    for (at = lexer->position; at < lexer->size; at++) {
        end = lexer->source[at] != '{' ? 0
              : match_tag(lexer, at, "endraw", &open_sign, &close_sign);
        if (end != 0) {
            break;
        }
    }
    if (end == 0) {
        return fail(lexer, "'raw' without 'endraw'");
    }
    if (add_text(lexer, at, open_sign, 0) != 0) {
        return -1;
    }
    close_block(lexer, end, close_sign);
    return 0;
}


static int is_name_byte(unsigned char c)
{
    return isalnum(c) || c == '_' || c >= 0x80;
}


/* Digits with single underscores between them. */
static size_t skip_digits(const lexer_t *lexer, size_t at)
{
    while (at < lexer->size
           && (isdigit((unsigned char) lexer->source[at])
               || (lexer->source[at] == '_' && at + 1 < lexer->size
                   && isdigit((unsigned char) lexer->source[at + 1]))))
    {
        at++;
    }
    return at;
}


static int lex_number(lexer_t *lexer)
{
    size_t start = lexer->position, at = skip_digits(lexer, start), digits;
    int after_dot = start > 0 && lexer->source[start - 1] == '.';
    moe_token_kind_t kind = MOE_TOKEN_INTEGER;

    /* In a.0.1 the digits are items, not a fraction. */
    if (!after_dot && is_at(lexer, at, ".") && skip_digits(lexer, at + 1) > at + 1) {
        at = skip_digits(lexer, at + 1);
        kind = MOE_TOKEN_FLOAT;
    }
    if (!after_dot && (is_at(lexer, at, "e") || is_at(lexer, at, "E"))) {
        digits = at + 1 + (sign_at(lexer, at + 1) != '\0');
        if (skip_digits(lexer, digits) > digits) {
            at = skip_digits(lexer, digits);
            kind = MOE_TOKEN_FLOAT;
        }
    }
    if (at < lexer->size && is_name_byte((unsigned char) lexer->source[at])) {
        return fail(lexer, "number runs into a name");
    }
    if (add_token(lexer, kind, start, at) != 0) {
        return -1;
    }
    move_to(lexer, at);
    return 0;
}


static int lex_string(lexer_t *lexer)
{
    size_t start = lexer->position, at = start + 1;
    char quote = lexer->source[start];

    while (at < lexer->size && lexer->source[at] != quote) {
        at += lexer->source[at] == '\\' ? 2 : 1;
    }
    if (at >= lexer->size) {
        return fail(lexer, "string without end");
    }
    if (add_token(lexer, MOE_TOKEN_STRING, start, at + 1) != 0) {
        return -1;
    }
    move_to(lexer, at + 1);
    return 0;
}


static int track_bracket(lexer_t *lexer, char c)
{
    static const char opening[] = "([{", closing[] = ")]}";
    const char *found;

    if ((found = memchr(opening, c, 3)) != NULL) {
        if (lexer->n_brackets == MAX_BRACKETS) {
            return fail(lexer, "brackets nested too deep");
        }
        lexer->brackets[lexer->n_brackets++] = closing[found - opening];
    } else if (memchr(closing, c, 3) != NULL) {
        if (lexer->n_brackets == 0 || lexer->brackets[--lexer->n_brackets] != c) {
            return fail(lexer, "closing bracket without its opening one");
        }
    }
    return 0;
}


static int lex_operator(lexer_t *lexer)
{
    static const char *const operators[] = {
        "//", "**", "==", "!=", ">=", "<=", "+", "-", "*", "/", "%", "~", "[", "]", "(", ")", "{",
        "}", ">", "<", "=", ".", ":", "|", ","
    };

    for (size_t i = 0; i < sizeof(operators) / sizeof(operators[0]); i++) {
        size_t end = lexer->position + strlen(operators[i]);

        if (is_at(lexer, lexer->position, operators[i])) {
            if (track_bracket(lexer, operators[i][0]) != 0
                || add_token(lexer, MOE_TOKEN_OPERATOR, lexer->position, end) != 0)
            {
                return -1;
            }
            move_to(lexer, end);
            return 0;
        }
    }
    return fail(lexer, "unexpected character in a tag");
}


static int lex_name(lexer_t *lexer)
{
    size_t at = lexer->position;

    while (at < lexer->size && is_name_byte((unsigned char) lexer->source[at])) {
        at++;
    }
    if (add_token(lexer, MOE_TOKEN_NAME, lexer->position, at) != 0) {
        return -1;
    }
    move_to(lexer, at);
    return 0;
}


/* 1 and moves behind the tag's end when one is here. */
static int lex_tag_end(lexer_t *lexer, int prints)
{
    size_t at = lexer->position;
    char sign = sign_at(lexer, at);

    if (lexer->n_brackets > 0 || (prints && sign == '+')
        || !is_at(lexer, at + (sign != '\0'), prints ? "}}" : "%}"))
    {
        return 0;
    }
    if (add_token(lexer, prints ? MOE_TOKEN_PRINT_END : MOE_TOKEN_BLOCK_END, at, at) != 0) {
        return -1;
    }
    at += 2 + (sign != '\0');
    if (prints) {
        move_to(lexer, sign == '-' ? skip_space(lexer, at) : at);
        lexer->line_starting &= sign == '-';
    } else {
        close_block(lexer, at, sign);
    }
    return 1;
}


static int lex_tag(lexer_t *lexer, size_t start, int prints)
{
    int opened_at = lexer->line, status;

    if (add_token(lexer, prints ? MOE_TOKEN_PRINT_BEGIN : MOE_TOKEN_BLOCK_BEGIN, lexer->position,
                  start) != 0)
    {
        return -1;
    }
    move_to(lexer, start);
    for ( ;; ) {
        move_to(lexer, skip_space(lexer, lexer->position));
        if (lexer->position == lexer->size) {
            lexer->line = opened_at;
            return fail(lexer, "tag without end");
        }
        status = lex_tag_end(lexer, prints);
        if (status != 0) {
            return status > 0 ? 0 : -1;
        }
        unsigned char c = (unsigned char) lexer->source[lexer->position];

        status = isdigit(c) ? lex_number(lexer)
                 : is_name_byte(c) ? lex_name(lexer)
                 : c == '\'' || c == '"' ? lex_string(lexer) : lex_operator(lexer);
        if (status != 0) {
            return -1;
        }
    }
}


static int lex_opening(lexer_t *lexer, size_t at)
{
    char sign = sign_at(lexer, at + 2), open_sign, close_sign;
    size_t inside = at + 2 + (sign != '\0'), end;
    char kind = lexer->source[at + 1];

    if (add_text(lexer, at, sign, kind == '{') != 0) {
        return -1;
    }
    if (kind == '#') {
        return lex_comment(lexer, inside);
    }
    end = match_tag(lexer, at, "raw", &open_sign, &close_sign);
    if (end != 0) {
        return lex_raw(lexer, end, close_sign);
    }
    return lex_tag(lexer, inside, kind == '{');
}


static int lex(lexer_t *lexer)
{
    size_t at = 0;

    while (at < lexer->size) {
        if (lexer->source[at] != '{' || at + 1 == lexer->size
            || memchr("{%#", lexer->source[at + 1], 3) == NULL)
        {
            at++;
            continue;
        }
        if (lex_opening(lexer, at) != 0) {
            return -1;
        }
        at = lexer->position;
    }
    if (lexer->position < lexer->size
        && add_token(lexer, MOE_TOKEN_TEXT, lexer->position, lexer->size) != 0)
    {
        return -1;
    }
    move_to(lexer, lexer->size);
    return add_token(lexer, MOE_TOKEN_END, lexer->size, lexer->size);
}


/* A copy with "\n" for every kind of newline, without the last one. */
static char *normalise(moe_job_t *job, const char *source, size_t *size)
{
    char *copy = moe_job_alloc(job, *size + 1);
    size_t n = 0;

    if (copy == NULL) {
        return NULL;
    }
    for (size_t i = 0; i < *size; i++) {
        if (source[i] == '\r') {
            copy[n++] = '\n';
            i += i + 1 < *size && source[i + 1] == '\n';
        } else {
            copy[n++] = source[i];
        }
    }
    *size = n > 0 && copy[n - 1] == '\n' ? n - 1 : n;
    return copy;
}


moe_token_t *moe_template_lex(moe_job_t *job, const char *source, size_t size)
{
    lexer_t lexer = { .job = job, .line = 1, .line_starting = 1, .size = size };

    lexer.source = normalise(job, source, &lexer.size);
    if (lexer.source == NULL || lex(&lexer) != 0) {
        return NULL;
    }
    return lexer.tokens;
}
