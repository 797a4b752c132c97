#include "made.h"

#include <stdlib.h>

struct session *made_session(void) {
    struct session *s = calloc(1, sizeof *s);
    struct monarch_control *control = calloc(1, sizeof *control);
    struct monarch_catalog measure;
    monarch_lay_out(&measure, MADE_ENTRIES, MADE_ENTRIES);
    struct monarch_catalog *c = calloc(1, measure.bytes);
    *c = measure;
    c->generation = control->generation = 1;
    control->state = MONARCH_SERVING;
    s->control = control;
    s->clients = calloc(1, sizeof *s->clients);
    s->fills = calloc(1, sizeof *s->fills);
    s->catalog = c;
    monarch_current = s;
    return s;
}

EXPORT void *new_session(void) { return made_session(); }
EXPORT void free_session(struct session *s) {
    monarch_current = NULL;
    free((void *)s->control);
    free(s->clients);
    free((void *)s->fills);
    free((void *)s->catalog);
    free(s);
}
EXPORT const void *control_of(struct session *s) { return s->control; }
EXPORT const void *clients_of(struct session *s) { return s->clients; }
EXPORT const void *fills_in(struct session *s) { return s->fills; }
EXPORT const void *entries_of(struct session *s) { return monarch_entries(s->catalog); }
