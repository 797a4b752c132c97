/* Lets go of sessions whose daemon is gone and that nobody uses any more. */
#ifndef MONARCH_RETIRE_H
#define MONARCH_RETIRE_H

#include "preload/session/session.h"

/* After `newest` has taken the place of another: gives back what sessions before that one have
 * mapped, but for those that the process has copies or listings open of. */
void monarch_retire(struct session *newest);

#endif
