/* The copies that this node's daemon serves to its peers. */
#pragma once

#include "native.h"
#include "peers/peers.h"

/* The holdings: the files that this node can serve to its peers. Some have complete copies; the
 * copies of others are being filled. This node is to keep still others, but has not filled them
 * yet. If a peer requests such a file, this node fills it, as if one of its own programs had opened
 * it. */
struct monarch_holdings;

/* Maximum numbers of recorded rotten copies (monarch_holdings_rotten) and of recorded files
 * (monarch_holdings_moved). Any more are recorded only when a later request finds them again. */
enum { MONARCH_ROTTEN = 64, MONARCH_MOVED = 1024 };

/* Which node keeps the copy of a file, as far as this node knows. This decides the answer if a peer
 * requests a file of which this node has no copy. */
enum monarch_home_here {
    MONARCH_KEPT_ELSEWHERE,
    MONARCH_KEPT_HERE,
    /* MONARCH_MOVED_TO + n: node n keeps the file, because this node had no room for it */
    MONARCH_MOVED_TO,
};

#ifndef MONARCH_CDEF
/* Returns a number that identifies a file's version, so that two nodes can check that they mean the
 * same content. It depends on the modification time and the inode's change time. So a changed file
 * gets another number even if its modification time was set back. */
static inline int64_t monarch_times_of(const struct monarch_entry *e) {
    return (int64_t)monarch_mix((uint64_t)e->mtime_ns ^ monarch_mix((uint64_t)e->ctime_ns));
}
#endif

/* Makes the holdings of the session to which these segments belong. Returns NULL if memory is
 * exhausted. content_key: the key of digests, MONARCH_KEY_BYTES long. */
struct monarch_holdings *monarch_holdings_new(struct monarch_clients *clients,
                                              const struct monarch_fills *fills,
                                              uint64_t block_bytes,
                                              const unsigned char *content_key);
void monarch_holdings_source(struct monarch_holdings *h, uint32_t source, uint64_t device);
/* Sets the directory of a tier's copies; `copies` is its descriptor. */
void monarch_holdings_tier(struct monarch_holdings *h, uint32_t tier, int copies);
/* Sets the catalog. After this call, no thread reads the previous catalog. c = NULL: this node has
 * nothing to serve to its peers. */
void monarch_holdings_catalog(struct monarch_holdings *h, const struct monarch_catalog *c);
/* Sets which node keeps each of `n` files. ids: the numbers of the files' entries. home: for each
 * file, an enum monarch_home_here. This node also changes the value itself if it begins to keep a
 * file (monarch_holdings_moved). */
void monarch_holdings_keep(struct monarch_holdings *h, uint64_t n, const uint64_t *ids,
                           const uint16_t *home);
/* Reports the files that this node has begun to keep since the last call. It begins to keep a file
 * if a peer requests the file and considers this node its owner. Perhaps other nodes had no room
 * for it. Stores the numbers of the files' entries in `ids`, and returns how many there are. `ids`
 * has room for MONARCH_MOVED numbers. */
uint64_t monarch_holdings_moved(struct monarch_holdings *h, uint64_t *ids);
/* At first, this node does not know which files it keeps. If a requested file has no copy here, the
 * request may have to wait until this node knows. The patience says which of these requests wait;
 * its first value is MONARCH_EVERYBODY_WAITS. If this node does not keep the file, and does not
 * know which node does, the answer is UNKNOWN_FILE. */
enum monarch_patience {
    MONARCH_EVERYBODY_WAITS,
    MONARCH_WHO_HAS_TIME_WAITS, /* only requests for bytes that no reader is waiting for */
    MONARCH_NOBODY_WAITS,
};
void monarch_holdings_patience(struct monarch_holdings *h, int patience);
struct monarch_peer_server *monarch_holdings_serve(struct monarch_holdings *h,
                                                   const struct monarch_peer_bounds *bounds);
/* Wakes the requests that wait for this file. Call this when bytes of the file have arrived, or
 * when no more will arrive. If `h` is NULL (a node without a server), does nothing. */
void monarch_holdings_wake(struct monarch_holdings *h, uint32_t source, uint64_t path_hash);
/* Returns the key with which fills compute the digests of blocks. Returns NULL if `h` is NULL,
 * which means that this node has no server. */
const unsigned char *monarch_holdings_key(const struct monarch_holdings *h);
/* Records the block sums of a copy that has just become complete. sums = NULL: the copy was
 * removed, so forget its sums. digests: NULL if they are not known. If `h` is NULL (a node without
 * a server), does nothing. */
void monarch_holdings_sums(struct monarch_holdings *h, uint64_t copy, const uint64_t *sums,
                           const struct monarch_digest *digests, uint64_t blocks);
/* Wakes the waiting requests that need not wait any longer, usually because this node will not fill
 * their files. */
void monarch_holdings_answer(struct monarch_holdings *h);
/* Reports rotten copies: copies whose bytes have changed since their fills. Returns how many were
 * found since the last call. ids: receives the catalog entries of their files. words: receives the
 * state words of these entries. The words were read when the copies were opened, so the entries may
 * have other words now. Both arrays have room for MONARCH_ROTTEN elements. */
uint64_t monarch_holdings_rotten(struct monarch_holdings *h, uint64_t *ids, uint64_t *words);
/* Closes all connections and joins the server's threads. */
void monarch_holdings_stop(struct monarch_holdings *h, struct monarch_peer_server *s);
void monarch_holdings_free(struct monarch_holdings *h);

/* Connect the engine with the peers. monarch_engine_peer sets the peer that orders call `number`.
 * monarch_engine_holdings sets the holdings: the engine records the sums of its fills there, and
 * wakes the requests that wait there. Before the peer or the holdings are freed, the same function
 * must be called with NULL. */
void monarch_engine_peer(struct monarch_engine *e, unsigned number, struct monarch_peer *peer);
void monarch_engine_holdings(struct monarch_engine *e, struct monarch_holdings *h);
