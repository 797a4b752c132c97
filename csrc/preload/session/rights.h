/* Whether this process may read, at the source, all that the daemon may read.
 *
 * Copies belong to the daemon's user and do not carry the permissions of their source files. */
#pragma once

#include "preload/session/session.h"

/* Returns 0 if this process lacks some of the daemon's rights. Then every read goes to the
 * source. */
int monarch_rights_suffice(const struct session *s);
