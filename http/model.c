
/*
 * A moe_model block is a list of settings; one table gives for each its
 * kind, place and range.
 */


#include "ngx_http_moe_module.h"
#include "engine/core/model_path.h"
#include "http/json_text.h"
#include "http/model.h"


typedef enum {
    NGX_HTTP_MOE_NUMBER = 0,
    NGX_HTTP_MOE_SIZE,
    NGX_HTTP_MOE_TIME
} ngx_http_moe_setting_e;


typedef struct {
    ngx_str_t                 name;
    char                     *engine_name;    /* in the engine's settings */
    ngx_http_moe_setting_e    kind;
    off_t                     lowest;
    off_t                     highest;
    size_t                    offset;
} ngx_http_moe_setting_t;


typedef struct {
    ngx_str_t                 name;           /* in the engine's settings, too */
    char                     *words[11];
    char                     *list;           /* for messages */
    size_t                    offset;         /* of an ngx_str_t */
} ngx_http_moe_word_t;


typedef struct {
    off_t                     size;
    char                     *name;
} ngx_http_moe_unit_t;


static char *ngx_http_moe_model_setting(ngx_conf_t *cf, ngx_command_t *cmd,
    void *conf);
static char *ngx_http_moe_model_duplicate(ngx_conf_t *cf,
    ngx_http_moe_model_t *model);
static char *ngx_http_moe_model_device(ngx_conf_t *cf,
    ngx_http_moe_model_t *model);
static char *ngx_http_moe_model_word(ngx_conf_t *cf,
    ngx_http_moe_model_t *model, ngx_http_moe_word_t *word);
static char *ngx_http_moe_model_template(ngx_conf_t *cf,
    ngx_http_moe_model_t *model);
static char *ngx_http_moe_model_alias(ngx_conf_t *cf,
    ngx_http_moe_model_t *model);
static ngx_int_t ngx_http_moe_model_value(ngx_http_moe_setting_e kind,
    ngx_str_t *value, off_t *result);
static void ngx_http_moe_model_bound(ngx_http_moe_setting_e kind,
    off_t bound, ngx_str_t *text);
static ngx_int_t ngx_http_moe_model_name(ngx_conf_t *cf, ngx_str_t *name);
static ngx_int_t ngx_http_moe_model_ranks(ngx_conf_t *cf,
    ngx_http_moe_model_t *model);
static ngx_int_t ngx_http_moe_model_parsers(ngx_conf_t *cf,
    ngx_http_moe_model_t *model);
static ngx_int_t ngx_http_moe_model_files(ngx_conf_t *cf,
    ngx_http_moe_model_t *model);


/* of the settings that the module goes by itself */
#define NGX_HTTP_MOE_BATCH_SEQUENCES  64
#define NGX_HTTP_MOE_QUEUE            256
#define NGX_HTTP_MOE_QUEUE_TIMEOUT    60000   /* ms */


#define ngx_http_moe_offset(field)  offsetof(ngx_http_moe_model_t, field)


static ngx_http_moe_setting_t  ngx_http_moe_settings[] = {

    { ngx_string("threads"), "threads",
      NGX_HTTP_MOE_NUMBER, 1, 1024,
      ngx_http_moe_offset(threads) },

    { ngx_string("ranks"), "ranks",
      NGX_HTTP_MOE_NUMBER, 1, 1024,
      ngx_http_moe_offset(ranks) },

    { ngx_string("tensor_parallel"), "tensor_parallel",
      NGX_HTTP_MOE_NUMBER, 1, 1024,
      ngx_http_moe_offset(tensor_parallel) },

    { ngx_string("redundant_experts"), "redundant_experts",
      NGX_HTTP_MOE_NUMBER, 0, 65536,
      ngx_http_moe_offset(redundant_experts) },

    { ngx_string("peer_timeout"), "peer_timeout_ms",
      NGX_HTTP_MOE_TIME, 10, 3600000,
      ngx_http_moe_offset(peer_timeout) },

    { ngx_string("context"), "context",
      NGX_HTTP_MOE_NUMBER, 2, 1 << 24,
      ngx_http_moe_offset(context) },

    { ngx_string("kv_cache"), "kv_cache",
      NGX_HTTP_MOE_SIZE, 65536, (off_t) 1 << 46,
      ngx_http_moe_offset(kv_cache) },

    { ngx_string("batch_tokens"), "batch_tokens",
      NGX_HTTP_MOE_NUMBER, 1, 1 << 20,
      ngx_http_moe_offset(batch_tokens) },

    { ngx_string("batch_sequences"), "batch_sequences",
      NGX_HTTP_MOE_NUMBER, 1, 65536,
      ngx_http_moe_offset(batch_sequences) },

    { ngx_string("batch_delay"), "batch_delay_ms",
      NGX_HTTP_MOE_TIME, 0, 600000,
      ngx_http_moe_offset(batch_delay) },

    { ngx_string("step_time"), "step_time_ms",
      NGX_HTTP_MOE_TIME, 1, 600000,
      ngx_http_moe_offset(step_time) },

    { ngx_string("queue"), "queue",
      NGX_HTTP_MOE_NUMBER, 1, 1 << 20,
      ngx_http_moe_offset(queue) },

    { ngx_string("queue_timeout"), "queue_timeout_ms",
      NGX_HTTP_MOE_TIME, 1, 86400000,
      ngx_http_moe_offset(queue_timeout) },

    { ngx_null_string, NULL, NGX_HTTP_MOE_NUMBER, 0, 0, 0 }
};


/* settings that are one of some words */

static ngx_http_moe_word_t  ngx_http_moe_words[] = {

    { ngx_string("kv_type"),
      { "bf16", "f32", "q8_0", NULL }, "\"bf16\", \"f32\" or \"q8_0\"",
      ngx_http_moe_offset(kv_type) },

    { ngx_string("exchange"),
      { "f32", "bf16", "int8", "fp8", NULL },
      "\"f32\", \"bf16\", \"int8\" or \"fp8\"",
      ngx_http_moe_offset(exchange) },

    { ngx_string("overlap"),
      { "off", "shared", "two_batch", NULL },
      "\"off\", \"shared\" or \"two_batch\"",
      ngx_http_moe_offset(overlap) },

    { ngx_string("prefix_cache"),
      { "on", "off", NULL }, "\"on\" or \"off\"",
      ngx_http_moe_offset(prefix_cache) },

    { ngx_string("tool_parser"),
      { "deepseek", "glm", "harmony", "hermes", "hy3", "kimi", "minimax",
        "mistral", "qwen3_coder", "none", NULL },
      "\"deepseek\", \"glm\", \"harmony\", \"hermes\", \"hy3\", "
      "\"kimi\", \"minimax\", \"mistral\", \"qwen3_coder\" or \"none\"",
      ngx_http_moe_offset(tool_parser) },

    { ngx_string("reasoning_parser"),
      { "harmony", "think", "none", NULL },
      "\"harmony\", \"think\" or \"none\"",
      ngx_http_moe_offset(reasoning_parser) },

    { ngx_null_string, { NULL }, NULL, 0 }
};


/* by ngx_http_moe_setting_e; the last of each divides everything */

static const ngx_http_moe_unit_t  ngx_http_moe_units[][5] = {
    { { 1, "" } },
    { { 1 << 30, "g" }, { 1 << 20, "m" }, { 1 << 10, "k" }, { 1, "" } },
    { { 86400000, "d" }, { 3600000, "h" }, { 60000, "m" }, { 1000, "s" },
      { 1, "ms" } }
};


char *
ngx_http_moe_model_block(ngx_conf_t *cf, ngx_command_t *cmd, void *conf)
{
    ngx_http_moe_main_conf_t  *mcf = conf;

    char                   *rv;
    ngx_str_t              *value;
    ngx_conf_t              save;
    ngx_http_moe_model_t   *model, *other, **slot;

    value = cf->args->elts;

    if (ngx_http_moe_model_name(cf, &value[1]) != NGX_OK) {
        return NGX_CONF_ERROR;
    }

    other = ngx_http_moe_find_model(mcf, &value[1]);
    if (other) {
        ngx_conf_log_error(NGX_LOG_EMERG, cf, 0,
                           "duplicate model name \"%V\", see %V:%ui",
                           &value[1], &other->place.file, other->place.line);
        return NGX_CONF_ERROR;
    }

    model = ngx_pcalloc(cf->pool, sizeof(ngx_http_moe_model_t));
    if (model == NULL) {
        return NGX_CONF_ERROR;
    }

    model->name = value[1];
    model->path = value[2];
    model->place.file = cf->conf_file->file.name;
    model->place.line = cf->conf_file->line;

    if (ngx_array_init(&model->aliases, cf->pool, 2, sizeof(ngx_str_t))
        != NGX_OK)
    {
        return NGX_CONF_ERROR;
    }

    if (ngx_http_moe_model_files(cf, model) != NGX_OK) {
        return NGX_CONF_ERROR;
    }

    slot = ngx_array_push(&mcf->models);
    if (slot == NULL) {
        return NGX_CONF_ERROR;
    }

    *slot = model;

    save = *cf;
    cf->handler = ngx_http_moe_model_setting;
    cf->handler_conf = (char *) model;

    rv = ngx_conf_parse(cf, NULL);

    *cf = save;

    if (rv == NGX_CONF_OK
        && (ngx_http_moe_model_ranks(cf, model) != NGX_OK
            || ngx_http_moe_model_parsers(cf, model) != NGX_OK))
    {
        return NGX_CONF_ERROR;
    }

    if (model->device.len == 0) {
        ngx_str_set(&model->device, "cpu");
    }

    if (model->batch_sequences == 0) {
        model->batch_sequences = NGX_HTTP_MOE_BATCH_SEQUENCES;
    }

    if (model->queue == 0) {
        model->queue = NGX_HTTP_MOE_QUEUE;
    }

    if (model->queue_timeout == 0) {
        model->queue_timeout = NGX_HTTP_MOE_QUEUE_TIMEOUT;
    }

    return rv;
}


/* The channels of harmony are both: who reads the one so reads the other. */

static ngx_int_t
ngx_http_moe_model_parsers(ngx_conf_t *cf, ngx_http_moe_model_t *model)
{
    ngx_uint_t   tools, reasoning;
    ngx_str_t   *first, *second;

    first = &model->tool_parser;
    second = &model->reasoning_parser;

    if (first->len == 0 || ngx_strcmp(first->data, "none") == 0
        || second->len == 0 || ngx_strcmp(second->data, "none") == 0)
    {
        return NGX_OK;
    }

    tools = (ngx_strcmp(first->data, "harmony") == 0);
    reasoning = (ngx_strcmp(second->data, "harmony") == 0);

    if (tools == reasoning) {
        return NGX_OK;
    }

    ngx_conf_log_error(NGX_LOG_EMERG, cf, 0,
                       "\"tool_parser %V\" of model \"%V\" does not go with "
                       "\"reasoning_parser %V\"", first, &model->name, second);

    return NGX_ERROR;
}


/* The engine checks it again: it may run on fewer processors than there are. */

static ngx_int_t
ngx_http_moe_model_ranks(ngx_conf_t *cf, ngx_http_moe_model_t *model)
{
    off_t  threads, ranks;

    threads = model->threads ? model->threads : (off_t) ngx_ncpu;
    ranks = model->ranks ? model->ranks : 1;

    if (model->tensor_parallel && ranks % model->tensor_parallel) {
        ngx_conf_log_error(NGX_LOG_EMERG, cf, 0,
                           "\"tensor_parallel\" of model \"%V\" is %O, which "
                           "does not divide its \"ranks\": %O",
                           &model->name, model->tensor_parallel, ranks);
        return NGX_ERROR;
    }

    if (model->ranks > threads) {
        ngx_conf_log_error(NGX_LOG_EMERG, cf, 0,
                           "\"ranks\" of model \"%V\" is %O, but \"threads\" is "
                           "%O: each rank needs a thread",
                           &model->name, model->ranks, threads);
        return NGX_ERROR;
    }

    if (model->redundant_experts && ranks == 1) {
        ngx_conf_log_error(NGX_LOG_EMERG, cf, 0,
                           "\"redundant_experts\" of model \"%V\" is %O, but "
                           "there is one rank only: see \"ranks\"",
                           &model->name, model->redundant_experts);
        return NGX_ERROR;
    }

    return NGX_OK;
}


ngx_uint_t
ngx_http_moe_model_most(ngx_http_moe_model_t *model)
{
    off_t  running;

    running = model->batch_sequences;

    if (model->batch_tokens) {
        running = ngx_min(running, model->batch_tokens);
    }

    return running + model->queue;
}


static char *
ngx_http_moe_model_setting(ngx_conf_t *cf, ngx_command_t *cmd, void *conf)
{
    ngx_http_moe_model_t  *model = conf;

    off_t                    *field, number;
    u_char                    text[2][NGX_OFF_T_LEN + 2];
    ngx_str_t                *value, lowest, highest;
    ngx_http_moe_setting_t   *setting;
    ngx_http_moe_word_t      *word;

    value = cf->args->elts;

    if (ngx_strcmp(value[0].data, "alias") == 0) {
        return ngx_http_moe_model_alias(cf, model);
    }

    if (cf->args->nelts != 2) {
        ngx_conf_log_error(NGX_LOG_EMERG, cf, 0,
                           "invalid number of arguments in \"%V\" of model "
                           "\"%V\"", &value[0], &model->name);
        return NGX_CONF_ERROR;
    }

    if (ngx_strcmp(value[0].data, "device") == 0) {
        return ngx_http_moe_model_device(cf, model);
    }

    if (ngx_strcmp(value[0].data, "chat_template") == 0) {
        return ngx_http_moe_model_template(cf, model);
    }

    for (word = ngx_http_moe_words; word->name.len; word++) {
        if (ngx_strcmp(value[0].data, word->name.data) == 0) {
            return ngx_http_moe_model_word(cf, model, word);
        }
    }

    for (setting = ngx_http_moe_settings; setting->name.len; setting++) {
        if (ngx_strcmp(value[0].data, setting->name.data) == 0) {
            break;
        }
    }

    if (setting->name.len == 0) {
        ngx_conf_log_error(NGX_LOG_EMERG, cf, 0,
                           "unknown setting \"%V\" of model \"%V\"",
                           &value[0], &model->name);
        return NGX_CONF_ERROR;
    }

    field = (off_t *) ((char *) model + setting->offset);

    if (*field) {
        return ngx_http_moe_model_duplicate(cf, model);
    }

    if (ngx_http_moe_model_value(setting->kind, &value[1], &number) != NGX_OK
        || number < setting->lowest || number > setting->highest)
    {
        lowest.data = text[0];
        highest.data = text[1];

        ngx_http_moe_model_bound(setting->kind, setting->lowest, &lowest);
        ngx_http_moe_model_bound(setting->kind, setting->highest, &highest);

        ngx_conf_log_error(NGX_LOG_EMERG, cf, 0,
                           "invalid value \"%V\" of \"%V\" of model \"%V\": "
                           "it must be between %V and %V",
                           &value[1], &value[0], &model->name,
                           &lowest, &highest);
        return NGX_CONF_ERROR;
    }

    *field = number;

    return NGX_CONF_OK;
}


static char *
ngx_http_moe_model_duplicate(ngx_conf_t *cf, ngx_http_moe_model_t *model)
{
    ngx_str_t  *value;

    value = cf->args->elts;

    ngx_conf_log_error(NGX_LOG_EMERG, cf, 0,
                       "duplicate setting \"%V\" of model \"%V\"",
                       &value[0], &model->name);

    return NGX_CONF_ERROR;
}


static char *
ngx_http_moe_model_device(ngx_conf_t *cf, ngx_http_moe_model_t *model)
{
    ngx_str_t  *value;

    if (model->device.len) {
        return ngx_http_moe_model_duplicate(cf, model);
    }

    value = cf->args->elts;

    if (ngx_strcmp(value[1].data, "cpu") != 0) {
        ngx_conf_log_error(NGX_LOG_EMERG, cf, 0,
                           "unknown device \"%V\" of model \"%V\"",
                           &value[1], &model->name);
        return NGX_CONF_ERROR;
    }

    model->device = value[1];

    return NGX_CONF_OK;
}


static char *
ngx_http_moe_model_word(ngx_conf_t *cf, ngx_http_moe_model_t *model,
    ngx_http_moe_word_t *word)
{
    char       **one;
    ngx_str_t   *value, *field;

    value = cf->args->elts;
    field = (ngx_str_t *) ((char *) model + word->offset);

    if (field->len) {
        return ngx_http_moe_model_duplicate(cf, model);
    }

    for (one = word->words; *one; one++) {
        if (ngx_strcmp(value[1].data, *one) == 0) {
            *field = value[1];
            return NGX_CONF_OK;
        }
    }

    ngx_conf_log_error(NGX_LOG_EMERG, cf, 0,
                       "invalid value \"%V\" of \"%V\" of model \"%V\": "
                       "it must be %s", &value[1], &value[0], &model->name,
                       word->list);

    return NGX_CONF_ERROR;
}


/* The engine reads it; here it is seen to be there. */

static char *
ngx_http_moe_model_template(ngx_conf_t *cf, ngx_http_moe_model_t *model)
{
    ngx_str_t        *value, *file;
    ngx_file_info_t   info;

    file = &model->chat_template;

    if (file->len) {
        return ngx_http_moe_model_duplicate(cf, model);
    }

    value = cf->args->elts;
    *file = value[1];

    if (ngx_conf_full_name(cf->cycle, file, 1) != NGX_OK) {
        return NGX_CONF_ERROR;
    }

    if (ngx_file_info(file->data, &info) == NGX_FILE_ERROR) {
        ngx_conf_log_error(NGX_LOG_EMERG, cf, ngx_errno,
                           "\"chat_template\" of model \"%V\": "
                           ngx_file_info_n " \"%V\" failed",
                           &model->name, file);
        return NGX_CONF_ERROR;
    }

    if (!ngx_is_file(&info)) {
        ngx_conf_log_error(NGX_LOG_EMERG, cf, 0,
                           "\"chat_template\" of model \"%V\": \"%V\" is not "
                           "a file", &model->name, file);
        return NGX_CONF_ERROR;
    }

    model->template_time = ngx_file_mtime(&info);
    model->template_size = ngx_file_size(&info);

    return NGX_CONF_OK;
}


static char *
ngx_http_moe_model_alias(ngx_conf_t *cf, ngx_http_moe_model_t *model)
{
    ngx_str_t                 *value, *alias;
    ngx_uint_t                 i;
    ngx_http_moe_model_t      *other;
    ngx_http_moe_main_conf_t  *mcf;

    mcf = ngx_http_conf_get_module_main_conf(cf, ngx_http_moe_module);
    value = cf->args->elts;

    if (cf->args->nelts < 2) {
        ngx_conf_log_error(NGX_LOG_EMERG, cf, 0,
                           "no name in \"alias\" of model \"%V\"",
                           &model->name);
        return NGX_CONF_ERROR;
    }

    for (i = 1; i < cf->args->nelts; i++) {

        if (ngx_http_moe_model_name(cf, &value[i]) != NGX_OK) {
            return NGX_CONF_ERROR;
        }

        other = ngx_http_moe_find_model(mcf, &value[i]);

        if (other) {
            ngx_conf_log_error(NGX_LOG_EMERG, cf, 0,
                               "duplicate alias \"%V\" of model \"%V\", "
                               "see %V:%ui", &value[i], &model->name,
                               &other->place.file, other->place.line);
            return NGX_CONF_ERROR;
        }

        alias = ngx_array_push(&model->aliases);
        if (alias == NULL) {
            return NGX_CONF_ERROR;
        }

        *alias = value[i];
    }

    return NGX_CONF_OK;
}


static ngx_int_t
ngx_http_moe_model_value(ngx_http_moe_setting_e kind, ngx_str_t *value,
    off_t *result)
{
    switch (kind) {

    case NGX_HTTP_MOE_SIZE:
        *result = ngx_parse_offset(value);
        break;

    case NGX_HTTP_MOE_TIME:
        *result = ngx_parse_time(value, 0);
        break;

    default: /* NGX_HTTP_MOE_NUMBER */
        *result = ngx_atoof(value->data, value->len);
    }

    return (*result == NGX_ERROR) ? NGX_ERROR : NGX_OK;
}


/* A bound as one would write it: in the largest unit that divides it. */

static void
ngx_http_moe_model_bound(ngx_http_moe_setting_e kind, off_t bound,
    ngx_str_t *text)
{
    const ngx_http_moe_unit_t  *unit;

    unit = ngx_http_moe_units[kind];

    while (bound < unit->size || bound % unit->size) {

        if (unit->size == 1) {
            break;
        }

        unit++;
    }

    text->len = ngx_sprintf(text->data, "%O%s", bound / unit->size, unit->name)
                - text->data;
}


/*
 * Names go into URIs, labels of metrics and process titles: a plain set of
 * characters saves every one of them an escape.
 */

static ngx_int_t
ngx_http_moe_model_name(ngx_conf_t *cf, ngx_str_t *name)
{
    u_char      ch;
    ngx_uint_t  i;

    for (i = 0; i < name->len; i++) {
        ch = name->data[i];

        if ((ch >= 'a' && ch <= 'z') || (ch >= 'A' && ch <= 'Z')
            || (ch >= '0' && ch <= '9') || ch == '-' || ch == '_'
            || ch == '.' || ch == ':' || ch == '/' || ch == '@' || ch == '+')
        {
            continue;
        }

        break;
    }

    if (name->len == 0 || name->len > 128 || i < name->len
        || ngx_strcmp(name->data, "any") == 0)
    {
        ngx_conf_log_error(NGX_LOG_EMERG, cf, 0,
                           "invalid model name \"%V\"", name);
        return NGX_ERROR;
    }

    return NGX_OK;
}


/* From here on the path of a GGUF model is that of its file. */

static ngx_int_t
ngx_http_moe_model_files(ngx_conf_t *cf, ngx_http_moe_model_t *model)
{
    u_char           *p, file[NGX_MAX_PATH];
    ngx_str_t         config;
    moe_error_t       error;
    ngx_file_info_t   info;

    if (ngx_conf_full_name(cf->cycle, &model->path, 0) != NGX_OK) {
        return NGX_ERROR;
    }

    switch (moe_model_path((char *) model->path.data, (char *) file,
                           NGX_MAX_PATH, &error))
    {
    case MOE_PATH_GGUF:
        model->path.len = ngx_strlen(file);
        model->path.data = ngx_pnalloc(cf->pool, model->path.len + 1);
        if (model->path.data == NULL) {
            return NGX_ERROR;
        }

        ngx_memcpy(model->path.data, file, model->path.len + 1);
        return NGX_OK;

    case MOE_PATH_DIRECTORY:
        break;

    default:
        ngx_conf_log_error(NGX_LOG_EMERG, cf, 0, "model \"%V\": %s",
                           &model->name, error.message);
        return NGX_ERROR;
    }

    config.len = model->path.len + sizeof("/config.json") - 1;
    config.data = ngx_pnalloc(cf->temp_pool, config.len + 1);
    if (config.data == NULL) {
        return NGX_ERROR;
    }

    p = ngx_cpymem(config.data, model->path.data, model->path.len);
    ngx_memcpy(p, "/config.json", sizeof("/config.json"));

    if (ngx_file_info(config.data, &info) == NGX_FILE_ERROR) {
        ngx_conf_log_error(NGX_LOG_EMERG, cf, ngx_errno,
                           "model \"%V\": neither \"%V\" nor a .gguf file",
                           &model->name, &config);
        return NGX_ERROR;
    }

    return NGX_OK;
}


void
ngx_http_moe_model_settings(ngx_http_moe_text_t *text,
    ngx_http_moe_model_t *model)
{
    off_t        number;
    ngx_str_t   *word;
    ngx_uint_t   i;

    ngx_http_moe_text_literal(text, "\"name\":");
    ngx_http_moe_text_string(text, (char *) model->name.data, model->name.len);
    ngx_http_moe_text_literal(text, ",\"model\":");
    ngx_http_moe_text_string(text, (char *) model->path.data, model->path.len);

    if (model->chat_template.len) {
        ngx_http_moe_text_literal(text, ",\"chat_template\":");
        ngx_http_moe_text_string(text, (char *) model->chat_template.data,
                                 model->chat_template.len);

        /* a file that has changed is another one */

        ngx_http_moe_text_format(text, ",\"chat_template_version\":"
                                 "\"%lld-%lld\"",
                                 (long long) model->template_time,
                                 (long long) model->template_size);
    }

    for (i = 0; ngx_http_moe_settings[i].name.len; i++) {
        number = *(off_t *) ((char *) model + ngx_http_moe_settings[i].offset);

        if (number) {
            ngx_http_moe_text_format(text, ",\"%s\":%lld",
                                     ngx_http_moe_settings[i].engine_name,
                                     (long long) number);
        }
    }

    for (i = 0; ngx_http_moe_words[i].name.len; i++) {
        word = (ngx_str_t *) ((char *) model
                              + ngx_http_moe_words[i].offset);

        if (word->len) {
            ngx_http_moe_text_format(text, ",\"%s\":\"%s\"",
                                     ngx_http_moe_words[i].name.data,
                                     word->data);
        }
    }
}
