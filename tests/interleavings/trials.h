/* All trials, an array for each file. The last element of an array has no name. */
#ifndef TRIALS_H
#define TRIALS_H

#include "scheduler.h"

extern const struct trial entry_trials[], descriptor_trials[], filling_trials[], handover_trials[],
    waiting_trials[], claim_trials[];

#endif
