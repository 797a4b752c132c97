/* What this node's daemon holds and serves to its peers. */
#pragma once

#include "native.h"
#include "peers/peers.h"

/* What a node holds: whole copies, copies that are being filled from the source, and files that it
 * keeps and has no copy of yet. When a peer asks for one of these last files, the node wants it
 * from then on, as if a program of its own had opened it. */
struct monarch_holdings;

/* How many rotten copies, and how many files that this node has begun to keep, are remembered until
 * they are taken. Further ones are not noted, and are found again. */
enum { MONARCH_ROTTEN = 64, MONARCH_MOVED = 1024 };

/* What this node answers for a file of which it has no copy. */
enum monarch_home_here {
    MONARCH_KEPT_ELSEWHERE,
    MONARCH_KEPT_HERE,
    MONARCH_MOVED_TO, /* plus the number of another node: there was no room here */
};

#ifndef MONARCH_CDEF
/* A file's version, as nodes tell it to each other. It includes the time of the inode's change: a
 * file whose time of modification was set back is another version. */
static inline int64_t monarch_times_of(const struct monarch_entry *e) {
    return (int64_t)monarch_mix((uint64_t)e->mtime_ns ^ monarch_mix((uint64_t)e->ctime_ns));
}
#endif

/* Returns NULL without memory. The segments are those of the session. content_key:
 * MONARCH_KEY_BYTES, for digests. */
struct monarch_holdings *monarch_holdings_new(struct monarch_clients *clients,
                                              const struct monarch_fills *fills,
                                              uint64_t block_bytes,
                                              const unsigned char *content_key);
void monarch_holdings_source(struct monarch_holdings *h, uint32_t source, uint64_t device);
/* Sets the directory of a tier's copies. */
void monarch_holdings_tier(struct monarch_holdings *h, uint32_t tier, int copies);
/* Sets the catalog. Once this returns, no thread reads the catalog before it. NULL: nothing is
 * held. */
void monarch_holdings_catalog(struct monarch_holdings *h, const struct monarch_catalog *c);
/* Sets for each of these files whether this node keeps it (enum monarch_home_here). The node may
 * have copies of other files, too, but it never fills such a file because a peer asks for it:
 * requests are not passed on. */
void monarch_holdings_keep(struct monarch_holdings *h, uint64_t n, const uint64_t *ids,
                           const uint16_t *home);
/* Takes the files that this node has begun to keep because peers take it for the files' owner: the
 * nodes before it in a file's order may have no room for the file. `ids` gets the files' entries
 * (MONARCH_MOVED,). Returns how many files it took. */
uint64_t monarch_holdings_moved(struct monarch_holdings *h, uint64_t *ids);
/* Which askers wait for a file that is not there, while it is not known yet which files this node
 * keeps. Other askers are told that the file will not come. At first everybody waits. */
enum monarch_patience {
    MONARCH_EVERYBODY_WAITS,
    MONARCH_WHO_HAS_TIME_WAITS, /* askers whose bytes no reader waits for */
    MONARCH_NOBODY_WAITS,
};
void monarch_holdings_patience(struct monarch_holdings *h, int patience);
struct monarch_peer_server *monarch_holdings_serve(struct monarch_holdings *h,
                                                   const struct monarch_peer_bounds *bounds);
/* Wakes the askers that wait for this file, because some of it has come, or nothing more will come.
 * h: NULL if nobody can ask. */
void monarch_holdings_wake(struct monarch_holdings *h, uint32_t source, uint64_t path_hash);
/* Returns the key with which a fill makes digests of blocks. Returns NULL if `h` is NULL: nobody
 * asks. */
const unsigned char *monarch_holdings_key(const struct monarch_holdings *h);
/* Records the sums of the blocks of a copy that is whole now. sums: NULL if the copy is gone.
 * digests: NULL if they are not known. h: NULL if nobody asks. */
void monarch_holdings_sums(struct monarch_holdings *h, uint64_t copy, const uint64_t *sums,
                           const struct monarch_digest *digests, uint64_t blocks);
/* Wakes the askers of files that are settled without a copy, so that they are told. */
void monarch_holdings_answer(struct monarch_holdings *h);
/* Takes the copies that are not what their fills have written. `ids` gets the copies' entries,
 * `words` the copies' words: (MONARCH_ROTTEN,) each. An entry may have another word by now. Returns
 * how many copies it took. */
uint64_t monarch_holdings_rotten(struct monarch_holdings *h, uint64_t *ids, uint64_t *words);
/* Closes all connections and joins the server's threads. */
void monarch_holdings_stop(struct monarch_holdings *h, struct monarch_peer_server *s);
void monarch_holdings_free(struct monarch_holdings *h);

/* Connects the engine with peers: the peer that orders name by `number`, and the holdings whose
 * askers are told of what the engine fills. Set both back (NULL) before they are freed. */
void monarch_engine_peer(struct monarch_engine *e, unsigned number, struct monarch_peer *peer);
void monarch_engine_holdings(struct monarch_engine *e, struct monarch_holdings *h);
