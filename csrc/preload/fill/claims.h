/* Claims: a program reads a file itself, and its reads are to be the fill. What fills ahead passes
 * a claimed file over, and an order to fill it waits, for as long as the claim holds. */
#ifndef MONARCH_CLAIMS_H
#define MONARCH_CLAIMS_H

#include "preload/session/session.h"

/* Whether the reads of a file that has no copy are to be its fill. */
int monarch_is_read_direct(const struct session *s, const struct monarch_entry *e, uint64_t id);
/* This process reads the file: for a second, fills ahead pass it over. */
void monarch_claim_file(struct session *s, uint64_t id);
/* The file was claimed, and its reads cannot be followed: the daemon fills it. */
void monarch_fill_instead(struct session *s, const struct monarch_entry *e, uint64_t id);

/* Whether the kernel keeps what was read of the file, on one of the sources with these bits. */
int monarch_keeps_pages(const struct session *s, uint32_t sources, uint64_t id);
/* Whether the claim's descriptor is on its way to the daemon. Such a claim keeps its place, because
 * somebody may wait for its end. */
int monarch_is_on_its_way(uint64_t claim, uint64_t now_ns);
/* The claim of a descriptor that is to be sent; 0: another one of this file is on its way, or has
 * the place. */
uint64_t monarch_begin_claim(struct session *s, uint64_t id);
/* Ends this claim, which may have been recalled meanwhile. */
void monarch_cancel_claim(struct session *s, uint64_t id, uint64_t claim);
/* Ends the file's claim, unless its descriptor is on its way: then the daemon ends it. */
void monarch_give_up_claim(struct session *s, uint64_t id);

#endif
