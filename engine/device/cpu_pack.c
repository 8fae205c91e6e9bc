/*
 * Packing turns [row][column] into [panel][column][16 rows].  A work item is one panel; it goes
 * through its columns in strips, so that the 16 rows read and the strip written stay in the cache.
 */

#include "engine/device/cpu_pack.h"

#include "kernels/cpu/vector.h"

#define STRIP 64u

typedef struct {
    const moe_matrix_t *matrix;
    const moe_source_t *sources;
} pack_job_t;


static moe_element_t element_of(moe_dtype_t dtype)
{
    return dtype == MOE_BF16 ? MOE_ELEMENT_BF16
           : dtype == MOE_F16 ? MOE_ELEMENT_F16
                              : MOE_ELEMENT_F32;
}


moe_element_t moe_pack_element(const moe_source_t *sources, uint32_t count)
{
    for (uint32_t i = 1; i < count; i++) {
        if (sources[i].dtype != sources[0].dtype) {
            return MOE_ELEMENT_F32;
        }
    }
    return element_of(sources[0].dtype);
}


size_t moe_pack_element_size(moe_element_t element)
{
    return element == MOE_ELEMENT_F32 ? sizeof(float) : sizeof(uint16_t);
}


static float widen(const moe_source_t *source, size_t index)
{
    switch (source->dtype) {
    case MOE_BF16:
        return f32_from_bf16(((const uint16_t *) source->data)[index]);
    case MOE_F16:
        return f32_from_f16(((const uint16_t *) source->data)[index]);
    default:
        return ((const float *) source->data)[index];
    }
}


/* Columns [first, last) of a panel whose row 0 is `row` of the source; `rows` of 16 exist. */
static void pack_strip(const moe_source_t *source, moe_element_t element, size_t row, size_t rows,
                       size_t first, size_t last, void *panel)
{
    for (size_t r = 0; r < rows; r++) {
        const size_t start = (row + r) * source->row_stride;

        for (size_t c = first; c < last; c++) {
            const size_t from = start + c * source->column_stride, to = c * MOE_PANEL + r;

            if (element != MOE_ELEMENT_F32) {
                ((uint16_t *) panel)[to] = ((const uint16_t *) source->data)[from];
            } else {
                ((float *) panel)[to] = widen(source, from);
            }
        }
    }
}


static void pack_panels(void *context, size_t first, size_t last, unsigned thread)
{
    const pack_job_t *job = context;
    const moe_matrix_t *m = job->matrix;

    for (size_t i = first; i < last; i++) {
        const size_t index = i / m->panels, panel = i % m->panels, row = panel * MOE_PANEL;
        const size_t rows = m->rows - row < MOE_PANEL ? m->rows - row : MOE_PANEL;
        char *data = m->data + index * m->stride
                     + row * m->columns * moe_pack_element_size(m->element);

        for (size_t c = 0; c < m->columns; c += STRIP) {
            pack_strip(&job->sources[index], m->element, row, rows, c,
                       m->columns - c < STRIP ? m->columns : c + STRIP, data);
        }
    }
}


void moe_pack(moe_pool_t *pool, const moe_matrix_t *matrix, const moe_source_t *sources)
{
    pack_job_t job = {matrix, sources};

    moe_pool_run(pool, pack_panels, &job, matrix->count * matrix->panels, 1);
}
