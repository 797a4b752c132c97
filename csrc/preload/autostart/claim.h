/* The claim that a starter must have. The claim ensures that only one starter runs at a time, and
 * limits the number of starts. */
#pragma once

#include <stdint.h>

/* Returns the time until which no starter may be started [ns of CLOCK_MONOTONIC], or 0 if one may
 * be started now. No starter may be started right after another one, or if the starts that are
 * allowed in ten minutes are used up. */
uint64_t monarch_claim_taken_until(void);

/* Takes the session's claim. Call this in the process that becomes the starter. Do not call it in
 * the program itself, because the program's children would inherit the claim. Returns the claim's
 * descriptor, or -1 if another starter is at work or if none may be started now. However the
 * starter ends, the kernel then ends the claim. *errors gets a descriptor of the session's log, or
 * -1 if the log cannot be opened. */
int monarch_claim_start(int *errors);
