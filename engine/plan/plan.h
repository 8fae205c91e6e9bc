/*
 * What a model needs and can at best do on a number of devices with expert parallelism: arithmetic
 * on the shapes of its layers, no weights, no device.  README.md in this folder has the formulas,
 * what they leave out, and how far they are from what others have measured.
 *
 * `moe-engine plan` calls it.
 */

#ifndef MOE_PLAN_H
#define MOE_PLAN_H

#include "engine/model/model.h"

typedef enum {
    MOE_PLAN_DECODE = 0,        /* a row is a sequence with `context` positions behind it */
    MOE_PLAN_PREFILL            /* a row is a token of a prompt of `context` tokens */
} moe_plan_mode_t;

/* How often a row travels: once for each of its experts, for each rank or for each node that holds
 * one of them (there it is passed on).  On the way back, what is not added up before travels. */
typedef enum {
    MOE_PLAN_PER_SLOT = 0,
    MOE_PLAN_PER_RANK,
    MOE_PLAN_PER_NODE
} moe_plan_copies_t;

typedef enum {
    MOE_PLAN_OVERLAP_NONE = 0,
    MOE_PLAN_OVERLAP_SHARED,    /* rows travel while the shared expert runs */
    MOE_PLAN_OVERLAP_TWO_BATCH  /* one half of the rows travels while the other is computed */
} moe_plan_overlap_t;

/* Of one device.  Bytes, seconds, operations (a multiplication and an addition are two). */
typedef struct {
    double memory;
    double bandwidth;           /* of its memory, per second */
    double flops;               /* per second, of products with weights */
    double attention_flops;     /* per second, of attention and of the head */
    double link, node_link;     /* per second and direction, to other nodes and within one */
    double latency;             /* of an exchange in one direction, besides its bytes */
    uint32_t node;              /* devices of a node */
} moe_plan_hardware_t;

typedef struct {
    moe_plan_mode_t mode;
    uint32_t context;
    uint32_t batch;             /* rows per device and step */
    double weight_size;         /* bytes per weight of linear layers and experts */
    double kv_size;             /* bytes per number in the cache */
    double dispatch_size, return_size;          /* bytes per number of a row that travels */
    moe_plan_copies_t dispatch_copies, return_copies;
    moe_plan_overlap_t overlap;
    uint32_t redundant;         /* slots beyond one per expert, at least */
    double imbalance;           /* rows of the most loaded device / mean, >= 1 */
    int expanded;               /* attention over keys and values of the heads, not over latents */
} moe_plan_work_t;

typedef struct {
    uint32_t devices;
    uint32_t slots;             /* experts that a device holds, of each MoE layer */
    double weights, kv, buffers;                /* bytes of a device */
    double sequences;           /* of `context` positions that fit beside weights and buffers */
    int fits;                   /* all three fit into its memory */
    double expert_rows;         /* rows per slot, layer and step */
    double sent_far, sent_near; /* bytes that a device sends per MoE layer, there and back: to other
                                 * nodes, within its own */
    double sent;                /* both, of all layers of a step */
    double mixer, dense, shared, experts, exchange, head;   /* seconds of a step, one by one */
    double step;                /* seconds, with overlap */
    double rate;                /* rows per second of a device */
} moe_plan_t;

/* 0, or -1 with MOE_INVALID: more devices than a node that are no whole number of nodes. */
int moe_plan(const moe_model_t *model, const moe_plan_hardware_t *hardware,
             const moe_plan_work_t *work, uint32_t devices, moe_plan_t *plan, moe_error_t *error);

/*
 * The mean number of destinations that a row reaches when the experts are spread evenly over
 * `destinations` in order: every expert is as likely as the others, and where the router limits a
 * row to some groups, every choice of groups.
 */
double moe_plan_reached(const moe_router_t *router, double destinations);

#endif
