/* The trials: one array for each C file that defines trials. The last element of each array only
 * marks the end, and has no name. */
#ifndef TRIALS_H
#define TRIALS_H

#include "scheduler.h"

extern const struct trial entry_trials[], descriptor_trials[], filling_trials[], handover_trials[],
    waiting_trials[], claim_trials[];

#endif
