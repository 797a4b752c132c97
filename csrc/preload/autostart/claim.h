/* One starter at a time, and not too many of them. */
#pragma once

/* Takes the session's claim. Returns a descriptor, or -1 if another starter is at work, or if as
 * many were started in the last ten minutes as may be. The starter inherits the descriptor, and the
 * kernel ends the claim with the starter, however it ends. */
int monarch_claim_start(void);
