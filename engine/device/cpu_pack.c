/*
 * Packing turns [row][column] into [panel][column][16 rows], behind which lie the biases of all
 * rows.  A work item is one panel: 16 rows of plain numbers are read side by side and the panel is
 * written from front to end; rows of a block format are read block by block.
 */

#include "engine/device/cpu_pack.h"

#include "engine/core/half.h"
#include "kernels/cpu/vector.h"

typedef struct {
    const moe_matrix_t *matrix;
    const moe_source_t *sources;
} pack_job_t;


/* Block formats become bf16, which takes half of f32's memory: a number moves by 1/512 of itself at
 * most, which is a quarter of the step of Q8_0, the finest of them; MXFP4 is exact. */
static moe_element_t element_of(moe_dtype_t dtype)
{
    return dtype == MOE_F32 ? MOE_ELEMENT_F32
           : dtype == MOE_F16 ? MOE_ELEMENT_F16
                              : MOE_ELEMENT_BF16;
}


moe_element_t moe_pack_element(const moe_source_t *sources, uint32_t count)
{
    for (uint32_t i = 1; i < count; i++) {
        if (element_of(sources[i].dtype) != element_of(sources[0].dtype)) {
            return MOE_ELEMENT_F32;
        }
    }
    return element_of(sources[0].dtype);
}


size_t moe_pack_element_size(moe_element_t element)
{
    return element == MOE_ELEMENT_F32 ? sizeof(float) : sizeof(uint16_t);
}


/* The element that row `row` begins with. */
static size_t row_start(const moe_source_t *source, size_t row)
{
    if (source->paired > 0) {
        const size_t half = source->paired / 2, within = row % source->paired;

        row += (within < half ? 2 * within : 2 * (within - half) + 1) - within;
    }
    return row * source->row_stride;
}


/* A panel whose row 0 is `row` of the source; `rows` of 16 exist.  The element size is a constant
 * where this is inlined. */
MOE_INLINE void copy_panel(const moe_source_t *source, const size_t size, size_t row, size_t rows,
                           size_t columns, char *panel)
{
    const char *starts[MOE_PANEL];

    for (size_t r = 0; r < rows; r++) {
        starts[r] = (const char *) source->data + row_start(source, row + r) * size;
    }
    for (size_t c = 0; c < columns; c++) {
        for (size_t r = 0; r < rows; r++) {
            memcpy(panel + (c * MOE_PANEL + r) * size,
                   starts[r] + c * source->column_stride * size, size);
        }
    }
}


static const void *element_at(const moe_source_t *source, size_t index)
{
    return (const char *) source->data + moe_dtype_bytes(source->dtype, index);
}


/* One block from element `index` on. */
static void widen_block(const moe_source_t *source, size_t index, size_t block, float *values)
{
    if (source->scales) {
        moe_widen_apart(element_at(source, index), source->scales + index / block, block, values);
    } else {
        moe_widen(source->dtype, element_at(source, index), block, values);
    }
}


static void put(char *panel, moe_element_t element, size_t index, float value)
{
    if (element == MOE_ELEMENT_F32) {
        ((float *) panel)[index] = value;
    } else {
        ((uint16_t *) panel)[index] = bf16_from_f32(value);
    }
}


/* Rows that are stored one behind the other, block by block. */
static void convert_rows(const moe_source_t *source, moe_element_t element, size_t row, size_t rows,
                         size_t columns, char *panel)
{
    const size_t block = moe_dtype_block(source->dtype);
    float values[MOE_BLOCK_LIMIT];

    for (size_t r = 0; r < rows; r++) {
        for (size_t c = 0; c < columns; c += block) {
            widen_block(source, row_start(source, row + r) + c, block, values);
            for (size_t i = 0; i < block; i++) {
                put(panel, element, (c + i) * MOE_PANEL + r, values[i]);
            }
        }
    }
}


/* A transposed source: the panel's rows lie side by side, in one block of every column. */
static void convert_columns(const moe_source_t *source, moe_element_t element, size_t row,
                            size_t rows, size_t columns, char *panel)
{
    const size_t block = moe_dtype_block(source->dtype), skipped = row % block;
    float values[MOE_BLOCK_LIMIT];

    for (size_t c = 0; c < columns; c++) {
        widen_block(source, c * source->column_stride + row - skipped, block, values);
        for (size_t r = 0; r < rows; r++) {
            put(panel, element, c * MOE_PANEL + r, values[skipped + r]);
        }
    }
}


static void convert_elements(const moe_source_t *source, moe_element_t element, size_t row,
                             size_t rows, size_t columns, char *panel)
{
    float value;

    for (size_t c = 0; c < columns; c++) {
        for (size_t r = 0; r < rows; r++) {
            moe_widen(source->dtype, element_at(source, row_start(source, row + r)
                                                            + c * source->column_stride),
                      1, &value);
            put(panel, element, c * MOE_PANEL + r, value);
        }
    }
}


static void pack_panel(const moe_source_t *source, moe_element_t element, size_t row, size_t rows,
                       size_t columns, char *panel)
{
    if (moe_dtype_block(source->dtype) > 1 && source->column_stride == 1) {
        convert_rows(source, element, row, rows, columns, panel);
    } else if (moe_dtype_block(source->dtype) > 1) {
        convert_columns(source, element, row, rows, columns, panel);
    } else if (element != element_of(source->dtype)) {
        convert_elements(source, element, row, rows, columns, panel);
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
        const moe_source_t *source = &job->sources[index];
        char *matrix = m->data + index * m->stride;

        pack_panel(source, m->element, row, rows, m->columns,
                   matrix + row * m->columns * moe_pack_element_size(m->element));
        if (source->bias) {
            memcpy(matrix + m->bias + row * sizeof(float), source->bias + row,
                   rows * sizeof(float));
        }
    }
}


void moe_pack(moe_pool_t *pool, const moe_matrix_t *matrix, const moe_source_t *sources)
{
    pack_job_t job = {matrix, sources};

    moe_pool_run(pool, pack_panels, &job, matrix->count * matrix->panels, 1);
}
