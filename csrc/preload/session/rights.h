/* Whether this process may read, at the source, all that the daemon may read.
 *
 * Copies belong to the daemon's user and do not carry the permissions of their source files. */
#ifndef MONARCH_RIGHTS_H
#define MONARCH_RIGHTS_H

#include "preload/session/session.h"

/* 0: every read goes to the source. */
int monarch_rights_suffice(const struct session *s);

#endif
