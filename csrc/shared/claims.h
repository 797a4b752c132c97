/* Makes, checks and ends claims. A claim says that a program is reading a file at the source, and
 * will hand over its descriptor for the fill. While the claim lasts, the daemon does not prefetch
 * the file. A fill that was already ordered waits. */
#pragma once

#include "shared/catalog.h"

/* --- the program's side ----------------------------------------------------------------------- */

/* Claims the file for this process, which is reading it. The claim lasts a second. */
void monarch_claim_file(struct monarch_clients *m, uint64_t id);
/* Returns whether the claim's descriptor is in transit. This begins shortly before the handover. It
 * ends when the daemon closes the descriptor, or when the claim expires. In between, no other claim
 * may replace this claim in its slot: another thread may be waiting for this claim's end. */
int monarch_is_in_transit(uint64_t claim, uint64_t now_ns);
/* Makes and returns the claim for a descriptor that is about to be sent to the daemon. Returns 0 if
 * the slot already has a claim whose descriptor is in transit. That claim may be for this file, or
 * for another file that shares the slot. */
uint64_t monarch_begin_claim(struct monarch_clients *m, uint64_t id);
/* Ends `claim`, which monarch_begin_claim has returned for the file, even if another thread has
 * added MONARCH_CLAIM_RECALLED to it since then. */
void monarch_cancel_claim(struct monarch_clients *m, uint64_t id, uint64_t claim);
/* Ends the file's claim if no descriptor of the file was handed over. Otherwise does nothing,
 * because the daemon then ends the claim. */
void monarch_give_up_claim(struct monarch_clients *m, uint64_t id);

/* --- the daemon's side ------------------------------------------------------------------------ */

/* Returns whether a program is reading the file at the source and will hand over the file's
 * descriptor. */
int monarch_is_being_read(const struct monarch_clients *m, uint64_t id, uint64_t ino,
                          uint64_t now_ns);
/* Ends the claim of a file whose descriptor was handed over. Call this after that descriptor was
 * closed. */
void monarch_end_claim(struct monarch_clients *m, uint64_t id);
/* Returns whether the daemon must now close the handed-over descriptor of the file. There are three
 * reasons: a program waits until it is closed; the file's claim has expired; or the claim's slot
 * now has another value. */
int monarch_is_recalled(const struct monarch_clients *m, uint64_t id, uint64_t now_ns);
