/* A chat template and, after a NUL, its variables as JSON: rendering ends within its limits. */

#include "engine/text/template.h"
#include "t/fuzz/fuzz.h"

#define VARIABLES                                                                           \
    "{\"messages\":[{\"role\":\"system\",\"content\":\"Be brief.\"},"                       \
    "{\"role\":\"user\",\"content\":\"a <b> \xc3\xa9\"},{\"role\":\"assistant\","           \
    "\"content\":null,\"tool_calls\":[{\"function\":{\"name\":\"f\",\"arguments\":{}}}]}]," \
    "\"add_generation_prompt\":true,\"n\":3,\"x\":-2.5,\"tools\":[]}"

static const moe_template_limits_t limits = {
    .steps = 20000, .memory = 4 << 20, .output = 1 << 20, .depth = 100
};

static json_t *trusted;


int LLVMFuzzerInitialize(int *argc, char ***argv)
{
    trusted = json_pack("{s:s, s:s}", "bos_token", "<s>", "eos_token", "</s>");
    fuzz_check(trusted != NULL);
    return 0;
}


static json_t *read_variables(fuzz_input_t input)
{
    json_t *json = input.size ? json_loadb(input.data, input.size, 0, NULL) : NULL;

    if (!json_is_object(json)) {
        json_decref(json);
        json = json_loads(VARIABLES, 0, NULL);
    }
    fuzz_check(json != NULL);
    return json;
}


static void render(const moe_template_t *template, const json_t *variables)
{
    moe_text_t out = { 0 };
    moe_error_t error;

    if (moe_template_render(template, variables, trusted, NULL, 1700000000, &limits, &out, &error)
        == -1)
    {
        fuzz_check(error.code == MOE_INVALID || error.code == MOE_LIMIT);
        fuzz_check(strlen(error.message) > 0);
    }
    fuzz_check(out.bytes.size <= limits.output);
    for (size_t i = 0; i < out.n_trusted; i++) {
        fuzz_check(out.trusted[i].start < out.trusted[i].end);
        fuzz_check(out.trusted[i].end <= out.bytes.size);
        fuzz_check(i == 0 || out.trusted[i - 1].end < out.trusted[i].start);
    }
    moe_text_free(&out);
}


int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    fuzz_input_t input = { (const char *) data, size }, source = fuzz_part(&input);
    moe_error_t error;
    moe_template_t *template = moe_template_parse(source.data, source.size, &error);
    json_t *variables;

    if (template == NULL) {
        fuzz_check(error.code == MOE_BAD_MODEL || error.code == MOE_LIMIT);
        return 0;
    }
    variables = read_variables(input);
    render(template, variables);
    json_decref(variables);
    moe_template_free(template);
    return 0;
}
