/* Weights into panels of 16 rows (kernels/cpu/kernels.h). */

#ifndef MOE_CPU_PACK_H
#define MOE_CPU_PACK_H

#include "engine/device/device.h"
#include "kernels/cpu/kernels.h"

struct moe_matrix_s {
    uint32_t count, rows, columns;
    moe_element_t element;
    size_t panels;                  /* of one matrix */
    size_t bias;                    /* of a matrix: bytes from its panels to its bias, a float for
                                     * each of their rows; 0: none */
    size_t stride;                  /* bytes between matrices */
    char *data;
};

/* What the sources are packed as: plain types without loss, block formats rounded to bf16. */
moe_element_t moe_pack_element(const moe_source_t *sources, uint32_t count);
size_t moe_pack_element_size(moe_element_t element);

/* Fills the panels and biases of a matrix whose fields are set; its memory is zero. */
void moe_pack(moe_pool_t *pool, const moe_matrix_t *matrix, const moe_source_t *sources);

#endif
