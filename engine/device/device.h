/*
 * A device: memory, and the operations of a step on it.
 *
 * Each back end fills one table of operations; everything above (mixers, router, experts, the
 * forward pass) is written once against it.  An operation works on all rows of a step at once; its
 * operands are device memory, reserved when the model is loaded: a step allocates nothing and
 * nothing in it can fail.  Operations run in the order in which they are called.
 *
 * Rows are f32 throughout.  A result row depends on its own operands only, never on the number of
 * rows, their order or the number of threads.
 */

#ifndef MOE_DEVICE_H
#define MOE_DEVICE_H

#include <stddef.h>
#include <stdint.h>

#include "engine/core/error.h"
#include "engine/core/threads.h"
#include "engine/model/tensor.h"
#include "kernels/dispatch.h"
#include "kernels/kv.h"
#include "kernels/payload.h"
#include "kernels/swiglu.h"

typedef struct moe_device_s moe_device_t;

/* `count` weight matrices [rows, columns] of one shape, packed for the device, with the biases that
 * their sources have. */
typedef struct moe_matrix_s moe_matrix_t;

/* A matrix in host memory: element (r, c) lies at data[r * row_stride + c * column_stride], so that
 * slices and transposed ones need no copy.  Of a block format's strides one is 1, the other a whole
 * number of blocks. */
typedef struct {
    const void *data;
    moe_dtype_t dtype;
    size_t row_stride, column_stride;   /* elements */
    const unsigned char *scales;        /* of a type that keeps them apart: of all blocks from `data`
                                         * on */
    const float *bias;                  /* [rows], added to what each row gives; NULL: none */
    uint32_t paired;                    /* > 0: of each `paired` rows, r and r + paired / 2 lie one
                                         * behind the other, for all r in turn */
} moe_source_t;

/* The rows of a step, in device memory: row i is token tokens[i] at positions[i] of the sequence
 * whose cache blocks are tables[sequences[i] * table_stride ...]. */
typedef struct {
    uint32_t n;
    const uint32_t *tokens, *positions, *sequences;
    const uint32_t *tables;
    uint32_t table_stride;
} moe_rows_t;

/* Paged memory of one layer: row of position p: rows + block * block_stride + p % block_tokens *
 * row_stride, in bytes. */
typedef struct {
    void *rows;
    moe_kv_type_t type;
    size_t block_stride, row_stride;
    uint32_t block_tokens;              /* at most 16 */
} moe_kv_t;

/* y = x times matrix i + its bias, for every i of the stack: matrix i reads at x + i * x_step and
 * writes at y + i * y_step.  Strides are floats between rows. */
typedef struct {
    const moe_matrix_t *matrix;
    const float *x;
    size_t x_stride, x_step;
    float *y;
    size_t y_stride, y_step;
} moe_linear_t;

/* Attention of heads over cache rows.  A row has one slice per group of heads (moe_kv_slice_bytes
 * apart), which the heads of the group share. */
typedef struct {
    uint32_t heads;
    uint32_t latent;                    /* numbers of a slice that are averaged ... */
    uint32_t rope;                      /* ... and those behind them that only score */
    float scale;
    uint32_t groups;                    /* of equally many heads; 0: one */
    int apart;                          /* what is averaged does not score: values, then keys */
    uint32_t window;                    /* positions that a row sees, its own included; 0: all */
    const float *sinks;                 /* [heads] scores that share in the softmax and average
                                         * nothing; they are not scaled; NULL: none */
} moe_attention_t;

typedef struct {
    uint32_t experts, top_k;
    int sigmoid;                        /* score: sigmoid, else softmax */
    uint32_t groups, groups_kept;       /* groups 0 or 1: no limit */
    uint32_t group_top;                 /* keys summed for a group's score: 1 or 2 */
    int normalise;
    float scale;
    const float *bias;                  /* [experts] or NULL: selection only */
} moe_routing_t;

/* Rows from one form into another, at least one of them f32 unless they are the same: row
 * from_index[i] of `from` becomes row to_index[i] of `to`.  Without an index it is row i. */
typedef struct {
    moe_payload_t from_type, to_type;
    uint32_t size;                      /* numbers of a row */
    const void *from;
    const uint32_t *from_index;
    void *to;
    const uint32_t *to_index;
} moe_conversion_t;

/*
 * The ways of a step's rows to the slots of experts on all ranks and back.  All arrays are device
 * memory.  A part is what goes to, or comes from, one rank (kernels/dispatch.h); the own part is a
 * list without rows, which are read where they are.
 */
typedef struct {
    uint32_t rank, ranks;
    uint32_t slots;                     /* of each rank: slot s of all is on rank s / slots */
    uint32_t experts, top_k;

    const uint32_t *replicas, *replica_offsets;     /* slots of each expert (moe/placement.h) */
    uint32_t *turns;                    /* [experts] rows that this rank has sent so far: whose turn
                                         * it is among replicas ... */
    uint64_t *counts;                   /* [experts] ... and for statistics */

    uint32_t rows, entries;             /* capacity of a part */
    size_t part_bytes;                  /* between two parts, which hold that many */
    char *send, *receive;               /* [ranks] parts */
    uint32_t *sent;                     /* [ranks, rows]: which row of x each row of a part is; not
                                         * of the own part, whose list tells */

    uint32_t *arrived_rows;             /* [ranks, entries]: row in its part, and ... */
    uint32_t *arrived_places;           /* ... place among all that came, grouped by slot */
    uint32_t *slot_offsets;             /* [slots + 1]: places of each slot's rows */

    uint32_t *places;                   /* [rows, top_k]: where each result will be: among those
                                         * that came, or behind, from first_result on */
    uint32_t *own;                      /* [rows * top_k]: index in `places` of each own entry */
    uint32_t first_result;
    uint32_t *result_offsets;           /* [ranks + 1]: results of each other rank, behind that */
} moe_dispatch_t;

typedef struct {
    const char *name;                   /* "cpu" */

    void (*free)(moe_device_t *device);

    const char *(*isa)(const moe_device_t *device);

    /* Zeroed memory that lives as long as the device.  NULL with MOE_LIMIT. */
    void *(*allocate)(moe_device_t *device, size_t size, moe_error_t *error);

    /* Packs `count` matrices, in parallel.  Block formats are rounded to bf16; sources that would
     * be packed differently are widened to f32; where one has a bias, others have zeros.
     * Lives as long as the device.  NULL with MOE_LIMIT. */
    moe_matrix_t *(*pack)(moe_device_t *device, const moe_source_t *sources, uint32_t count,
                          uint32_t rows, uint32_t columns, moe_error_t *error);

    /* A stack as another one, whose numbers are not set.  NULL with MOE_LIMIT. */
    moe_matrix_t *(*reserve)(moe_device_t *device, const moe_matrix_t *matrix, moe_error_t *error);

    /* Whether two stacks are packed in the same way: then each can take the other's matrices. */
    int (*alike)(const moe_matrix_t *a, const moe_matrix_t *b);

    /* The packed matrices of a stack, each of *size bytes, one behind the other. */
    void *(*packed)(const moe_matrix_t *matrix, size_t *size);

    /* Makes room for `attend` with these dimensions over up to `context` positions.
     * 0, or -1 with MOE_LIMIT. */
    int (*reserve_attention)(moe_device_t *device, const moe_attention_t *attention,
                             uint32_t context, moe_error_t *error);

    void (*upload)(moe_device_t *device, void *memory, const void *host, size_t size);

    /* Waits for all operations; device memory as the host sees it, until the next operation. */
    const void *(*read)(moe_device_t *device, const void *memory, size_t size);

    /* y[i] = row tokens[i] of a matrix: [rows->n, columns]. */
    void (*embed)(moe_device_t *device, const moe_matrix_t *matrix, const moe_rows_t *rows,
                  float scale, float *y);

    /* y[i] = x[index[i]], rows of `size` floats. */
    void (*gather)(moe_device_t *device, const float *x, const uint32_t *index, uint32_t n,
                   uint32_t size, float *y);

    /* y[i] = the first `size` floats of x[i].  Strides are floats between rows. */
    void (*copy)(moe_device_t *device, const float *x, size_t x_stride, uint32_t n, uint32_t size,
                 float *y, size_t y_stride);

    /* RMS norm of the first `size` floats of each row; y may be x. */
    void (*rms_norm)(moe_device_t *device, const float *x, size_t x_stride, const float *weight,
                     float eps, uint32_t n, uint32_t size, float *y, size_t y_stride);

    /* Independent products over the same number of rows. */
    void (*linear)(moe_device_t *device, const moe_linear_t *jobs, uint32_t n_jobs, uint32_t n);

    /* As linear, but matrix i of each stack works on rows [offsets[i], offsets[i + 1]); steps are
     * not used.  offsets: [count + 1], ascending. */
    void (*grouped)(moe_device_t *device, const moe_linear_t *jobs, uint32_t n_jobs,
                    const uint32_t *offsets);

    /* y = what `form` (of the host) makes of gate and up, over [n, size]; y may be either.  `count`
     * in device memory, unless NULL: only so many of the n rows. */
    void (*swiglu)(moe_device_t *device, const moe_swiglu_t *form, const float *gate,
                   const float *up, uint32_t n, const uint32_t *count, uint32_t size, float *y);

    /* y[i] *= sigmoid(scores[i]) over [n, size]. */
    void (*gate_rows)(moe_device_t *device, const float *scores, uint32_t n, uint32_t size,
                      float *y);

    /* y += scale * x over [n, size]. */
    void (*add)(moe_device_t *device, const float *x, float scale, uint32_t n, uint32_t size,
                float *y);

    /* Rotates the first `size` of `width` floats of `heads` slices of each row by its position, and
     * copies the others: slice h of row i from x + i * x_stride + h * x_step to y + i * y_stride
     * + h * y_step.  table: [context, size], each row [size / 2] cos, [size / 2] sin. */
    void (*rope)(moe_device_t *device, const moe_rows_t *rows, const float *table, int interleaved,
                 uint32_t heads, uint32_t size, uint32_t width, const float *x, size_t x_stride,
                 size_t x_step, float *y, size_t y_stride, size_t y_step);

    /* Stores the first slices * size floats of each row as the cache row of its position, rounded
     * to its type: slices of `size`, moe_kv_slice_bytes apart. */
    void (*store)(moe_device_t *device, const moe_rows_t *rows, const float *x, size_t x_stride,
                  uint32_t slices, uint32_t size, const moe_kv_t *cache);

    /* The first `tokens` rows of block `from` become those of block `to`. */
    void (*copy_rows)(moe_device_t *device, const moe_kv_t *cache, uint32_t from, uint32_t to,
                      uint32_t tokens);

    /* query: [n, heads, latent + rope], only rope when they are apart; each row attends to the
     * positions up to its own, as many as its window has; y: [n, heads, latent]. */
    void (*attend)(moe_device_t *device, const moe_attention_t *attention, const moe_rows_t *rows,
                   const moe_kv_t *cache, const float *query, float *y);

    /* scores: [n, experts] logits, overwritten; keys: scratch of the same size; ids, weights:
     * [n, top_k] by falling key, ties to the lower index. */
    void (*route)(moe_device_t *device, const moe_routing_t *routing, uint32_t n, float *scores,
                  float *keys, uint32_t *ids, float *weights);

    /* Where n rows go: ids [n, top_k] < experts, n <= dispatch->rows.  Fills the parts to send but
     * for their rows, sent, result_offsets and the places of results from other ranks; own. */
    void (*plan_dispatch)(moe_device_t *device, const moe_dispatch_t *dispatch,
                          const uint32_t *ids, uint32_t n);

    /* Where what came from all ranks goes, the own part among them: by slot, rows of one slot in the
     * order of ranks and lists.  Fills arrived_rows, arrived_places, slot_offsets and the places of
     * the own results. */
    void (*plan_arrival)(moe_device_t *device, const moe_dispatch_t *dispatch);

    /* Of n rows, or of `count` (device memory) of them unless that is NULL. */
    void (*convert)(moe_device_t *device, const moe_conversion_t *conversion, uint32_t n,
                    const uint32_t *count);

    /* y[i] = sum over s of weights[i, s] * x[places[i, s]], in the order of s, then + shared[i]
     * unless that is NULL. */
    void (*combine)(moe_device_t *device, const float *x, const uint32_t *places,
                    const float *weights, uint32_t top_k, const float *shared, uint32_t n,
                    uint32_t size, float *y);
} moe_device_ops_t;

struct moe_device_s {
    const moe_device_ops_t *ops;
};

/* The CPU with the threads of `pool` (not owned).  The environment variable MOE_ISA chooses the
 * instruction set (avx512, avx2, c), else the best one.  NULL with MOE_INVALID or MOE_LIMIT. */
moe_device_t *moe_device_cpu(moe_pool_t *pool, moe_error_t *error);

#endif
