#include "preload/fill/request.c"

#include "made.h"

EXPORT int request_fill(struct session *s, uint64_t id, uint64_t n) {
    return monarch_request_fill(s, &monarch_entries(s->catalog)[id], id, n);
}
