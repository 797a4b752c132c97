#include "preload/lookup/where.c"

#include "made.h"

EXPORT int64_t where_locate(struct session *s, int dir, const char *path, int follow) {
    const struct monarch_catalog *c;
    return monarch_locate(s, &c, dir, path, follow);
}
EXPORT int64_t where_locate_in(struct session *s, int dir, const char *path, int follow) {
    const struct monarch_catalog *c;
    char text[MONARCH_PATH_MAX];
    return monarch_locate_in(s, &c, dir, path, follow, text);
}
/* Looks the path up as an open does. */
EXPORT int64_t where_locate_opened(struct session *s, int dir, const char *path) {
    struct monarch_aim a;
    return monarch_aim(s, dir, path, 1, &a) ? monarch_locate_aimed(s, &a, dir, path, 1)
                                            : MONARCH_OUTSIDE;
}
EXPORT int where_leads_nowhere(int dir, const char *path) {
    return monarch_leads_nowhere(dir, path);
}
EXPORT int64_t where_outside(void) { return MONARCH_OUTSIDE; }
