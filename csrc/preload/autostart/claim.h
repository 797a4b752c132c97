/* The claim is a lock on the session's file `starts`. A starter must hold this lock, so only one
 * starter runs at a time. The file also stores the times of the last starts. If too many starts
 * were made recently, no further start is allowed. */
#pragma once

#include <stdint.h>

/* Returns the time until which no starter may be started [ns of CLOCK_MONOTONIC], or 0 if one may
 * be started now. A starter may be started only some seconds after the previous one, and only a few
 * may be started within ten minutes. */
uint64_t monarch_claim_taken_until(void);

/* Takes the session's claim. Call this in the process that becomes the starter. Do not call it in
 * the program itself, because the program's children would inherit the claim. Returns the claim's
 * descriptor, or -1 if another starter is at work or if no starter may be started now. The kernel
 * releases the claim when the starter ends, even if the starter is killed. Sets *errors to a
 * descriptor of the session's log, or to -1 if the log cannot be opened. */
int monarch_claim_start(int *errors);
