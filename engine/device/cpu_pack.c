/*
 * Packing turns [row][column] into [panel][column][16 rows].  A work item is one panel: 16 rows are
 * read side by side and the panel is written from front to end.
 */

#include "engine/device/cpu_pack.h"

#include "kernels/cpu/vector.h"

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


/* A panel whose row 0 is `row` of the source; `rows` of 16 exist.  The element size is a constant
 * where this is inlined. */
MOE_INLINE void copy_panel(const moe_source_t *source, const size_t size, size_t row, size_t rows,
                           size_t columns, char *panel)
{
    const char *data = (const char *) source->data + row * source->row_stride * size;

    for (size_t c = 0; c < columns; c++) {
        for (size_t r = 0; r < rows; r++) {
            memcpy(panel + (c * MOE_PANEL + r) * size,
                   data + (r * source->row_stride + c * source->column_stride) * size, size);
        }
    }
}


static void widen_panel(const moe_source_t *source, size_t row, size_t rows, size_t columns,
                        float *panel)
{
    for (size_t c = 0; c < columns; c++) {
        for (size_t r = 0; r < rows; r++) {
            panel[c * MOE_PANEL + r] = widen(source, (row + r) * source->row_stride
                                                         + c * source->column_stride);
        }
    }
}


static void pack_panel(const moe_source_t *source, moe_element_t element, size_t row, size_t rows,
                       size_t columns, char *panel)
{
    if (element != element_of(source->dtype)) {
        widen_panel(source, row, rows, columns, (float *) panel);
    } else if (element == MOE_ELEMENT_F32) {
        copy_panel(source, sizeof(float), row, rows, columns, panel);
    } else if (rows == MOE_PANEL) {
        copy_panel(source, sizeof(uint16_t), row, MOE_PANEL, columns, panel);
    } else {
        copy_panel(source, sizeof(uint16_t), row, rows, columns, panel);
    }
}


static void pack_panels(void *context, size_t first, size_t last, unsigned thread)
{
    const pack_job_t *job = context;
    const moe_matrix_t *m = job->matrix;

    for (size_t i = first; i < last; i++) {
        const size_t index = i / m->panels, panel = i % m->panels, row = panel * MOE_PANEL;
        const size_t rows = m->rows - row < MOE_PANEL ? m->rows - row : MOE_PANEL;

        pack_panel(&job->sources[index], m->element, row, rows, m->columns,
                   m->data + index * m->stride
                       + row * m->columns * moe_pack_element_size(m->element));
    }
}


void moe_pack(moe_pool_t *pool, const moe_matrix_t *matrix, const moe_source_t *sources)
{
    pack_job_t job = {matrix, sources};

    moe_pool_run(pool, pack_panels, &job, matrix->count * matrix->panels, 1);
}
