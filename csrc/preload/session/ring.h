/* Wakes the daemon, and sends it paths that its catalog does not know. */
#pragma once

#include "preload/session/session.h"

/* Wakes the daemon if it sleeps. */
void monarch_ring(struct session *s);
/* Whether there may be room for a path. */
int monarch_may_hint_scan(const struct session *s);
/* Sends the daemon a path that its catalog does not know. The path is a hint: it is dropped when
 * there is no room. */
void monarch_hint_scan(struct session *s, unsigned source, const char *path, size_t len,
                       int is_part);
