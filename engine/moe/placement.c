/*
 * Placement in four steps, all greedy and deterministic:
 *
 *  1. Groups of experts go to link domains, heaviest first to the lightest domain that has room.
 *     Only where domains divide groups; else all ranks are one domain.
 *  2. Within a domain every expert gets a replica; each further slot goes to the expert with the
 *     largest load per replica.  An expert has at most as many replicas as there are ranks.
 *  3. Replicas go to ranks, heaviest first to the lightest rank that has room and not yet that
 *     expert; of equals, to the one with fewer replicas.  There always is such a rank: before its
 *     last replica an expert was the heaviest per replica, so what was packed before it (but for
 *     experts that every rank has) weighs at most twice as much as its own replicas, and then the
 *     ranks' numbers of replicas differ by one at most.  (Let B be about to lead A by two, with n
 *     and n + 1 replicas.  A's i-th came after B's (i-1)-th and is not heavier, so A is heavier
 *     than B by no more than A's first less B's last two, which is not positive.)
 *  4. The heaviest rank exchanges one replica with another rank as long as that makes the heavier
 *     of the two lighter: the greedy order is blind to the sizes that come last.
 */

#include "engine/moe/placement.h"

#include <stdlib.h>
#include <string.h>

typedef struct {
    uint32_t expert;
    double load;                /* of this replica */
} replica_t;

/* Scratch memory of the solver, all of it sized by the shape. */
typedef struct {
    replica_t *replicas;        /* [ranks * slots]: to be packed */
    replica_t *held;            /* [ranks * slots]: slot by slot */
    double *rank_loads;         /* [ranks] */
    uint32_t *used;             /* [ranks]: slots in use */
    uint32_t *counts;           /* [experts]: replicas */
    uint32_t *members;          /* [experts]: of a domain, ascending */
    uint32_t *domain_of;        /* [groups] */
    double *group_loads;        /* [groups] */
    double *domain_loads;       /* [domains] */
    uint32_t *domain_groups;    /* [domains]: how many */
} work_t;

/* Adjacent ranks that share a list of experts. */
typedef struct {
    uint32_t first, ranks, slots;
} span_t;


int moe_placement_check(const moe_placement_shape_t *shape, moe_error_t *error)
{
    if (shape->experts < 1 || shape->ranks < 1 || shape->slots < 1 || shape->groups < 1
        || shape->domains < 1 || (uint64_t) shape->ranks * shape->slots > 1u << 24)
    {
        return moe_fail(error, MOE_INVALID, "cannot place %u experts in %u groups on %u ranks in "
                        "%u domains with %u slots each", shape->experts, shape->groups,
                        shape->ranks, shape->domains, shape->slots);
    }
    if (shape->ranks * shape->slots < shape->experts) {
        return moe_fail(error, MOE_INVALID, "%u experts do not fit into %u slots on each of %u "
                        "ranks", shape->experts, shape->slots, shape->ranks);
    }
    if (shape->slots > shape->experts) {
        return moe_fail(error, MOE_INVALID, "%u slots of a rank are more than the %u experts",
                        shape->slots, shape->experts);
    }
    if (shape->ranks % shape->domains != 0) {
        return moe_fail(error, MOE_INVALID, "%u domains do not divide %u ranks", shape->domains,
                        shape->ranks);
    }
    if (shape->experts % shape->groups != 0) {
        return moe_fail(error, MOE_INVALID, "%u groups do not divide %u experts", shape->groups,
                        shape->experts);
    }
    return 0;
}


/* Cuts the next array out of `memory`; with memory NULL only adds its size up. */
static void *cut(char *memory, size_t *used, size_t count, size_t size)
{
    void *array = memory != NULL ? memory + *used : NULL;

    *used += (count * size + 15) & ~(size_t) 15;
    return array;
}


/* Lays out everything behind the struct itself; returns its size. */
static size_t lay_out(moe_placement_t *self, char *memory)
{
    const moe_placement_shape_t *shape = &self->shape;
    const size_t slots = (size_t) shape->ranks * shape->slots;
    moe_placement_map_t *maps, map;
    work_t *work, w;
    size_t used = 0;

    maps = cut(memory, &used, self->layers, sizeof(*maps));
    for (uint32_t i = 0; i < self->layers; i++) {
        map.experts = cut(memory, &used, slots, sizeof(uint32_t));
        map.replicas = cut(memory, &used, slots, sizeof(uint32_t));
        map.offsets = cut(memory, &used, (size_t) shape->experts + 1, sizeof(uint32_t));
        if (memory != NULL) {
            maps[i] = map;
        }
    }
    work = cut(memory, &used, 1, sizeof(*work));
    w.replicas = cut(memory, &used, slots, sizeof(replica_t));
    w.held = cut(memory, &used, slots, sizeof(replica_t));
    w.rank_loads = cut(memory, &used, shape->ranks, sizeof(double));
    w.used = cut(memory, &used, shape->ranks, sizeof(uint32_t));
    w.counts = cut(memory, &used, shape->experts, sizeof(uint32_t));
    w.members = cut(memory, &used, shape->experts, sizeof(uint32_t));
    w.domain_of = cut(memory, &used, shape->groups, sizeof(uint32_t));
    w.group_loads = cut(memory, &used, shape->groups, sizeof(double));
    w.domain_loads = cut(memory, &used, shape->domains, sizeof(double));
    w.domain_groups = cut(memory, &used, shape->domains, sizeof(uint32_t));
    if (memory != NULL) {
        *work = w;
        self->maps = maps;
        self->work = work;
    }
    return used;
}


moe_placement_t *moe_placement_create(const moe_placement_shape_t *shape, uint32_t layers,
                                      moe_error_t *error)
{
    moe_placement_t *self, sizes = { .shape = *shape, .layers = layers };
    const size_t header = (sizeof(*self) + 15) & ~(size_t) 15;
    double *equal;

    if (moe_placement_check(shape, error) != 0) {
        return NULL;
    }
    equal = calloc(shape->experts, sizeof(*equal));
    self = equal != NULL ? malloc(header + lay_out(&sizes, NULL)) : NULL;
    if (self == NULL) {
        free(equal);
        moe_fail(error, MOE_LIMIT, "out of memory for the placement of %u layers", layers);
        return NULL;
    }
    *self = sizes;
    lay_out(self, (char *) self + header);
    for (uint32_t i = 0; i < layers; i++) {
        if (i == 0) {
            moe_placement_solve(self, 0, equal);
        } else {
            moe_placement_assign(self, i, self->maps[0].experts);
        }
    }
    free(equal);
    return self;
}


void moe_placement_free(moe_placement_t *self)
{
    free(self);
}


/* The index of the smallest load among those that have room; ties to the least used, then to the
 * lower index.  `n` when none has. */
static uint32_t lightest(const double *loads, const uint32_t *used, uint32_t n, uint32_t room)
{
    uint32_t best = n;

    for (uint32_t i = 0; i < n; i++) {
        if (used[i] < room
            && (best == n || loads[i] < loads[best]
                || (loads[i] == loads[best] && used[i] < used[best])))
        {
            best = i;
        }
    }
    return best;
}


/* Step 1: groups to domains. */
static void place_groups(const moe_placement_shape_t *shape, work_t *work, const double *loads)
{
    const uint32_t size = shape->experts / shape->groups, room = shape->groups / shape->domains;

    memset(work->group_loads, 0, shape->groups * sizeof(double));
    memset(work->domain_loads, 0, shape->domains * sizeof(double));
    memset(work->domain_groups, 0, shape->domains * sizeof(uint32_t));
    for (uint32_t e = 0; e < shape->experts; e++) {
        work->group_loads[e / size] += loads[e];
    }
    for (uint32_t g = 0; g < shape->groups; g++) {
        work->domain_of[g] = UINT32_MAX;
    }
    for (uint32_t n = 0; n < shape->groups; n++) {
        uint32_t heaviest = UINT32_MAX, domain;

        for (uint32_t g = 0; g < shape->groups; g++) {
            if (work->domain_of[g] == UINT32_MAX
                && (heaviest == UINT32_MAX
                    || work->group_loads[g] > work->group_loads[heaviest]))
            {
                heaviest = g;
            }
        }
        domain = lightest(work->domain_loads, work->domain_groups, shape->domains, room);
        work->domain_of[heaviest] = domain;
        work->domain_loads[domain] += work->group_loads[heaviest];
        work->domain_groups[domain]++;
    }
}


static int compare_replicas(const void *a, const void *b)
{
    const replica_t *x = a, *y = b;

    if (x->load != y->load) {
        return x->load > y->load ? -1 : 1;
    }
    return x->expert < y->expert ? -1 : x->expert > y->expert;
}


static int compare_experts(const void *a, const void *b)
{
    const replica_t *x = a, *y = b;

    return x->expert < y->expert ? -1 : x->expert > y->expert;
}


/* Step 2: fills work->replicas, heaviest first, for the members of a domain; returns their number,
 * which is that of the span's slots. */
static uint32_t replicate(work_t *work, const double *loads, uint32_t members, const span_t *span)
{
    const uint32_t total = span->ranks * span->slots;
    uint32_t n = 0;

    for (uint32_t m = 0; m < members; m++) {
        work->counts[work->members[m]] = 1;
    }
    for (uint32_t i = members; i < total; i++) {
        uint32_t best = UINT32_MAX;
        double most = 0;

        for (uint32_t m = 0; m < members; m++) {
            const uint32_t e = work->members[m];
            const double load = loads[e] / work->counts[e];

            if (work->counts[e] < span->ranks
                && (best == UINT32_MAX || load > most
                    || (load == most && work->counts[e] < work->counts[best])))
            {
                best = e;
                most = load;
            }
        }
        work->counts[best]++;
    }
    for (uint32_t m = 0; m < members; m++) {
        const uint32_t e = work->members[m];

        for (uint32_t i = 0; i < work->counts[e]; i++) {
            work->replicas[n++] = (replica_t) {.expert = e, .load = loads[e] / work->counts[e]};
        }
    }
    qsort(work->replicas, n, sizeof(replica_t), compare_replicas);
    return n;
}


static int holds(const work_t *work, const span_t *span, uint32_t rank, uint32_t expert)
{
    const replica_t *held = work->held + (size_t) rank * span->slots;

    for (uint32_t i = 0; i < work->used[rank]; i++) {
        if (held[i].expert == expert) {
            return 1;
        }
    }
    return 0;
}


/* Whether a rank is a better place for a replica than another one; held: it has the expert. */
static int better_rank(const work_t *work, uint32_t rank, int held, uint32_t other, int other_held)
{
    if (held != other_held) {
        return other_held;
    }
    if (work->rank_loads[rank] != work->rank_loads[other]) {
        return work->rank_loads[rank] < work->rank_loads[other];
    }
    return work->used[rank] < work->used[other];
}


/* Step 3: n replicas, heaviest first. */
static void pack(work_t *work, const span_t *span, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++) {
        const replica_t replica = work->replicas[i];
        uint32_t best = UINT32_MAX;
        int best_holds = 0;

        for (uint32_t r = span->first; r < span->first + span->ranks; r++) {
            const int held = holds(work, span, r, replica.expert);

            if (work->used[r] < span->slots
                && (best == UINT32_MAX || better_rank(work, r, held, best, best_holds)))
            {
                best = r;
                best_holds = held;
            }
        }
        work->held[(size_t) best * span->slots + work->used[best]++] = replica;
        work->rank_loads[best] += replica.load;
    }
}


/* The exchange of a replica of rank `from` with one of another rank that leaves the heavier of the
 * two lightest, if that is lighter than `from` is.  0 when there is none. */
static int exchange_one(work_t *work, const span_t *span, uint32_t from)
{
    replica_t *mine = work->held + (size_t) from * span->slots, *a = NULL, *b = NULL, kept;
    double least = work->rank_loads[from];
    uint32_t to = 0;

    for (uint32_t r = span->first; r < span->first + span->ranks; r++) {
        replica_t *theirs = work->held + (size_t) r * span->slots;

        for (uint32_t i = 0; r != from && i < span->slots; i++) {
            for (uint32_t j = 0; j < span->slots; j++) {
                const double change = mine[i].load - theirs[j].load;
                const double x = work->rank_loads[from] - change, y = work->rank_loads[r] + change;

                if ((x > y ? x : y) < least && !holds(work, span, r, mine[i].expert)
                    && !holds(work, span, from, theirs[j].expert))
                {
                    least = x > y ? x : y;
                    a = &mine[i];
                    b = &theirs[j];
                    to = r;
                }
            }
        }
    }
    if (a == NULL) {
        return 0;
    }
    work->rank_loads[from] -= a->load - b->load;
    work->rank_loads[to] += a->load - b->load;
    kept = *a;
    *a = *b;
    *b = kept;
    return 1;
}


/* Step 4.  A bound on the rounds, for loads so close together that rounding decides. */
static void refine(work_t *work, const span_t *span)
{
    for (uint32_t round = 0; round < 4 * span->ranks; round++) {
        uint32_t heaviest = span->first;

        for (uint32_t r = span->first; r < span->first + span->ranks; r++) {
            heaviest = work->rank_loads[r] > work->rank_loads[heaviest] ? r : heaviest;
        }
        if (!exchange_one(work, span, heaviest)) {
            return;
        }
    }
}


/* The way back, from experts to slots. */
static void index_map(const moe_placement_shape_t *shape, work_t *work, moe_placement_map_t *map)
{
    const uint32_t slots = shape->ranks * shape->slots;

    memset(map->offsets, 0, ((size_t) shape->experts + 1) * sizeof(uint32_t));
    for (uint32_t s = 0; s < slots; s++) {
        map->offsets[map->experts[s] + 1]++;
    }
    for (uint32_t e = 0; e < shape->experts; e++) {
        map->offsets[e + 1] += map->offsets[e];
        work->counts[e] = map->offsets[e];
    }
    for (uint32_t s = 0; s < slots; s++) {
        map->replicas[work->counts[map->experts[s]]++] = s;
    }
}


/* Slots of a rank ascend by expert. */
static void write_map(const moe_placement_shape_t *shape, work_t *work, moe_placement_map_t *map)
{
    for (uint32_t r = 0; r < shape->ranks; r++) {
        qsort(work->held + (size_t) r * shape->slots, shape->slots, sizeof(replica_t),
              compare_experts);
    }
    for (uint32_t s = 0; s < shape->ranks * shape->slots; s++) {
        map->experts[s] = work->held[s].expert;
    }
    index_map(shape, work, map);
}


void moe_placement_solve(moe_placement_t *self, uint32_t layer, const double *loads)
{
    const moe_placement_shape_t *shape = &self->shape;
    const int by_group = shape->domains > 1 && shape->groups % shape->domains == 0
                         && shape->slots <= shape->experts / shape->domains;
    const uint32_t domains = by_group ? shape->domains : 1, size = shape->experts / shape->groups;
    work_t *work = self->work;

    memset(work->used, 0, shape->ranks * sizeof(uint32_t));
    memset(work->rank_loads, 0, shape->ranks * sizeof(double));
    if (by_group) {
        place_groups(shape, work, loads);
    }
    for (uint32_t d = 0; d < domains; d++) {
        const span_t span = {
            .first = d * (shape->ranks / domains), .ranks = shape->ranks / domains,
            .slots = shape->slots,
        };
        uint32_t members = 0;

        for (uint32_t e = 0; e < shape->experts; e++) {
            if (!by_group || work->domain_of[e / size] == d) {
                work->members[members++] = e;
            }
        }
        pack(work, &span, replicate(work, loads, members, &span));
        refine(work, &span);
    }
    write_map(shape, work, &self->maps[layer]);
}


/* Whether a rank has an expert in its first n slots. */
static int has(const uint32_t *held, uint32_t n, uint32_t expert)
{
    uint32_t i = 0;

    while (i < n && held[i] != expert) {
        i++;
    }
    return i < n;
}


int moe_placement_check_experts(const moe_placement_shape_t *shape, const uint32_t *experts,
                                moe_error_t *error)
{
    const uint32_t slots = shape->ranks * shape->slots;

    for (uint32_t s = 0; s < slots; s++) {
        const uint32_t rank = s / shape->slots, slot = s % shape->slots;

        if (experts[s] >= shape->experts
            || has(experts + (size_t) rank * shape->slots, slot, experts[s]))
        {
            return moe_fail(error, MOE_INVALID, "not a placement: slot %u of rank %u holds expert"
                            " %u", slot, rank, experts[s]);
        }
    }
    for (uint32_t e = 0; e < shape->experts; e++) {
        if (!has(experts, slots, e)) {
            return moe_fail(error, MOE_INVALID, "not a placement: no slot holds expert %u", e);
        }
    }
    return 0;
}


void moe_placement_assign(moe_placement_t *self, uint32_t layer, const uint32_t *experts)
{
    moe_placement_map_t *map = &self->maps[layer];

    memcpy(map->experts, experts,
           (size_t) self->shape.ranks * self->shape.slots * sizeof(uint32_t));
    index_map(&self->shape, self->work, map);
}


void moe_placement_settle(const moe_placement_shape_t *shape, const moe_placement_map_t *map,
                          uint32_t *experts)
{
    for (uint32_t r = 0; r < shape->ranks; r++) {
        const uint32_t *held = map->experts + (size_t) r * shape->slots;
        uint32_t *own = experts + (size_t) r * shape->slots;

        for (uint32_t s = 0; s < shape->slots; s++) {
            uint32_t i = 0;

            while (i < shape->slots && own[i] != held[s]) {
                i++;
            }
            if (i < shape->slots) {
                own[i] = own[s];
                own[s] = held[s];
            }
        }
    }
}


double moe_placement_balance(const moe_placement_shape_t *shape, const moe_placement_map_t *map,
                             const double *loads)
{
    double sum = 0, most = 0;

    for (uint32_t r = 0; r < shape->ranks; r++) {
        double load = 0;

        for (uint32_t s = r * shape->slots; s < (r + 1) * shape->slots; s++) {
            const uint32_t e = map->experts[s];

            load += loads[e] / (map->offsets[e + 1] - map->offsets[e]);
        }
        sum += load;
        most = load > most ? load : most;
    }
    return most > 0 ? sum / shape->ranks / most : 1;
}


void moe_placement_age(double *loads, uint64_t *seen, const uint64_t *counts, uint32_t experts,
                       double keep)
{
    for (uint32_t e = 0; e < experts; e++) {
        loads[e] = keep * loads[e] + (1 - keep) * (double) (counts[e] - seen[e]);
        seen[e] = counts[e];
    }
}
