/*
 * Which rows of which sequences make up the next step.
 *
 * The scheduler knows neither text nor threads nor the clock: it sees tasks (a list of tokens, some
 * of which are computed) and is told how long steps took.  So the tests drive it with made-up
 * tasks and times.
 *
 *     waiting --admitted: all its known tokens have cache blocks--> running
 *        ^------------- preempted: blocks taken away, computed again later ----'
 *
 * What the prefix cache has of an admitted task's tokens is not computed again.  A task whose next
 * tokens a running one of its tenant is about to compute waits for them.
 *
 * A step holds the decodes of all running tasks first (one row each), then chunks of prompts up to
 * batch_rows rows and up to the number of rows that step_time is predicted to hold (that half of it
 * is, when the decodes take longer than the other).  The prediction changes how prompts are cut,
 * never a result.  While a tenant has more than is let in and others come, its prompts fill a step
 * to a quarter of step_time only: who comes does not wait long for the step in progress.
 *
 * Order everywhere: priority, then the fair share of the task's tenant, then arrival.  Tenants
 * share
 *
 *   prompt rows   evenly: the one for which fewer were computed is next, whatever the others have
 *                 waiting.  Who asks for less than others is owed up to MOE_SHARE_CREDIT rows: then
 *                 a prompt goes first, whole.
 *   places        (batch_sequences, cache blocks): who has fewer than an equal part of them and
 *                 waits gets the next, and the youngest task of one who has more steps back for it.
 */

#ifndef MOE_SCHEDULER_H
#define MOE_SCHEDULER_H

#include "engine/forward.h"
#include "engine/serve/cache.h"
#include "engine/serve/cost.h"

#define MOE_LEAST_CHUNK 16u         /* prefill rows of a step, whatever the prediction says */
#define MOE_SHARE_CREDIT 4096u      /* prompt rows that a tenant can be owed */

typedef enum {
    MOE_TASK_NEW = 0,               /* not with the scheduler */
    MOE_TASK_WAITING,
    MOE_TASK_RUNNING
} moe_task_state_t;

typedef struct {
    struct moe_task_s *first, *last;
    uint32_t count;
} moe_task_list_t;

/* A tenant as the scheduler sees it.  Zeroed by the owner before its first task is added; nobody
 * else's memory while any of its tasks is here. */
typedef struct moe_share_s {
    moe_task_list_t waiting;        /* by priority, then arrival */
    uint32_t running;               /* tasks */
    uint64_t served;                /* prompt rows computed, and what was lost of its credit */
    struct moe_share_s *previous, *next;

    /* While a step is planned. */
    uint32_t blocks;
    struct moe_task_s *chunked;     /* running tasks with more than one row to go, oldest first */
    struct moe_task_s *candidate;   /* the first in `waiting` that could run */
    int full;                       /* has what it may have of the step's time */
} moe_share_t;

/* The scheduler's view of a sequence; embedded in it. */
typedef struct moe_task_s {
    /* Set by the owner before moe_scheduler_add. */
    const uint32_t *tokens;
    uint32_t n_tokens;              /* known tokens; grows while the task is here */
    uint32_t outputs_from;          /* logits are wanted of this row and all after it */
    int paused;                     /* not run, gives way to those that wait */
    int32_t priority;               /* smaller goes first */
    uint64_t order;                 /* of arrival: decides among equal priorities */
    uint64_t deadline_ns;           /* to be started by; 0: none */
    moe_share_t *share;             /* its tenant's */
    moe_share_t *shares;            /* with groups of ranks: its tenant's in each, and which the task */
    uint32_t group;                 /* belongs to (groups.h) */
    moe_block_table_t table;        /* capacity for all tokens it may ever have */
    moe_chain_t chain;              /* of its known tokens, or zeroes: nothing is shared */

    /* Kept by the scheduler. */
    moe_task_state_t state;
    uint32_t computed;              /* rows in the cache */
    uint32_t step_rows;             /* of the step in progress, starting at `computed` */
    uint32_t step_outputs;
    int started;                    /* was running at least once */
    uint32_t cached;                /* tokens that were in the prefix cache when it was started */
    struct moe_task_s *previous, *next;             /* in the list of its state */
    struct moe_task_s *previous_new, *next_new;     /* among those that were never started */
    struct moe_task_s *next_chunked;                /* of its share */
} moe_task_t;

/* What schedulers that plan parts of the same steps have in common.  Zeroes: nothing is known. */
typedef struct {
    moe_cost_t cost;
    uint64_t busy_ns;               /* all steps until now */
    uint64_t contested_ns;          /* until then floods make steps short */
} moe_pace_t;

typedef struct {
    uint32_t batch_rows;
    uint32_t batch_sequences;       /* <= batch_rows */
    uint32_t batch_outputs;         /* > batch_sequences */
    uint64_t step_time_ns;
    moe_pace_t *pace;               /* shared with others; NULL: its own */
} moe_scheduler_options_t;

typedef struct {
    moe_batch_t batch;
    moe_task_t **tasks;             /* [batch.n_sequences] */
    uint32_t rows, decode_rows;
} moe_plan_t;

typedef struct moe_scheduler_s moe_scheduler_t;

/* `cache` stays the caller's.  Every task must fit into the cache when it runs alone. */
moe_scheduler_t *moe_scheduler_create(const moe_scheduler_options_t *options, moe_cache_t *cache,
                                      moe_error_t *error);
void moe_scheduler_free(moe_scheduler_t *scheduler);

/* Puts a new task into the queue. */
void moe_scheduler_add(moe_scheduler_t *scheduler, moe_task_t *task);

/* Takes a task out, wherever it is, and its blocks back.  Not between plan and complete. */
void moe_scheduler_remove(moe_scheduler_t *scheduler, moe_task_t *task);

/* The next step; no sequences when nothing can run.  Valid until the next call. */
const moe_plan_t *moe_scheduler_plan(moe_scheduler_t *scheduler);

/* The planned step was run in so much time (0: not known): its rows are in the cache. */
void moe_scheduler_complete(moe_scheduler_t *scheduler, uint64_t elapsed_ns);

/* A task that was not started by its deadline (it stays in the queue), or NULL.  One that waits for
 * what another computes is not late. */
moe_task_t *moe_scheduler_expired(const moe_scheduler_t *scheduler, uint64_t now_ns);

/* The nearest deadline of the queue, 0 when there is none. */
uint64_t moe_scheduler_next_deadline(const moe_scheduler_t *scheduler);

/* Whether a share without tasks is worth no more than a new one: the owner may forget it. */
int moe_scheduler_settled(const moe_scheduler_t *scheduler, const moe_share_t *share);

/* The first waiting task, by priority and arrival, that was never started and that nothing keeps from
 * being so but a lack of room; NULL when there is none. */
moe_task_t *moe_scheduler_first_waiting(const moe_scheduler_t *scheduler);

/* Whether so many tasks more than those that are here, and this one's blocks, have room at once. */
int moe_scheduler_has_room(const moe_scheduler_t *scheduler, const moe_task_t *task,
                           uint32_t more);

/* Rows that are known and not computed, of all tasks. */
uint64_t moe_scheduler_pending(const moe_scheduler_t *scheduler);

uint32_t moe_scheduler_running(const moe_scheduler_t *scheduler);
uint32_t moe_scheduler_waiting(const moe_scheduler_t *scheduler);
uint64_t moe_scheduler_preemptions(const moe_scheduler_t *scheduler);

#endif
