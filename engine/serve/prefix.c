/*
 * A chain keeps its own digest context, made when the sequence is prepared: extending it while the
 * sequence runs reuses the context and allocates nothing.
 *
 * Equal digests at one index mean equal digests before it, so the common part of two chains is
 * found by bisection.
 */

#include "engine/serve/prefix.h"

#include <openssl/evp.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>

#include "engine/forward.h"


/* Two parts, the first of a fixed size: what they are cannot be mistaken. */
static int digest(EVP_MD_CTX *hash, const moe_digest_t *first, const void *rest, size_t size,
                  moe_digest_t *result)
{
    return EVP_DigestInit_ex(hash, NULL, NULL) == 1
           && EVP_DigestUpdate(hash, first->bytes, sizeof(first->bytes)) == 1
           && EVP_DigestUpdate(hash, rest, size) == 1
           && EVP_DigestFinal_ex(hash, result->bytes, NULL) == 1;
}


static EVP_MD_CTX *new_hash(moe_error_t *error)
{
    EVP_MD_CTX *hash = EVP_MD_CTX_new();

    if (hash == NULL || EVP_DigestInit_ex(hash, EVP_sha256(), NULL) != 1) {
        EVP_MD_CTX_free(hash);
        moe_fail(error, MOE_SYSTEM, "OpenSSL gives no SHA-256");
        return NULL;
    }
    return hash;
}


int moe_prefix_key_init(moe_prefix_key_t *key, const char *model, const char *kv_type,
                        moe_error_t *error)
{
    EVP_MD_CTX *hash;
    moe_digest_t drawn;
    int made;

    if (getrandom(drawn.bytes, sizeof(drawn.bytes), 0) != sizeof(drawn.bytes)) {
        return moe_fail(error, MOE_SYSTEM, "getrandom() failed");
    }
    hash = new_hash(error);
    if (hash == NULL) {
        return -1;
    }
    made = digest(hash, &drawn, model, strlen(model), &key->secret)
           && digest(hash, &key->secret, kv_type, strlen(kv_type), &key->secret);
    EVP_MD_CTX_free(hash);
    return made ? 0 : moe_fail(error, MOE_SYSTEM, "SHA-256 failed");
}


int moe_chain_init(moe_chain_t *chain, const moe_prefix_key_t *key, moe_string_t salt,
                   uint32_t tokens, moe_error_t *error)
{
    uint32_t blocks = tokens / MOE_BLOCK_TOKENS;

    memset(chain, 0, sizeof(*chain));
    chain->hash = new_hash(error);
    if (chain->hash == NULL) {
        return -1;
    }
    if (!digest(chain->hash, &key->secret, salt.data, salt.size, &chain->root)) {
        return moe_fail(error, MOE_SYSTEM, "SHA-256 failed");
    }
    chain->digests = malloc(((size_t) blocks + 1) * sizeof(moe_digest_t));
    if (chain->digests == NULL) {
        return moe_fail(error, MOE_LIMIT, "out of memory for the digests of %u blocks", blocks);
    }
    chain->capacity = blocks;
    return 0;
}


void moe_chain_free(moe_chain_t *chain)
{
    EVP_MD_CTX_free(chain->hash);
    free(chain->digests);
    memset(chain, 0, sizeof(*chain));
}


void moe_chain_extend(moe_chain_t *chain, const uint32_t *tokens, uint32_t n_tokens)
{
    uint32_t blocks = n_tokens / MOE_BLOCK_TOKENS;

    if (blocks > chain->capacity) {
        blocks = chain->capacity;
    }
    while (chain->count < blocks
           && digest(chain->hash, moe_chain_before(chain, chain->count),
                     tokens + (size_t) chain->count * MOE_BLOCK_TOKENS,
                     MOE_BLOCK_TOKENS * sizeof(uint32_t), &chain->digests[chain->count]))
    {
        chain->count++;
    }
}


const moe_digest_t *moe_chain_before(const moe_chain_t *chain, uint32_t index)
{
    return index ? &chain->digests[index - 1] : &chain->root;
}


uint32_t moe_chain_common(const moe_chain_t *a, const moe_chain_t *b)
{
    uint32_t common = 0, end = a->count < b->count ? a->count : b->count;

    /* The first `common` blocks are equal, those from `end` on are not. */
    while (common < end) {
        uint32_t middle = common + (end - common) / 2;

        if (memcmp(&a->digests[middle], &b->digests[middle], sizeof(moe_digest_t)) == 0) {
            common = middle + 1;
        } else {
            end = middle;
        }
    }
    return common;
}
