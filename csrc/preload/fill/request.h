/* Requests copies of files from the daemon, and claims files that a program's own reads are to
 * fill. */
#pragma once

#include "preload/session/session.h"

/* Tells the daemon of a file that the catalog does not know. The program has the file open as `fd`.
 * is_part: 1 if the program has read some of the file, but too little for the file to be worth a
 * copy. */
void monarch_tell_unknown(struct session *s, int fd, int is_part);

/* Call this when a program asks for `n` bytes of a file without a copy. Once this process has asked
 * for enough of the file (`fill_after`), requests a fill from the daemon. Returns whether a fill
 * was requested. */
int monarch_request_fill(struct session *s, const struct monarch_entry *e, uint64_t id, uint64_t n);

/* --- claims --------------------------------------------------------------------------------------
 * A claim says that a program reads a file itself, and that its reads are to serve as the fill.
 * While the claim lasts, the daemon does not fill the file ahead, and delays a fill that its policy
 * has ordered. */

/* Whether a program's reads of the file can serve as its fill. They cannot in any of these cases:
 * the file is empty or too large; its source is fast (monarch_is_fast); the kernel keeps no pages
 * of the source (monarch_keeps_pages); a lock on the file was seen; or nodes share the files, and
 * this node does not read this file from the source. */
int monarch_may_read_direct(const struct session *s, const struct monarch_entry *e, uint64_t id);
/* Whether a program that opens the file now is to fill it by its own reads. All of this must be
 * true: the reads can serve as the fill (monarch_may_read_direct); the file has no copy; no fill of
 * the file has begun; and no program has requested a fill since the daemon last took the requests.
 * A fill that the daemon's policy has ordered has begun only once a thread works on it. word: the
 * entry's word. */
int monarch_is_read_direct(struct session *s, const struct monarch_entry *e, uint64_t id,
                           uint64_t word);
/* Claims the file for this process, which is reading it. The claim lasts a second. */
void monarch_claim_file(struct session *s, uint64_t id);
/* Ends the claim of a file whose reads cannot be followed, and requests a fill from the daemon
 * instead. */
void monarch_fill_instead(struct session *s, const struct monarch_entry *e, uint64_t id);

/* Whether the pages of the file `id`, once read, are likely still in the page cache. `sources` has
 * a bit for each source in which the file may lie. For one file in LOOKS (request.c), the result is
 * always 1. The handover of that file shows whether the kernel now keeps the source's pages. */
int monarch_keeps_pages(const struct session *s, uint32_t sources, uint64_t id);
/* Whether the claim's descriptor was handed over, or is about to be, and the daemon has not closed
 * it yet. Meanwhile, the claim must keep its slot, because another thread may wait for the claim's
 * end. */
int monarch_is_on_its_way(uint64_t claim, uint64_t now_ns);
/* Makes the claim for a descriptor that is about to be sent, and returns it. Returns 0 if the slot
 * already has a claim whose descriptor is on its way (monarch_is_on_its_way): a claim of this file,
 * or of another file that shares the slot. */
uint64_t monarch_begin_claim(struct session *s, uint64_t id);
/* Ends the claim `claim`, even if another thread has added MONARCH_CLAIM_RECALLED to it
 * meanwhile. */
void monarch_cancel_claim(struct session *s, uint64_t id, uint64_t claim);
/* Ends the file's claim, unless a descriptor of the file was handed over. In that case, the daemon
 * ends the claim. */
void monarch_give_up_claim(struct session *s, uint64_t id);
