/* Requests to the daemon for a file's copy, and claims of programs that read the file themselves.
 */
#pragma once

#include "preload/session/session.h"

/* Tells the daemon of a file that the catalog does not know, open as `fd`. `is_part`: too little of
 * it was read to be worth a copy. */
void monarch_tell_unknown(struct session *s, int fd, int is_part);

/* Called when `n` bytes of a file without a copy are asked for. If that, with what this process has
 * asked for before, is reason enough to fill the file, tells the daemon. Returns whether it is. */
int monarch_request_fill(struct session *s, const struct monarch_entry *e, uint64_t id, uint64_t n);

/* --- claims: a program reads a file itself, and its reads are to be the fill. As long as a claim
 * holds, fills ahead pass the file over, and an order to fill it waits. --- */

/* Whether a program's reads of a file that has no copy are to be its fill. */
int monarch_is_read_direct(const struct session *s, const struct monarch_entry *e, uint64_t id);
/* Claims the file for this process, which reads it: for a second, fills ahead pass it over. */
void monarch_claim_file(struct session *s, uint64_t id);
/* For a claimed file whose reads cannot be followed: the daemon fills it instead. */
void monarch_fill_instead(struct session *s, const struct monarch_entry *e, uint64_t id);

/* Whether to expect in the page cache what was read of the file `id`, which lies on one of
 * `sources` (a bit each). One file in LOOKS gets 1 in any case, to see whether that has changed. */
int monarch_keeps_pages(const struct session *s, uint32_t sources, uint64_t id);
/* Whether the claim's descriptor is on its way to the daemon. Such a claim keeps its place, because
 * somebody may wait for its end. */
int monarch_is_on_its_way(uint64_t claim, uint64_t now_ns);
/* Makes the claim for a descriptor that is to be sent. 0: another descriptor of this file is on its
 * way, or another claim has the slot. */
uint64_t monarch_begin_claim(struct session *s, uint64_t id);
/* Ends this claim, which may have got MONARCH_CLAIM_RECALLED meanwhile. */
void monarch_cancel_claim(struct session *s, uint64_t id, uint64_t claim);
/* Ends the file's claim, unless its descriptor is on its way: the daemon ends that one. */
void monarch_give_up_claim(struct session *s, uint64_t id);
