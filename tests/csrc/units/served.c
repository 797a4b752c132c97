#include "made.h"

#include <stdlib.h>

#include "preload/descriptors/track.h"

/* Makes a session whose segments are at these addresses in the test's memory, and makes it the
 * current one. dev, ino: identity of the file that counts as the session's segment `control`. */
EXPORT void *served_session(uint64_t control, uint64_t clients, uint64_t catalog, uint64_t dev,
                            uint64_t ino) {
    struct session *s = calloc(1, sizeof *s);
    s->control = (const void *)control;
    s->clients = (void *)clients;
    s->catalog = (const void *)catalog;
    s->fills = calloc(1, sizeof *s->fills);
    s->dev = dev;
    s->ino = ino;
    monarch_current = s;
    return s;
}
EXPORT void served_end(struct session *s) {
    monarch_current = NULL;
    free((void *)s->fills);
    free(s);
}
EXPORT int served_is_off(const struct session *s) { return monarch_is_off(s); }
EXPORT void *served_none(void) { return NULL; }
/* Makes another session with the same segments. */
EXPORT void *served_other(const struct session *s) {
    struct session *other = malloc(sizeof *other);
    *other = *s;
    return other;
}
EXPORT void served_free(struct session *s) { free(s); }
