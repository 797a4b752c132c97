/* The claim is a lock on the session's file `starts`, which prevents two starters from running at
 * once.
 *
 * A starter is the program that starts a daemon. It holds this lock while it runs. The file also
 * stores the times of the last starts. If too many starts were made recently, no further start is
 * allowed. The claim of a file (shared/claims.h) is something else. */
#pragma once

#include <stdint.h>

/* Returns the time until which no starter may be launched [ns of CLOCK_MONOTONIC], or 0 if one may
 * be launched now. Considers only the times of the last starts, not whether another starter holds
 * the lock. The limits are in claim.c. */
uint64_t monarch_claim_taken_until(void);

/* Takes the claim, and stores the time of this start. Returns the descriptor that holds the lock,
 * or -1 if another starter runs or if no start is allowed now. Sets *errors to a descriptor of the
 * session's log, or to -1 if the log cannot be opened.
 *
 * Call this only in the process that becomes the starter. If the user's program took the lock, its
 * children would inherit the lock. The kernel releases the lock when the starter ends, even if the
 * starter is killed. */
int monarch_claim_start(int *errors);
