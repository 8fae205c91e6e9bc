/*
 * Writes the models of reference.json: a config.json as published, and a model.safetensors whose
 * tensors are listed by name, type and shape.  A list of numbers in a name stands for as many
 * tensors: "layers.{0,2}.mlp" for two.
 *
 * A tensor's values follow from the model's seed and its full name, so that any program can make
 * them (reference.py does): center + width * random numbers in [-1, 1), splitmix64 from the FNV-1a
 * hash of "SEED NAME", then rounded to the type, or cut off for U8.
 */

#ifndef REFERENCE_MODEL_H
#define REFERENCE_MODEL_H

#include "t/unit/tiny_model.h"

#define REFERENCE_MODELS "t/golden/reference.json"


static inline uint64_t reference_hash(const char *text)
{
    uint64_t hash = 0xcbf29ce484222325u;

    for (; *text != '\0'; text++) {
        hash = (hash ^ (unsigned char) *text) * 0x100000001b3u;
    }
    return hash;
}


static inline void reference_bytes(tiny_files_t *files, size_t count, float center, float width)
{
    files->data = realloc(files->data, files->size + count);
    tiny_check(files->data != NULL, "realloc");
    for (size_t i = 0; i < count; i++) {
        files->data[files->size++] = (unsigned char) (center + width * tiny_random(files));
    }
}


static inline void reference_tensor(tiny_files_t *files, const json_t *entry, int seed,
                                    const char *name)
{
    const char *type = json_string_value(json_object_get(entry, "type"));
    const float center = (float) json_number_value(json_object_get(entry, "center"));
    const float width = (float) json_number_value(json_object_get(entry, "width"));
    const json_int_t begin = (json_int_t) files->size;
    json_t *shape = json_object_get(entry, "shape"), *size;
    size_t count = 1, i;
    char seeded[256];

    json_array_foreach(shape, i, size) {
        count *= (size_t) json_integer_value(size);
    }
    snprintf(seeded, sizeof(seeded), "%d %s", seed, name);
    files->random = reference_hash(seeded);
    if (strcmp(type, "U8") == 0) {
        reference_bytes(files, count, center, width);
    } else {
        tiny_append(files, type, count, center, width);
    }
    json_object_set_new(files->header, name,
                        json_pack("{s:s, s:O, s:[I, I]}", "dtype", type, "shape", shape,
                                  "data_offsets", begin, (json_int_t) files->size));
}


/* The entry's tensors, with one number after another for the first list in the name. */
static inline void reference_tensors(tiny_files_t *files, const json_t *entry, int seed,
                                     const char *name)
{
    const char *list = strchr(name, '{');
    const char *end = list != NULL ? strchr(list, '}') : NULL;
    char one[256], *next;

    if (end == NULL) {
        reference_tensor(files, entry, seed, name);
        return;
    }
    do {
        const unsigned long number = strtoul(list + 1, &next, 10);

        snprintf(one, sizeof(one), "%.*s%lu%s", (int) (strchr(name, '{') - name), name, number,
                 end + 1);
        reference_tensors(files, entry, seed, one);
        list = next;
    } while (list < end);
}


/* The model of a case of reference.json, with one of its configs; freed with tiny_model_free. */
static inline tiny_files_t reference_model_make(const json_t *test, const char *config)
{
    tiny_files_t files = {
        .config = json_deep_copy(json_object_get(test, config)), .header = json_object()
    };
    const int seed = (int) json_integer_value(json_object_get(test, "seed"));
    const json_t *entry;
    size_t i;

    json_array_foreach(json_object_get(test, "tensors"), i, entry) {
        reference_tensors(&files, entry, seed, json_string_value(json_object_get(entry, "name")));
    }
    return files;
}

#endif
