/* Asks the daemon for copies of files, and claims files that a program's own reads are to fill. */
#pragma once

#include "preload/session/session.h"

/* Tells the daemon of a file that is open as `fd` and that the catalog does not know. is_part = 1:
 * too little of the file was read to be worth a copy. */
void monarch_tell_unknown(struct session *s, int fd, int is_part);

/* Called when a program asks for `n` bytes of a file without a copy. Once this process has asked
 * for enough of the file, asks the daemon to fill it. Returns whether it has asked the daemon. */
int monarch_request_fill(struct session *s, const struct monarch_entry *e, uint64_t id, uint64_t n);

/* --- claims: a program reads a file itself, and its reads are to be the fill. As long as a claim
 * holds, fills ahead pass the file over, and an order to fill it waits. --- */

/* Whether a program's reads of a file that has no copy are to be its fill. */
int monarch_is_read_direct(const struct session *s, const struct monarch_entry *e, uint64_t id);
/* Claims the file for this process, which reads it. For a second, fills ahead pass the file
 * over. */
void monarch_claim_file(struct session *s, uint64_t id);
/* Gives up the claim of a file whose reads cannot be followed, and asks the daemon to fill the file
 * instead. */
void monarch_fill_instead(struct session *s, const struct monarch_entry *e, uint64_t id);

/* Whether the pages that were read of the file `id` are likely still in the page cache. `sources`
 * has a bit for each source in which the file may lie. For one file in LOOKS the answer is 1 in any
 * case: its handover shows whether the kernel keeps a source's pages by now. */
int monarch_keeps_pages(const struct session *s, uint32_t sources, uint64_t id);
/* Whether the claim's descriptor is on its way to the daemon. Such a claim keeps its slot, because
 * somebody may wait for the claim to end. */
int monarch_is_on_its_way(uint64_t claim, uint64_t now_ns);
/* Makes and returns the claim for a descriptor that is to be sent. Returns 0 if the slot already
 * holds a claim whose descriptor is on its way, of this file or of another file that shares the
 * slot. */
uint64_t monarch_begin_claim(struct session *s, uint64_t id);
/* Ends the claim `claim`. Another thread may have added MONARCH_CLAIM_RECALLED to it meanwhile. */
void monarch_cancel_claim(struct session *s, uint64_t id, uint64_t claim);
/* Ends the file's claim, unless the claim's descriptor is on its way; then the daemon ends the
 * claim. */
void monarch_give_up_claim(struct session *s, uint64_t id);
