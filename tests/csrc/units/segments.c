#include "preload/session/segments.c"

#include "made.h"

EXPORT int segments_find(const char *config) { return monarch_find_session_dir(config); }
EXPORT const char *segments_directory(void) { return monarch_session_dir(); }
EXPORT int segments_was_stopped(void) { return monarch_was_stopped(); }
/* Maps the segment. Returns its address and size, or 0 and 0. */
EXPORT uint64_t segments_map(const char *name, uint64_t *size) {
    struct monarch_segment found;
    int done = monarch_map_segment(name, &found);
    *size = done ? found.size : 0;
    return done ? (uint64_t)found.map : 0;
}
EXPORT int segments_is_usable(uint64_t control, uint64_t size) {
    return monarch_control_is_usable((const void *)control, size);
}
EXPORT int segments_is_sound(uint64_t catalog, uint64_t size) {
    return is_sound((const void *)catalog, size);
}
EXPORT void segments_lay_out(uint64_t catalog, uint64_t capacity, uint64_t pool_bytes) {
    monarch_lay_out((struct monarch_catalog *)catalog, capacity, pool_bytes);
}
EXPORT uint64_t segments_map_range(int kind, int *reused) {
    return (uint64_t)monarch_map_range((enum monarch_range)kind, reused);
}
EXPORT uint64_t segments_range_bytes(int kind) { return ranges[kind].bytes; }
EXPORT void segments_discard(int kind, uint64_t at, int reused) {
    monarch_discard_range((enum monarch_range)kind, (void *)at, reused);
}
/* Unmaps all spare ranges. Returns how many there were. */
EXPORT int segments_drop_spares(void) {
    int n = 0;
    for (int kind = 0; kind < MONARCH_RANGES; kind++)
        for (void *at; (at = take_spare((enum monarch_range)kind)); n++)
            sys_unmap(at, ranges[kind].bytes);
    return n;
}
/* Maps the session's segment `fills`, if it is not mapped yet. */
EXPORT uint64_t segments_fills(struct session *s) { return (uint64_t)monarch_fills_of(s); }
EXPORT uint64_t segments_set_fills(struct session *s, uint64_t at) {
    uint64_t was = (uint64_t)s->fills;
    s->fills = (const void *)at;
    return was;
}
EXPORT uint64_t segments_catalog_of(struct session *s) { return (uint64_t)s->catalog; }
/* Looks for the catalog of the newest generation. Returns the catalog that the session then has. */
EXPORT uint64_t segments_newer_catalog(struct session *s) {
    return (uint64_t)monarch_catalog_slow(s, s->catalog);
}
EXPORT void segments_set_catalog(struct session *s, uint64_t at) { s->catalog = (const void *)at; }
EXPORT uint64_t segments_older(struct session *s, int i) { return (uint64_t)s->older[i]; }
