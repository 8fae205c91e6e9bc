/*
 * Frames of the channel between nginx workers and the engine: a Unix stream socket on one host.
 *
 *     | size u32 | type u16 | version u16 | id u64 | payload: `size` bytes |
 *
 * Little-endian, packed.  `id` names the request: the worker chooses it, unique on its connection;
 * 0 for frames about the connection.  Both sides validate every length: a frame that breaks a rule
 * ends the connection, never the process.
 *
 *     worker -> engine                       engine -> worker
 *     HELLO    secret, first frame           STATE    answer to HELLO, then a heartbeat
 *     REQUEST  moe_request_t                 ADMITTED moe_admitted_t, once: it is valid and waits
 *     CREDIT   tokens delivered              STARTED  moe_started_t, once, with the first token
 *     CANCEL   (nothing more is sent)        TOKENS   moe_tokens_t, one per step and sequence
 *     STATS    ask for moe_stats_t           DONE     moe_done_t, the last of a request
 *                                            ERROR    moe_failure_t, the last of a request
 *                                            STATS    moe_stats_t
 *
 * Flow control: a sequence may be at most MOE_CHANNEL_CREDIT tokens ahead of the CREDIT frames its
 * worker has sent; then it pauses, keeping its cache.  So a slow client bounds its own memory.
 */

#ifndef MOE_FRAME_H
#define MOE_FRAME_H

#include <stddef.h>
#include <stdint.h>

#include "engine/core/buffer.h"
#include "engine/core/error.h"

#define MOE_CHANNEL_VERSION 4u
#define MOE_FRAME_HEADER 16u
#define MOE_FRAME_LIMIT (128u << 20)        /* payload bytes: the largest request body and more */
#define MOE_CHANNEL_CREDIT 64u              /* tokens */
#define MOE_CHANNEL_SECRET 32u              /* bytes of HELLO */
#define MOE_CHANNEL_HEARTBEAT_MS 250u

typedef enum {
    MOE_FRAME_HELLO = 1,
    MOE_FRAME_REQUEST,
    MOE_FRAME_CREDIT,
    MOE_FRAME_CANCEL,
    MOE_FRAME_STATS,
    MOE_FRAME_STATE = 64,
    MOE_FRAME_ADMITTED,
    MOE_FRAME_STARTED,
    MOE_FRAME_TOKENS,
    MOE_FRAME_DONE,
    MOE_FRAME_ERROR,
    MOE_FRAME_STATS_REPLY
} moe_frame_type_t;

typedef struct {
    uint32_t size;
    uint16_t type;
    uint16_t version;
    uint64_t id;
} moe_frame_header_t;

/* Reads a header out of the first bytes of a stream.
 * 1: whole frame present (header filled, payload at data + MOE_FRAME_HEADER);
 * 0: more bytes are needed; -1: not a frame (wrong version, too large), with MOE_INVALID. */
int moe_frame_parse(const void *data, size_t size, moe_frame_header_t *header, moe_error_t *error);

/* Starts a frame at the end of `out`; returns its offset in *start for moe_frame_end. */
int moe_frame_begin(moe_buffer_t *out, moe_frame_type_t type, uint64_t id, size_t *start,
                    moe_error_t *error);

/* Writes the payload's size into the header at `start`. */
void moe_frame_end(moe_buffer_t *out, size_t start);

/* A frame without payload. */
int moe_frame_empty(moe_buffer_t *out, moe_frame_type_t type, uint64_t id, moe_error_t *error);

/*
 * Cursor over a payload.  A read past the end gives zeros and sets `failed`, so that a decoder
 * checks once, at its end.
 */
typedef struct {
    const uint8_t *next;
    const uint8_t *end;
    int failed;
} moe_reader_t;

uint8_t moe_read_u8(moe_reader_t *reader);
uint32_t moe_read_u32(moe_reader_t *reader);
uint64_t moe_read_u64(moe_reader_t *reader);
float moe_read_f32(moe_reader_t *reader);

/* u32 length and that many bytes; points into the payload. */
const char *moe_read_bytes(moe_reader_t *reader, uint32_t *size);

/* A u32 count of elements of `element` bytes each that must still be present; 0 when not. */
uint32_t moe_read_count(moe_reader_t *reader, size_t element);

/* Writers append to a buffer; they return 0 or -1 with MOE_LIMIT. */
int moe_write_u8(moe_buffer_t *out, uint8_t value, moe_error_t *error);
int moe_write_u32(moe_buffer_t *out, uint32_t value, moe_error_t *error);
int moe_write_u64(moe_buffer_t *out, uint64_t value, moe_error_t *error);
int moe_write_f32(moe_buffer_t *out, float value, moe_error_t *error);
int moe_write_bytes(moe_buffer_t *out, const char *data, uint32_t size, moe_error_t *error);

#endif
