#include "engine/moe/exchange.h"

#include <stdlib.h>

#define ALIGNMENT 64u

static const moe_payload_t return_payloads[] = {
    [MOE_PAYLOAD_F32] = MOE_PAYLOAD_F32,
    [MOE_PAYLOAD_BF16] = MOE_PAYLOAD_BF16,
    [MOE_PAYLOAD_INT8] = MOE_PAYLOAD_INT8,
    [MOE_PAYLOAD_FP8] = MOE_PAYLOAD_BF16
};


/* Entries of one part: a rank has no two slots of one expert. */
static size_t part_entries(const moe_exchange_options_t *o)
{
    return (size_t) o->rows * (o->top_k < o->slots ? o->top_k : o->slots);
}


static uint32_t rank_count(const moe_world_t *world)
{
    return world->ranks > 1 ? world->ranks : 1;
}


size_t moe_exchange_capacity(const moe_exchange_options_t *options)
{
    return part_entries(options) * rank_count(options->world);
}


static void *allocate(moe_exchange_t *self, size_t count, size_t size, moe_error_t *error)
{
    moe_device_t *device = self->options.device;

    if (count > SIZE_MAX / size) {
        moe_fail(error, MOE_LIMIT, "out of memory for %zu times %zu bytes to exchange", count,
                 size);
        return NULL;
    }
    return device->ops->allocate(device, count * size, error);
}


static int allocate_plan(moe_exchange_t *self, moe_error_t *error)
{
    moe_dispatch_t *d = &self->dispatch;
    const size_t word = sizeof(uint32_t), entries = self->capacity;
    const size_t rows = (size_t) d->rows * d->ranks, own = (size_t) d->rows * d->top_k;

    return (d->turns = allocate(self, d->experts, word, error)) == NULL
                   || (d->sent = allocate(self, rows, word, error)) == NULL
                   || (d->arrived_rows = allocate(self, entries, word, error)) == NULL
                   || (d->arrived_places = allocate(self, entries, word, error)) == NULL
                   || (d->slot_offsets = allocate(self, d->slots + 1u, word, error)) == NULL
                   || (d->places = allocate(self, own, word, error)) == NULL
                   || (d->own = allocate(self, own, word, error)) == NULL
                   || (d->result_offsets = allocate(self, d->ranks + 1u, word, error)) == NULL
               ? -1 : 0;
}


static int allocate_rows(moe_exchange_t *self, moe_error_t *error)
{
    moe_dispatch_t *d = &self->dispatch;
    const int is_rounded = self->payload != MOE_PAYLOAD_F32, is_alone = d->ranks == 1;
    const size_t results = (size_t) d->rows * d->top_k;

    self->rows = allocate(self, self->capacity + (is_alone ? 0 : results),
                          self->options.hidden * sizeof(float), error);
    d->send = self->rows ? allocate(self, d->ranks, d->part_bytes, error) : NULL;
    return d->send == NULL
                   || (is_rounded && (self->encoded = allocate(self, d->rows, self->row_bytes,
                                                               error)) == NULL)
                   || ((is_rounded || !is_alone)
                       && (self->returns = allocate(self, d->ranks, self->return_bytes,
                                                    error)) == NULL)
                   || (is_rounded && !is_alone
                       && (self->returned = allocate(self, results, self->return_row_bytes,
                                                     error)) == NULL)
                   || (!is_alone && (d->receive = allocate(self, d->ranks, d->part_bytes,
                                                           error)) == NULL)
               ? -1 : 0;
}


static void set_sizes(moe_exchange_t *self)
{
    const moe_exchange_options_t *o = &self->options;
    const uint32_t ranks = rank_count(o->world);
    const size_t entries = part_entries(o);
    size_t part_bytes;

    self->payload = o->payload;
    self->return_payload = return_payloads[o->payload];
    self->row_bytes = moe_payload_row_bytes(self->payload, o->hidden);
    self->return_row_bytes = moe_payload_row_bytes(self->return_payload, o->hidden);
    self->return_bytes = entries * self->return_row_bytes;
    self->capacity = (uint32_t) moe_exchange_capacity(o);
    part_bytes = moe_part_head(entries) + (ranks > 1 ? o->rows * self->row_bytes : 0);
    self->dispatch = (moe_dispatch_t) {
        .rank = o->world->rank, .ranks = ranks, .slots = o->slots, .experts = o->experts,
        .top_k = o->top_k, .rows = o->rows, .entries = (uint32_t) entries,
        .part_bytes = (part_bytes + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT,
        .first_result = self->capacity,
    };
}


int moe_exchange_create(moe_exchange_t *self, const moe_exchange_options_t *options,
                        moe_error_t *error)
{
    const uint32_t ranks = rank_count(options->world);

    *self = (moe_exchange_t) {.options = *options};
    if (moe_exchange_capacity(options) + (size_t) options->rows * options->top_k > UINT32_MAX
        || options->rows > MOE_ENTRY_ROWS || options->slots > MOE_ENTRY_SLOTS)
    {
        return moe_fail(error, MOE_LIMIT, "%u rows of each of %u ranks to %u experts each: too "
                        "many", options->rows, ranks, options->top_k);
    }
    self->sizes = calloc((size_t) ranks * 5, sizeof(size_t));
    if (self->sizes == NULL) {
        return moe_fail(error, MOE_LIMIT, "out of memory for %u ranks", ranks);
    }
    self->rooms = self->sizes + ranks;
    self->offsets = self->rooms + ranks;
    self->result_rooms = self->offsets + ranks;
    self->result_offsets = self->result_rooms + ranks;
    set_sizes(self);
    return allocate_plan(self, error) != 0 || allocate_rows(self, error) != 0 ? -1 : 0;
}


void moe_exchange_free(moe_exchange_t *self)
{
    free(self->sizes);
    self->sizes = NULL;
}


static moe_part_t *part_of(const moe_dispatch_t *d, char *parts, uint32_t rank)
{
    return (moe_part_t *) (parts + rank * d->part_bytes);
}


/* What came from a rank; the own part is not sent: it arrives where it was made. */
static moe_part_t *arrived_part(const moe_dispatch_t *d, uint32_t rank)
{
    return part_of(d, rank == d->rank ? d->send : d->receive, rank);
}


/* The head of a part, as the host sees it. */
static const moe_part_t *read_part(const moe_exchange_t *self, const moe_part_t *part)
{
    moe_device_t *device = self->options.device;

    return device->ops->read(device, part, sizeof(*part));
}


static void convert(const moe_exchange_t *self, const moe_conversion_t *conversion, uint32_t n,
                    const uint32_t *count)
{
    self->options.device->ops->convert(self->options.device, conversion, n, count);
}


/* Puts the rows of a part behind its list; returns its size. */
static size_t fill_part(moe_exchange_t *self, uint32_t rank)
{
    const moe_dispatch_t *d = &self->dispatch;
    moe_part_t *part = part_of(d, d->send, rank);
    const size_t list = moe_part_head(read_part(self, part)->entries);
    const size_t rows = read_part(self, part)->rows * self->row_bytes;
    const moe_conversion_t copy = {
        .from_type = self->payload, .to_type = self->payload, .size = self->options.hidden,
        .from = self->local, .from_index = d->sent + (size_t) rank * d->rows,
        .to = (char *) part + list,
    };

    convert(self, &copy, d->rows, &part->rows);
    self->bytes.dispatch_lists += list;
    self->bytes.dispatch_rows += rows;
    return list + rows;
}


int moe_exchange_dispatch_send(moe_exchange_t *self, const moe_exchange_map_t *map, const float *x,
                               const uint32_t *ids, uint32_t n, moe_error_t *error)
{
    moe_device_t *device = self->options.device;
    moe_comm_t *all = self->options.world->all;
    moe_dispatch_t *d = &self->dispatch;
    const moe_comm_parts_t send = {d->send, self->sizes, self->offsets};
    const moe_comm_parts_t receive = {d->receive, self->rooms, self->offsets};

    d->replicas = map->replicas;
    d->replica_offsets = map->offsets;
    d->counts = map->counts;
    self->arrived = map->arrived;
    device->ops->plan_dispatch(device, d, ids, n);
    self->local = x;
    if (self->encoded) {
        const moe_conversion_t encode = {
            .from_type = MOE_PAYLOAD_F32, .to_type = self->payload, .size = self->options.hidden,
            .from = x, .to = self->encoded,
        };

        convert(self, &encode, n, NULL);
        self->local = self->encoded;
    }
    if (all == NULL) {
        return 0;
    }
    for (uint32_t r = 0; r < d->ranks; r++) {
        self->sizes[r] = r != d->rank ? fill_part(self, r) : 0;
        self->rooms[r] = r != d->rank ? d->part_bytes : 0;
        self->offsets[r] = r * d->part_bytes;
    }
    return all->ops->alltoallv_start(all, &send, &receive, error);
}


/* A message that cannot be right ends the group. */
static int refuse(const moe_exchange_t *self, const char *what, uint32_t rank, moe_error_t *error)
{
    moe_comm_t *all = self->options.world->all;

    moe_fail(error, MOE_UNAVAILABLE, "rank %u sent %s that cannot be right", rank, what);
    all->ops->abort(all, error);
    return -1;
}


/* What another rank sent is looked at before anything is indexed with it. */
static int check_part(const moe_exchange_t *self, uint32_t rank, moe_error_t *error)
{
    const moe_dispatch_t *d = &self->dispatch;
    const size_t size = self->rooms[rank];
    moe_device_t *device = self->options.device;
    const moe_part_t *part;

    if (size < sizeof(*part)) {
        return refuse(self, "rows", rank, error);
    }
    part = device->ops->read(device, part_of(d, d->receive, rank), size);
    if (part->entries > d->entries || part->rows > d->rows
        || size != moe_part_head(part->entries) + part->rows * self->row_bytes)
    {
        return refuse(self, "rows", rank, error);
    }
    for (uint32_t e = 0; e < part->entries; e++) {
        if (part->list[e] % MOE_ENTRY_SLOTS >= d->slots
            || part->list[e] >> MOE_ENTRY_SLOT_BITS >= part->rows)
        {
            return refuse(self, "a list of rows", rank, error);
        }
    }
    return 0;
}


static int finish_dispatch(moe_exchange_t *self, moe_error_t *error)
{
    const moe_dispatch_t *d = &self->dispatch;
    moe_comm_t *all = self->options.world->all;

    if (all->ops->alltoallv_finish(all, error) != 0) {
        return -1;
    }
    for (uint32_t r = 0; r < d->ranks; r++) {
        if (r != d->rank && check_part(self, r, error) != 0) {
            return -1;
        }
        *self->arrived += read_part(self, arrived_part(d, r))->entries;
    }
    return 0;
}


int moe_exchange_dispatch_recv(moe_exchange_t *self, moe_error_t *error)
{
    moe_device_t *device = self->options.device;
    const moe_dispatch_t *d = &self->dispatch;

    if (self->options.world->all && finish_dispatch(self, error) != 0) {
        return -1;
    }
    device->ops->plan_arrival(device, d);
    for (uint32_t r = 0; r < d->ranks; r++) {
        const int is_own = r == d->rank;
        const moe_part_t *part = arrived_part(d, r);
        const size_t first = (size_t) r * d->entries;
        const moe_conversion_t place = {
            .from_type = self->payload, .to_type = MOE_PAYLOAD_F32, .size = self->options.hidden,
            .from = is_own ? self->local
                           : (const char *) part + moe_part_head(read_part(self, part)->entries),
            .from_index = d->arrived_rows + first,
            .to = self->rows, .to_index = d->arrived_places + first,
        };

        convert(self, &place, d->entries, &part->entries);
    }
    return 0;
}


/* Gathers the results for a rank. */
static void gather_results(moe_exchange_t *self, uint32_t rank, const moe_part_t *part)
{
    const moe_dispatch_t *d = &self->dispatch;
    const moe_conversion_t gather = {
        .from_type = MOE_PAYLOAD_F32, .to_type = self->return_payload,
        .size = self->options.hidden, .from = self->rows,
        .from_index = d->arrived_places + (size_t) rank * d->entries,
        .to = self->returns + rank * self->return_bytes,
    };

    convert(self, &gather, d->entries, &part->entries);
}


/* Rounds the results that stay at home as those that travel. */
static void round_own_results(moe_exchange_t *self)
{
    const moe_dispatch_t *d = &self->dispatch;
    const moe_part_t *part = part_of(d, d->send, d->rank);
    const moe_conversion_t back = {
        .from_type = self->return_payload, .to_type = MOE_PAYLOAD_F32,
        .size = self->options.hidden, .from = self->returns + d->rank * self->return_bytes,
        .to = self->rows, .to_index = d->arrived_places + (size_t) d->rank * d->entries,
    };

    gather_results(self, d->rank, part);
    convert(self, &back, d->entries, &part->entries);
}


/* Returns the size of the part. */
static size_t fill_return(moe_exchange_t *self, uint32_t rank)
{
    const moe_dispatch_t *d = &self->dispatch;
    const moe_part_t *part = part_of(d, d->receive, rank);
    const size_t size = read_part(self, part)->entries * self->return_row_bytes;

    gather_results(self, rank, part);
    self->bytes.return_rows += size;
    return size;
}


/* Where the results of the other ranks begin, and end: [ranks + 1], for the host. */
static const uint32_t *read_result_offsets(const moe_exchange_t *self)
{
    const moe_dispatch_t *d = &self->dispatch;
    moe_device_t *device = self->options.device;

    return device->ops->read(device, d->result_offsets, (d->ranks + 1u) * sizeof(uint32_t));
}


/* Results of the other ranks, as floats. */
static float *other_results(const moe_exchange_t *self)
{
    return self->rows + (size_t) self->dispatch.first_result * self->options.hidden;
}


int moe_exchange_return_send(moe_exchange_t *self, moe_error_t *error)
{
    moe_comm_t *all = self->options.world->all;
    const moe_dispatch_t *d = &self->dispatch;
    const moe_comm_parts_t send = {self->returns, self->sizes, self->offsets};
    const moe_comm_parts_t receive = {
        self->returned ? (void *) self->returned : other_results(self), self->result_rooms,
        self->result_offsets
    };
    const uint32_t *firsts;

    if (self->return_payload != MOE_PAYLOAD_F32) {
        round_own_results(self);
    }
    if (all == NULL) {
        return 0;
    }
    for (uint32_t r = 0; r < d->ranks; r++) {
        self->sizes[r] = r != d->rank ? fill_return(self, r) : 0;
        self->offsets[r] = r * self->return_bytes;
    }
    firsts = read_result_offsets(self);
    for (uint32_t r = 0; r < d->ranks; r++) {
        self->result_rooms[r] = (firsts[r + 1] - firsts[r]) * self->return_row_bytes;
        self->result_offsets[r] = firsts[r] * self->return_row_bytes;
    }
    return all->ops->alltoallv_start(all, &send, &receive, error);
}


int moe_exchange_return_recv(moe_exchange_t *self, moe_error_t *error)
{
    moe_comm_t *all = self->options.world->all;
    const moe_dispatch_t *d = &self->dispatch;
    const moe_conversion_t decode = {
        .from_type = self->return_payload, .to_type = MOE_PAYLOAD_F32,
        .size = self->options.hidden, .from = self->returned, .to = other_results(self),
    };
    const uint32_t *firsts;

    if (all == NULL) {
        return 0;
    }
    if (all->ops->alltoallv_finish(all, error) != 0) {
        return -1;
    }
    firsts = read_result_offsets(self);
    for (uint32_t r = 0; r < d->ranks; r++) {
        if (self->result_rooms[r] != (firsts[r + 1] - firsts[r]) * self->return_row_bytes) {
            return refuse(self, "results", r, error);
        }
    }
    if (self->returned) {
        convert(self, &decode, d->rows * d->top_k, &d->result_offsets[d->ranks]);
    }
    return 0;
}
