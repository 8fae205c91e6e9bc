/*
 * The template evaluator: provenance, errors and limits.  What it renders is compared with Jinja2's
 * in t/golden/templates_test.c.
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
#include <time.h>

#include "engine/text/template.h"

/* Renders at the epoch; 0, or the error's code. */
static int render(const char *source, size_t size, const json_t *variables, const json_t *trusted,
                  const json_t *fields, const moe_template_limits_t *limits, moe_text_t *out,
                  moe_error_t *error)
{
    moe_template_t *template;
    int status;

    memset(error, 0, sizeof(*error));
    template = moe_template_parse(source, size, error);
    if (template == NULL) {
        return error->code;
    }
    status = moe_template_render(template, variables, trusted, fields, 0, limits, out, error);
    moe_template_free(template);
    assert_int_equal(status, error->code == MOE_OK ? 0 : -1);
    return error->code;
}


/* The text with its trusted spans in ‹›. */
static char *marked(const moe_text_t *text)
{
    char *marked = calloc(1, 8 * text->bytes.size + 8), *end = marked;
    size_t at = 0;

    for (size_t i = 0; i <= text->n_trusted; i++) {
        size_t start = i < text->n_trusted ? text->trusted[i].start : text->bytes.size;

        if (start > at) {
            end = mempcpy(end, text->bytes.data + at, start - at);
        }
        if (i < text->n_trusted) {
            at = text->trusted[i].end;
            end += sprintf(end, "‹%.*s›", (int) (at - start), text->bytes.data + start);
        }
    }
    return marked;
}


/* x is "uU" and l ["a", "b"], from the client; bos is "<s>", trusted. */
static const struct {
    const char *template, *expected;
} provenance_rows[] = {
    { "text", "‹text›" },
    { "{{ 'literal' }}", "‹literal›" },
    { "{{ x }}", "uU" },
    { "{{ bos }}{{ x }}e", "‹<s>›uU‹e›" },
    { "{{ 'a' + x + 'b' }}", "‹a›uU‹b›" },
    { "{{ 'a' ~ x ~ bos }}", "‹a›uU‹<s>›" },
    { "{{ ('ab' + x)[1:3] }}", "‹b›u" },
    { "{{ ('ab' + x)[::-1] }}", "Uu‹ba›" },
    { "{{ ('ab' + x)[1] }}{{ ('ab' + x)[-1] }}", "‹b›U" },
    { "{{ (' a ' + x + ' ')|trim }}", "‹a ›uU" },
    { "{{ ('a,' + x + ',b').split(',')|join('/') }}", "‹a/›uU‹/b›" },
    { "{{ l|join('<s>') }}", "a‹<s>›b" },
    { "{{ ('a' + x)|upper }}{{ ('A' + x)|lower }}", "‹A›UU‹a›uu" },
    { "{{ ('a' + x)|title }}{{ ('a' + x)|capitalize }}", "‹A›uu‹A›uu" },
    { "{{ 'a-b'.replace('-', x) }}{{ x.replace('u', '<s>') }}", "‹a›uU‹b<s>›U" },
    { "{{ 'a-b'|replace('-', x) }}", "‹a›uU‹b›" },
    { "{{ x * 2 }}{{ 'a' * 2 }}", "uUuU‹aa›" },
    { "{{ '[{}]'.format(x) }}", "‹[›uU‹]›" },
    { "{{ x|tojson }}{{ 'a'|tojson }}", "\"uU\"\"‹a›\"" },
    { "{{ ['a', x] }}", "['‹a›', 'uU']" },
    { "{{ 1 }}{{ 1.5 }}{{ true }}{{ none }}", "11.5TrueNone" },
    { "{{ ('a\\n' + x)|indent(1) }}", "‹a›\n uU" },
    { "{% set y %}a{{ x }}{% endset %}{{ y }}", "‹a›uU" },
    { "{% macro m(p) %}<{{ p }}>{% endmacro %}{{ m(x) }}{{ m('t') }}", "‹<›uU‹><t>›" },
    { "{% filter upper %}a{{ x }}{% endfilter %}", "‹A›UU" },
    { "{% set ns = namespace(s='') %}{% for i in l %}{% set ns.s = ns.s + i + ';' %}{% endfor %}"
      "{{ ns.s }}", "a‹;›b‹;›" },
    { "{{ x|default('d') }}{{ y|default('d') }}", "uU‹d›" },
    { "{% for c in 'a' + x %}{{ c }}{% endfor %}", "‹a›uU" },
    { "{{ {x: 'v'}|items|first|join }}", "uU‹v›" },
    { "{{ {'uU': 'v'}[x] }}", "‹v›" },
    { "{{ 'uU' if x == 'uU' }}", "‹uU›" },
    { "{{ ('<' + x + '>')|e }}", "&lt;uU&gt;" },
    { "{{ [x, 'uU']|unique|list|first }}{{ ['uU', x]|max }}", "uU‹uU›" },
    { "{{ x.strip('u') }}{{ (x + 'a').lstrip('u') }}", "UU‹a›" },
    { "{{ '[\"uU\"]'|from_json|first }}", "uU" },
    { "{{ strftime_now('%Y') }}", "1970" },
    { "{{ m.role }}{{ m.text }}{{ n.role }}", "‹user›userroot" },
    { "{{ '<|' + m.role + '|>' }}", "‹<|user|>›" },
    { "{{ '<%s>%5s|%.1s' % (x, 'a', x) }}", "‹<›uU‹>›    ‹a|›u" },
    { "{{ '%d%%%r' % (1, 'a') }}{{ x % () }}", "1‹%›'‹a›'uU" },
    { "{{ '%(k)s%(l)s' % {'k': x, 'l': 'b'} }}{{ '%s'|format(x) }}", "uU‹b›uU" },
    { "{% macro m() %}<{{ caller(x) }}>{% endmacro %}{% call(y) m() %}c{{ y }}{% endcall %}",
      "‹<c›uU‹>›" },
    { "{% for i in [x, ['a']] recursive %}{{ i if i is string else loop(i) }}{% endfor %}",
      "uU‹a›" }
};


static void provenance(void **state)
{
    json_t *variables = json_pack("{s:s, s:[s, s], s:{s:s, s:s}, s:{s:s}}", "x", "uU", "l", "a",
                                  "b", "m", "role", "user", "text", "user", "n", "role", "root");
    json_t *trusted = json_pack("{s:s}", "bos", "<s>");
    json_t *fields = json_pack("{s:[s, s]}", "role", "assistant", "user");

    for (size_t i = 0; i < sizeof(provenance_rows) / sizeof(provenance_rows[0]); i++) {
        const char *source = provenance_rows[i].template;
        moe_text_t out = { 0 };
        moe_error_t error;
        char *text;

        if (render(source, strlen(source), variables, trusted, fields,
                   &moe_template_default_limits, &out, &error) != 0)
        {
            fail_msg("%s: %s", source, error.message);
        }
        text = marked(&out);
        if (strcmp(text, provenance_rows[i].expected) != 0) {
            fail_msg("%s\n  expected %s\n  rendered %s", source, provenance_rows[i].expected, text);
        }
        free(text);
        moe_text_free(&out);
    }
    json_decref(variables);
    json_decref(trusted);
    json_decref(fields);
}


static void trusted_variables_win(void **state)
{
    json_t *variables = json_pack("{s:s}", "bos", "mine"), *trusted = json_pack("{s:s}", "bos", "T");
    moe_text_t out = { 0 };
    moe_error_t error;

    assert_int_equal(render("{{ bos }}", 9, variables, trusted, NULL, &moe_template_default_limits,
                            &out, &error), 0);
    assert_int_equal(out.bytes.size, 1);
    assert_int_equal(out.n_trusted, 1);
    moe_text_free(&out);
    json_decref(variables);
    json_decref(trusted);
}


#define LINE "template line "

static const struct {
    const char *template;
    moe_error_code_t code;
    const char *message;
} error_rows[] = {
    { "a\n{{ x", MOE_BAD_MODEL, LINE "2: tag without end" },
    { "{# x", MOE_BAD_MODEL, LINE "1: comment without end" },
    { "{% raw %}x", MOE_BAD_MODEL, LINE "1: 'raw' without 'endraw'" },
    { "\n{{ 'x }}", MOE_BAD_MODEL, LINE "2: string without end" },
    { "{% if x %}\n\n", MOE_BAD_MODEL, LINE "2: expected 'endif', found the end of the template" },
    { "{% for x in y %}{% endif %}", MOE_BAD_MODEL, LINE "1: expected a known block, found 'endif'" },
    { "{% endfor %}", MOE_BAD_MODEL, LINE "1: expected a known block, found 'endfor'" },
    { "{% include 'x' %}", MOE_BAD_MODEL, LINE "1: expected a known block, found 'include'" },
    { "\n\n{{ x|nope }}", MOE_BAD_MODEL, LINE "3: expected a known filter, found 'nope'" },
    { "{{ x is nope }}", MOE_BAD_MODEL, LINE "1: expected a known test, found 'nope'" },
    { "{{ }}", MOE_BAD_MODEL, LINE "1: expected an expression, found the end of the tag" },
    { "{{ 1 2 }}", MOE_BAD_MODEL, LINE "1: expected '}}', found '2'" },
    { "{{ (1 }}", MOE_BAD_MODEL, LINE "1: closing bracket without its opening one" },
    { "{{ x. }}", MOE_BAD_MODEL, LINE "1: expected a name, found the end of the tag" },
    { "{{ a ? b }}", MOE_BAD_MODEL, LINE "1: unexpected character in a tag" },
    { "{{ 12ab }}", MOE_BAD_MODEL, LINE "1: number runs into a name" },
    { "{{ 9223372036854775808 }}", MOE_BAD_MODEL,
      LINE "1: expected an integer of at most 64 bits, found '9223372036854775808'" },
    { "{{ '\\uD800' }}", MOE_BAD_MODEL,
      LINE "1: expected a Unicode character in the string's escape, found ''\\uD800''" },
    { "{{ '\\x1' }}", MOE_BAD_MODEL,
      LINE "1: expected hexadecimal digits in the string's escape, found ''\\x1''" },
    { "{% break %}", MOE_BAD_MODEL,
      LINE "1: 'break' or 'continue' outside of a loop" },
    { "{% for i in x %}{% set y %}{% break %}{% endset %}{% endfor %}", MOE_BAD_MODEL,
      LINE "1: 'break' or 'continue' outside of a loop" },
    { "{% call x %}{% endcall %}", MOE_BAD_MODEL,
      LINE "1: expected a call, found the end of the tag" },
    { "{% call x() %}", MOE_BAD_MODEL,
      LINE "1: expected 'endcall', found the end of the template" },
    { "{% with a %}{% endwith %}", MOE_BAD_MODEL,
      LINE "1: expected a value for each name, found the end of the tag" },
    { "{% for x.y in z %}{% endfor %}", MOE_BAD_MODEL, LINE "1: expected 'in', found '.'" },
    { "{{ f(a=1, 2) }}", MOE_BAD_MODEL,
      LINE "1: expected a named argument after named arguments, found '2'" },
    { "\xff", MOE_BAD_MODEL, "template is not valid UTF-8" },

    { "\n{{ u.x }}", MOE_INVALID, LINE "2: 'u' is undefined" },
    { "{{ u['x'] }}", MOE_INVALID, LINE "1: 'u' is undefined" },
    { "{{ u + 1 }}", MOE_INVALID, LINE "1: 'u' is undefined" },
    { "{{ u() }}", MOE_INVALID, LINE "1: 'u' is undefined" },
    { "{{ u < 1 }}", MOE_INVALID, LINE "1: 'u' is undefined" },
    { "{{ m.a.b }}", MOE_INVALID, LINE "1: 'a' is undefined" },
    { "{% if true %}\n{{ 'a' + 1 }}{% endif %}", MOE_INVALID,
      LINE "2: 'str' + 'int' is not possible" },
    { "{{ none + 'a' }}", MOE_INVALID, LINE "1: 'NoneType' + 'str' is not possible" },
    { "{{ 'a' < 1 }}", MOE_INVALID, LINE "1: 'str' and 'int' cannot be ordered" },
    { "{{ 1 in 'a' }}", MOE_INVALID, LINE "1: 'in' needs a str in a str, not 'int'" },
    { "{{ 1 in 2 }}", MOE_INVALID, LINE "1: 'int' is no container for 'in'" },
    { "{{ -'a' }}", MOE_INVALID, LINE "1: -'str' is not possible" },
    { "{{ 1(2) }}", MOE_INVALID, LINE "1: 'int' cannot be called" },
    { "{{ 1 // 0 }}{{ x }}", MOE_INVALID, LINE "1: division by zero" },
    { "{{ 9223372036854775807 + 1 }}", MOE_INVALID, LINE "1: integer overflow" },
    { "{{ 3 ** 99 }}", MOE_INVALID, LINE "1: integer overflow" },
    { "{{ -1 * (-9223372036854775807 - 1) }}", MOE_INVALID, LINE "1: integer overflow" },
    { "{{ (-9223372036854775807 - 1) // -1 }}", MOE_INVALID, LINE "1: integer overflow" },
    { "{{ 'a'[::0] }}", MOE_INVALID, LINE "1: a slice's step is 0" },
    { "{{ 'a'['b':] }}", MOE_INVALID, LINE "1: a slice needs integers, not 'str'" },
    { "{% for a, b in [1] %}{% endfor %}", MOE_INVALID, LINE "1: 'int' cannot be iterated over" },
    { "{% for a, b in [[1]] %}{% endfor %}", MOE_INVALID, LINE "1: 1 values for 2 names" },
    { "{% for a in 5 %}{% endfor %}", MOE_INVALID, LINE "1: 'int' cannot be iterated over" },
    { "{% set m.a = 1 %}", MOE_INVALID,
      LINE "1: cannot assign attribute on non-namespace object 'dict'" },
    { "{{ {[]: 1} }}", MOE_INVALID, LINE "1: 'list' cannot be a dict's key" },
    { "{{ range(1, 2, 0) }}", MOE_INVALID, LINE "1: 'range' with step 0" },
    { "{{ u|tojson }}", MOE_INVALID, LINE "1: 'Undefined' cannot be written as JSON" },
    { "{{ 5|length }}", MOE_INVALID, LINE "1: 'int' has no length" },
    { "{{ ''.split('') }}", MOE_INVALID, LINE "1: 'split' needs a separator that is not empty" },
    { "{{ 'a'.replace(1, 2) }}", MOE_INVALID, LINE "1: 'replace' needs a str, not 'int'" },
    { "{{ 'a'.replace('b') }}", MOE_INVALID, LINE "1: 'replace' needs the argument 'new'" },
    { "{{ 'a'|trim('b', 'c') }}", MOE_INVALID,
      LINE "1: 'trim' was given an argument it does not take" },
    { "{{ 'a'|trim('b', chars='c') }}", MOE_INVALID, LINE "1: 'trim' was given 'chars' twice" },
    { "{{ [].pop() }}", MOE_INVALID, LINE "1: 'pop' of an item that is not there" },
    { "{{ '{}'.format() }}", MOE_INVALID, LINE "1: 'format' has no value for the field '{}'" },
    { "{{ [1]|map('nope') }}", MOE_INVALID, LINE "1: 'map' names a filter that is not known" },
    { "{% macro f(a) %}{% endmacro %}{{ f(1, 2) }}", MOE_INVALID,
      LINE "1: macro 'f' takes 1 arguments" },
    { "{% macro f(a) %}{% endmacro %}{{ f(b=2) }}", MOE_INVALID,
      LINE "1: macro 'f' has no parameter 'b'" },
    { "{% macro f() %}{% endmacro %}{% call f() %}{% endcall %}", MOE_INVALID,
      LINE "1: macro 'f' has no parameter 'caller'" },
    { "{% macro f() %}{{ kwargs }}{% endmacro %}{% call f() %}{% endcall %}", MOE_INVALID,
      LINE "1: macro 'f' has no parameter 'caller'" },
    { "{% macro f() %}{{ caller() }}{% endmacro %}{{ f() }}", MOE_INVALID,
      LINE "1: 'caller' is undefined" },
    { "{% for i in [[]] %}{{ loop(i) }}{% endfor %}", MOE_INVALID,
      LINE "1: a loop that is not recursive is called" },
    { "{% for i in [[]] recursive %}{{ loop() }}{% endfor %}", MOE_INVALID,
      LINE "1: 'loop' takes the items to go on with" },
    { "{% for i in [1] %}{{ loop.cycle() }}{% endfor %}", MOE_INVALID,
      LINE "1: 'cycle' takes positional arguments, at least one" },
    { "{{ '%d' % 'a' }}", MOE_INVALID, LINE "1: %d needs a number, not 'str'" },
    { "{{ '%x' % 1.5 }}", MOE_INVALID, LINE "1: %x needs a number, not 'float'" },
    { "{{ '%s%s' % 'a' }}", MOE_INVALID, LINE "1: not enough arguments for the format" },
    { "{{ 'a' % 'a' }}", MOE_INVALID, LINE "1: more arguments than the format has places" },
    { "{{ '%(a)s' % 1 }}", MOE_INVALID, LINE "1: a format with names needs a dict, not 'int'" },
    { "{{ '%(a)s' % {} }}", MOE_INVALID, LINE "1: the format's 'a' is not given" },
    { "{{ '%(a' % {} }}", MOE_INVALID, LINE "1: a format that ends in its middle" },
    { "{{ '%5' % 1 }}", MOE_INVALID, LINE "1: a format that ends in its middle" },
    { "{{ '%y' % 1 }}", MOE_INVALID, LINE "1: a format with an unknown conversion" },
    { "{{ '%1001d' % 1 }}", MOE_INVALID, LINE "1: a format with a number beyond 1000" },
    { "{{ '%.*f' % (101, 1) }}", MOE_INVALID, LINE "1: a format with a number beyond 100" },
    { "{{ '%*d' % ('a', 1) }}", MOE_INVALID, LINE "1: a format's '*' needs an int" },
    { "{{ '%s'|format(1, a=2) }}", MOE_INVALID,
      LINE "1: 'format' takes positional or named arguments, not both" },
    { "{{ raise_exception('not like this') }}", MOE_INVALID, "not like this" },
    { "{% if m %}\n{{ raise_exception('role ' ~ 1) }}{% endif %}", MOE_INVALID, "role 1" }
};


static void errors(void **state)
{
    json_t *variables = json_pack("{s:{s:i}}", "m", "k", 1);

    for (size_t i = 0; i < sizeof(error_rows) / sizeof(error_rows[0]); i++) {
        const char *source = error_rows[i].template;
        moe_text_t out = { 0 };
        moe_error_t error;

        render(source, strlen(source), variables, NULL, NULL, &moe_template_default_limits, &out,
               &error);
        if (error.code != error_rows[i].code || strcmp(error.message, error_rows[i].message) != 0) {
            fail_msg("%s\n  expected %d %s\n  got %d %s", source, error_rows[i].code,
                     error_rows[i].message, error.code, error.message);
        }
        moe_text_free(&out);
    }
    json_decref(variables);
}


/* Each must end at a limit, in bounded time. */
static const char *const hostile_rows[] = {
    "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}",
    "{% macro f(x) %}{{ f(x ~ x) }}{% endmacro %}{{ f('ab') }}",
    "{% macro f() %}{% call f() %}x{% endcall %}{{ caller() }}{% endmacro %}"
    "{% call f() %}x{% endcall %}",
    "{% for i in [1] recursive %}{{ loop([1]) }}{% endfor %}",
    "{% for i in [1] recursive %}{{ loop([1, 1]) ~ loop([1, 1]) }}{% endfor %}",
    "{% for i in range(1000000) %}{{ '%1000.100f' % i }}{% endfor %}",
    "{{ range(10 ** 12) }}",
    "{{ range(0, 9223372036854775807) }}",
    "{% for i in range(9999) %}{% for j in range(9999) %}{% endfor %}{% endfor %}",
    "{% set ns = namespace(s='x') %}{% for i in range(99) %}{% set ns.s = ns.s + ns.s %}"
    "{% endfor %}",
    "{{ 'x' * 10 ** 12 }}",
    "{{ [1] * 10 ** 12 }}",
    "{{ [] * 10 ** 12 ~ [1, 2] * 10 ** 12 }}",
    "{% set s = 'a' * 1000000 %}{{ s.replace('a', s) }}",
    "{% set s = 'a' * 1000000 %}{{ s.replace('', s) }}",
    "{{ 'a'|indent(10 ** 12) }}",
    "{{ [1]|tojson(indent=10 ** 12) }}",
    "{% set l = [] %}{{ l.append(l) }}{{ l }}",
    "{% set l = [] %}{{ l.append(l) }}{{ l|tojson }}",
    "{% set l = [] %}{% set k = [] %}{{ l.append(k) }}{{ k.append(l) }}{{ l == k }}",
    "{% set ns = namespace(l=[1]) %}{% for i in range(60) %}{% set ns.l = [ns.l, ns.l] %}"
    "{% endfor %}{{ ns.l }}",
    "{% set s = 'é' * 100000 %}{% for i in range(100000) %}{{ s[-1] }}{% endfor %}",
    "{% set s = 'ab' * 100000 %}{% for i in range(100000) %}{{ s.find('zz') }}{% endfor %}",
    "{% set l = range(100000)|list %}{% for i in l %}{{ i in l }}{% endfor %}",
    "{{ ('[' * 1000 ~ ']' * 1000)|from_json }}",
    "{{ ('[],' * 1000000)|from_json }}",
    "{% for i in range(100) %}{{ 'x' * 1000000 }}{% endfor %}"
};


static void hostile_templates(void **state)
{
    for (size_t i = 0; i < sizeof(hostile_rows) / sizeof(hostile_rows[0]); i++) {
        clock_t start = clock();
        moe_text_t out = { 0 };
        moe_error_t error;

        render(hostile_rows[i], strlen(hostile_rows[i]), NULL, NULL, NULL,
               &moe_template_default_limits, &out, &error);
        if (error.code != MOE_LIMIT || clock() - start > 10 * CLOCKS_PER_SEC) {
            fail_msg("%s: %d %s", hostile_rows[i], error.code, error.message);
        }
        moe_text_free(&out);
    }
}


static void deep_sources(void **state)
{
    static const char *const parts[][3] = {
        { "(", "1", ")" }, { "[", "", "]" }, { "-", "1", "" }, { "not ", "1", "" },
        { "", "1", "+1" }, { "", "x", "|trim" }, { "", "x", "[0]" }, { "1 if ", "1", " else 2" },
        { "", "1", " and 1" }, { "{1: ", "1", "}" }, { "x(", "", ")" }, { "", "1", "**1" }
    };
    size_t room = 1 << 17;
    char *source = malloc(room);

    for (size_t i = 0; i < sizeof(parts) / sizeof(parts[0]); i++) {
        size_t size = (size_t) sprintf(source, "{{ ");
        moe_text_t out = { 0 };
        moe_error_t error;
        int code;

        for (int n = 0; n < 5000; n++) {
            size += (size_t) sprintf(source + size, "%s", parts[i][0]);
        }
        size += (size_t) sprintf(source + size, "%s", parts[i][1]);
        for (int n = 0; n < 5000; n++) {
            size += (size_t) sprintf(source + size, "%s", parts[i][2]);
        }
        size += (size_t) sprintf(source + size, " }}");
        assert_true(size < room);
        code = render(source, size, NULL, NULL, NULL, &moe_template_default_limits, &out, &error);
        if (code != MOE_LIMIT && code != MOE_BAD_MODEL) {
            fail_msg("%s%s%s: %d %s", parts[i][0], parts[i][1], parts[i][2], code, error.message);
        }
        moe_text_free(&out);
    }
    free(source);
}


static void limits_are_the_callers(void **state)
{
    static const struct {
        moe_template_limits_t limits;
        const char *message;
    } rows[] = {
        { { 20, 1 << 20, 1 << 20, 50 }, LINE "1: more than 20 steps needed" },
        { { 1 << 20, 1000, 1 << 20, 50 }, LINE "1: more than 1000 bytes of memory needed" },
        { { 1 << 20, 1 << 20, 10, 50 }, LINE "1: more than 10 bytes of output" },
        { { 1 << 20, 1 << 20, 1 << 20, 3 }, LINE "1: nested more than 3 levels deep" }
    };
    const char *source = "{% for i in range(20) %}{{ (i + 1) * 2 }},{% endfor %}";

    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        moe_text_t out = { 0 };
        moe_error_t error;

        assert_int_equal(render(source, strlen(source), NULL, NULL, NULL, &rows[i].limits, &out,
                                &error), MOE_LIMIT);
        assert_string_equal(error.message, rows[i].message);
        assert_true(out.bytes.size <= rows[i].limits.output);
        moe_text_free(&out);
    }
}


/* A template is read only: what one render does, the next does not see. */
static void renders_are_independent(void **state)
{
    const char *source = "{% set l = [1] %}{{ l.append(2) }}{{ l }}{{ d.update({'n': 1}) }}{{ d }}";
    json_t *variables = json_pack("{s:{}}", "d");
    moe_error_t error;
    moe_template_t *template = moe_template_parse(source, strlen(source), &error);
    moe_text_t out[2];

    memset(out, 0, sizeof(out));
    assert_non_null(template);
    for (size_t i = 0; i < 2; i++) {
        assert_int_equal(moe_template_render(template, variables, NULL, NULL, 0,
                                             &moe_template_default_limits, &out[i], &error), 0);
    }
    assert_int_equal(out[0].bytes.size, out[1].bytes.size);
    assert_memory_equal(out[0].bytes.data, out[1].bytes.data, out[0].bytes.size);
    moe_text_free(&out[0]);
    moe_text_free(&out[1]);
    moe_template_free(template);
    json_decref(variables);
}


int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(provenance),
        cmocka_unit_test(trusted_variables_win),
        cmocka_unit_test(errors),
        cmocka_unit_test(hostile_templates),
        cmocka_unit_test(deep_sources),
        cmocka_unit_test(limits_are_the_callers),
        cmocka_unit_test(renders_are_independent)
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
