/*
 * A line ends with LF, CR or CR LF; an empty one ends the event.  A line that comes in one piece is
 * read where it lies, so that nearly every byte is copied once.
 */

#include "t/bench/load/sse.h"

#include <string.h>

#define EVENT_LIMIT (4u << 20)


void load_sse_begin(load_sse_t *sse)
{
    sse->line.size = sse->event.size = 0;
    sse->line.limit = sse->event.limit = EVENT_LIMIT;
    sse->has_data = sse->after_cr = 0;
}


void load_sse_free(load_sse_t *sse)
{
    moe_buffer_free(&sse->line);
    moe_buffer_free(&sse->event);
}


static int dispatch(load_sse_t *sse, load_sse_event_t event, void *context, moe_error_t *error)
{
    size_t size = sse->event.size;

    if (!sse->has_data) {
        return 0;
    }
    if (moe_buffer_append(&sse->event, "", 1, error) != 0) {
        return -1;
    }
    sse->event.size = 0;
    sse->has_data = 0;
    return event(context, sse->event.data, size, error);
}


static int read_line(load_sse_t *sse, const char *line, size_t size, load_sse_event_t event,
                     void *context, moe_error_t *error)
{
    if (size == 0) {
        return dispatch(sse, event, context, error);
    }
    if (size < 5 || memcmp(line, "data:", 5) != 0) {
        return 0;
    }
    line += 5;
    size -= 5;
    if (size > 0 && *line == ' ') {
        line++;
        size--;
    }
    if (sse->has_data && moe_buffer_append(&sse->event, "\n", 1, error) != 0) {
        return -1;
    }
    sse->has_data = 1;
    return moe_buffer_append(&sse->event, line, size, error);
}


/* The first byte that ends a line, or NULL. */
static const char *find_end(const char *data, size_t size)
{
    const char *lf = memchr(data, '\n', size);
    const char *cr = memchr(data, '\r', lf ? (size_t) (lf - data) : size);

    return cr ? cr : lf;
}


int load_sse_feed(load_sse_t *sse, const char *data, size_t size, load_sse_event_t event,
                  void *context, moe_error_t *error)
{
    const char *last = data + size, *end;
    int rc = 0;

    while (rc == 0 && data < last) {
        if (sse->after_cr) {
            sse->after_cr = 0;
            if (*data == '\n') {
                data++;
                continue;
            }
        }
        end = find_end(data, (size_t) (last - data));
        if (end == NULL) {
            return moe_buffer_append(&sse->line, data, (size_t) (last - data), error);
        }
        if (sse->line.size == 0) {
            rc = read_line(sse, data, (size_t) (end - data), event, context, error);
        } else {
            rc = moe_buffer_append(&sse->line, data, (size_t) (end - data), error);
            if (rc == 0) {
                rc = read_line(sse, sse->line.data, sse->line.size, event, context, error);
            }
            sse->line.size = 0;
        }
        sse->after_cr = *end == '\r';
        data = end + 1;
    }
    return rc;
}
