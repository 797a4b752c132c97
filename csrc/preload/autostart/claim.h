/* The claim is a lock on the session's file `starts`, which prevents two starters from running at
 * once.
 *
 * A starter is the program that starts a daemon. It must hold this lock while it runs. The file
 * also stores the times of the last starts. If too many starts were made recently, no further start
 * is allowed. This claim has nothing to do with the claim of a file (shared/claims.h). */
#pragma once

#include <stdint.h>

/* Returns the time until which no starter may be launched [ns of CLOCK_MONOTONIC], or 0 if one may
 * be launched now. Two launches must be some seconds apart, and only a few are allowed within ten
 * minutes. */
uint64_t monarch_claim_taken_until(void);

/* Takes the claim, and records the time of this start. Call this in the process that becomes the
 * starter. Do not call it in the process of the user's program, because that program's children
 * would inherit the lock. Returns the descriptor that holds the lock, or -1 if another starter runs
 * or if no start is allowed now. The kernel releases the lock when the starter ends, even if the
 * starter is killed. Sets *errors to a descriptor of the session's log, or to -1 if the log cannot
 * be opened. */
int monarch_claim_start(int *errors);
