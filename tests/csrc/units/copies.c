#include "preload/session/copies.c"

#include "made.h"

EXPORT int copies_source_path(struct session *s, uint64_t id, char *out) {
    return monarch_source_path(s, s->catalog, &monarch_entries(s->catalog)[id], out);
}
EXPORT int copies_is_as_scanned(struct session *s, uint64_t id, const char *path) {
    struct stat st;
    return sys_fstatat(AT_FDCWD, path, &st, 0) == 0 &&
           monarch_is_as_scanned(s, &monarch_entries(s->catalog)[id], &st);
}
EXPORT int copies_has_mode(unsigned mode) { return monarch_has_mode_of_copy(mode); }
