/* Checks whether this process may read, at the source, everything that the daemon may read.
 *
 * Without this check, a process could read copies of files that it may not read at the source.
 * Copies belong to the daemon's user, and do not have the permissions of their source files. */
#pragma once

#include "preload/session/session.h"

/* Returns 0 if this process lacks some of the daemon's rights. All reads of this process must then
 * go to the source. */
int monarch_rights_suffice(const struct session *s);
