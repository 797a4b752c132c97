/* One starter at a time, and not too many of them. */
#pragma once

#include <stdint.h>

/* Returns until when no starter may be started, because one was a moment ago, or as many in the
 * last ten minutes as may be; 0 if one may [ns of CLOCK_MONOTONIC]. */
uint64_t monarch_claim_taken_until(void);

/* Takes the session's claim. It is called in the process that becomes the starter, and not in the
 * program, whose children would inherit the claim. Returns its descriptor, or -1 if another starter
 * is at work, or if none may be started now. The kernel ends the claim with the starter, however it
 * ends. Opens the session's log as *errors; -1 if it cannot. */
int monarch_claim_start(int *errors);
