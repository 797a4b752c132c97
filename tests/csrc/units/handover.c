#include "preload/fill/handover.c"

#include "made.h"

EXPORT int handover_may_read_direct(struct session *s, uint64_t id) {
    return monarch_may_read_direct(s, &monarch_entries(s->catalog)[id], id);
}
EXPORT int handover_is_read_direct(struct session *s, uint64_t id) {
    const struct monarch_entry *e = &monarch_entries(s->catalog)[id];
    return monarch_is_read_direct(s, e, id, e->word);
}
EXPORT int handover_is_at_random(struct session *s, uint64_t id, uint64_t bytes, uint64_t n,
                                 int64_t end) {
    return is_read_at_random(-1, &monarch_entries(s->catalog)[id], bytes, n, end);
}
EXPORT void handover_note_locks(uint64_t dev, uint64_t ino) { monarch_note_locks(dev, ino); }
EXPORT int handover_is_fast_device(struct session *s, uint64_t dev) {
    return is_fast_device(s, dev);
}
/* Writes the path of the descriptor's file within its source to `out`. Returns the source's number,
 * or -1 if the file is in no source, or if the path is too long. Returns -2 if the length that is
 * reported for the path is wrong. */
EXPORT int handover_find_path(struct session *s, int fd, char *out) {
    struct monarch_handover what;
    if (!find_path(s, fd, &what))
        return -1;
    memcpy(out, what.path, what.path_len + 1);
    return strlen(out) == what.path_len ? (int)what.source : -2;
}
EXPORT void handover_note_read(int fd, int64_t n, int64_t at) { monarch_note_read(fd, n, at); }
EXPORT void handover_close(int fd) { monarch_close_direct(fd, monarch_tracked(fd)); }
EXPORT int handover_is_over(int fd) { return monarch_direct_is_over(fd, monarch_tracked(fd)); }
EXPORT void handover_keep(int fd) { monarch_keep_descriptor(fd); }
/* Begins to follow the reads of a file without an entry. Returns whether that is possible. */
EXPORT int handover_read_unmet(struct session *s, int fd) {
    struct stat st;
    sys_fstat(fd, &st);
    return monarch_read_unmet(s, fd, &st);
}
/* Returns how many bytes of a message precede the path (has_path = 1) or the number of the source
 * (has_path = 0). */
EXPORT int handover_head(int has_path) {
    return has_path ? (int)offsetof(struct monarch_handover, path)
                    : (int)offsetof(struct monarch_handover, source);
}
