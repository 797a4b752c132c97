/* Whether this process may read, at the source, whatever the daemon may. Copies belong to the
 * daemon's user and say nothing of the rights that their files give. */
#ifndef MONARCH_RIGHTS_H
#define MONARCH_RIGHTS_H

#include "preload/session/session.h"

/* 0 sends every read to the source. */
int monarch_rights_suffice(const struct session *s);

#endif
