/* What this node's daemon holds, as its peers ask for it. */
#ifndef MONARCH_SERVING_H
#define MONARCH_SERVING_H

#ifndef MONARCH_CDEF
#include "native.h"
#include "peers/peers.h"
#endif

/* Copies that are whole, copies that are being filled from the source, and what this node keeps and
 * has no copy of yet: that it wants from then on, as if a program of its own had opened it. */
struct monarch_holdings;

/* So many are remembered until they are taken; what comes to more is found again. */
enum { MONARCH_ROTTEN = 64, MONARCH_MOVED = 1024 };

/* The answer of this node for a file that it has no copy of. */
enum monarch_home_here {
    MONARCH_KEPT_ELSEWHERE,
    MONARCH_KEPT_HERE,
    MONARCH_MOVED_TO, /* and a node's number: there was no room here */
};

#ifndef MONARCH_CDEF
/* What stands for a file's version between nodes. With the time of its inode: a file whose time of
 * modification was set back is another one. */
static inline int64_t monarch_times_of(const struct monarch_entry *e) {
    return (int64_t)monarch_mix((uint64_t)e->mtime_ns ^ monarch_mix((uint64_t)e->ctime_ns));
}
#endif

/* NULL without memory. The segments are those of the session. content_key: MONARCH_KEY_BYTES, for
 * digests. */
struct monarch_holdings *monarch_holdings_new(struct monarch_clients *clients,
                                              const struct monarch_fills *fills,
                                              uint64_t block_bytes,
                                              const unsigned char *content_key);
void monarch_holdings_source(struct monarch_holdings *h, uint32_t source, uint64_t device);
/* The directory of a tier's copies. */
void monarch_holdings_tier(struct monarch_holdings *h, uint32_t tier, int copies);
/* The catalog from now on. When this returns nobody reads the one before. NULL: nothing is held. */
void monarch_holdings_catalog(struct monarch_holdings *h, const struct monarch_catalog *c);
/* Which of these files this node keeps (enum monarch_home_here). What it does not keep it may have
 * all the same, but never gets for somebody else: a request is not passed on. */
void monarch_holdings_keep(struct monarch_holdings *h, uint64_t n, const uint64_t *ids,
                           const uint16_t *home);
/* Takes files that this node keeps because peers take it for their owner: those before it in a
 * file's order may have no room for it. (MONARCH_MOVED,) entries; returns how many. */
uint64_t monarch_holdings_moved(struct monarch_holdings *h, uint64_t *ids);
/* As long as it is not known which files this node keeps: who waits for what is not there, instead
 * of being told that it never will be. At first everybody. */
enum monarch_patience {
    MONARCH_EVERYBODY_WAITS,
    MONARCH_WHO_HAS_TIME_WAITS, /* whose bytes nobody waits for */
    MONARCH_NOBODY_WAITS,
};
void monarch_holdings_patience(struct monarch_holdings *h, int patience);
struct monarch_peer_server *monarch_holdings_serve(struct monarch_holdings *h,
                                                   const struct monarch_peer_bounds *bounds);
/* Something of this file has come, or will not come any more; NULL: nobody can ask. */
void monarch_holdings_wake(struct monarch_holdings *h, uint32_t source, uint64_t path_hash);
#ifndef MONARCH_CDEF
/* The key that a fill makes digests of blocks with; NULL for NULL: nobody asks. */
const unsigned char *monarch_holdings_key(const struct monarch_holdings *h);
/* The sums of the blocks of a copy that is whole now; NULL: the copy is gone. digests: NULL if they
 * are not known. NULL for `h`: nobody asks. */
void monarch_holdings_sums(struct monarch_holdings *h, uint64_t copy, const uint64_t *sums,
                           const struct monarch_digest *digests, uint64_t blocks);
#endif
/* What was waited for and is settled without a copy: whoever waits for it is told. */
void monarch_holdings_answer(struct monarch_holdings *h);
/* Takes copies that are not what their fills have written: (MONARCH_ROTTEN,) entries, and the words
 * of the copies, which may be others by now. Returns how many. */
uint64_t monarch_holdings_rotten(struct monarch_holdings *h, uint64_t *ids, uint64_t *words);
/* Closes all and joins the threads. */
void monarch_holdings_stop(struct monarch_holdings *h, struct monarch_peer_server *s);
void monarch_holdings_free(struct monarch_holdings *h);

/* What the engine has to do with peers: whom an order names by `number`, and whose askers are told
 * of what it fills. Both are taken back (NULL) before they are freed. */
void monarch_engine_peer(struct monarch_engine *e, unsigned number, struct monarch_peer *peer);
void monarch_engine_holdings(struct monarch_engine *e, struct monarch_holdings *h);

#endif
