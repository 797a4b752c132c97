/* Functions that only tests and benchmarks call, from Python. */
#pragma once

#include "native.h"
#include "peers/peers.h"

uint64_t monarch_stamp_of(uint64_t salt, uint64_t id);
/* Records that opening and reading file i of a source took ns[i], for `n` files in turn. Sets
 * is_fast[i] to 1 if the source is judged fast after file i, otherwise to 0. */
void monarch_fast_after(uint64_t n, const uint64_t *ns, uint8_t *is_fast);
/* Sets a file's bit in `wanted`, like a client that requests a copy of the file. Returns 0 if the
 * bit and its summary bit were already set, otherwise 1. */
int monarch_want_file(struct monarch_clients *m, uint64_t id);
/* Wakes a copying thread of each origin, like a client that waits for a part of a file. */
void monarch_ring_engine(struct monarch_clients *m);
/* Runs the engine's fair queue for `rounds` rounds, with `n` waiting readers. Each round serves at
 * most one reader. Reader i has the rank ranks[i] and the demand slot places[i]. It waits from
 * round since[i] on, also after it was served. shares: the ranks' shares (struct fair_queue). Sets
 * served[r] to 1 + the number of the reader that round r serves, or to 0 if there is none. */
void monarch_serve_in_order(const uint32_t *shares, const uint8_t *ranks, const uint8_t *places,
                            const uint64_t *since, uint64_t n, uint64_t rounds, uint32_t *served);
/* Iterates over `n` waiting readers in the order of the fair queue, but serves none of them.
 * Parameters as for monarch_serve_in_order. A reader that is met is marked as taken, so that it is
 * not met again. Writes the readers' numbers to `met`, in the order in which they were met. Returns
 * how many were met. */
uint64_t monarch_meet_all(const uint32_t *shares, const uint8_t *ranks, const uint8_t *places,
                          uint64_t n, uint32_t *met);
uint64_t monarch_xxh3_in_pieces(const char *data, uint64_t len, uint64_t piece);

/* --- a server without a catalog: peer_table.c ------------------------------------------------- */

/* A table of a few hundred open files, some of which may be incomplete. A file is found by its
 * source's number and the hash of its path. */
struct monarch_peer_table;

struct monarch_peer_table *monarch_peer_table_new(void);
/* Adds a file to the table, which keeps a duplicate of `fd`. Replaces any file with the same source
 * and hash. sums, digests: a checksum, and a digest of MONARCH_MAC_BYTES, for each block. If either
 * is NULL, the server computes both for each answer. is_whole = 1: all blocks have arrived.
 * is_whole = 0: none has arrived; call monarch_peer_table_block for each block that arrives.
 * Returns 0 or -errno. */
int monarch_peer_table_share(struct monarch_peer_table *t, uint32_t source, uint64_t path_hash,
                             uint64_t size, int64_t mtime_ns, int fd, uint64_t block_bytes,
                             const uint64_t *sums, const unsigned char *digests, int is_whole);
/* Reports that a block of an incomplete file has arrived; blocks may arrive in any order. Peers
 * that wait for the block then get it. sum: the block's checksum. Returns 0, or -ENOENT if there is
 * no such file. */
int monarch_peer_table_block(struct monarch_peer_table *t, uint32_t source, uint64_t path_hash,
                             uint64_t block, uint64_t sum);
/* Removes a file. Peers that wait for its blocks are told that these will not arrive, and new
 * requests for it are refused. Answers that are being sent are completed. Returns 0, or -ENOENT if
 * there is no such file. */
int monarch_peer_table_withdraw(struct monarch_peer_table *t, uint32_t source, uint64_t path_hash);
uint64_t monarch_peer_table_length(struct monarch_peer_table *t);
/* Frees the table. Call this after every server that uses the table has been stopped. */
void monarch_peer_table_free(struct monarch_peer_table *t);

/* Starts a server of the table's files. content_key: the session's key for digests
 * (MONARCH_KEY_BYTES), the same on all nodes. Returns NULL if memory or descriptors are exhausted,
 * if no thread can be started, or if libcrypto is not installed. */
struct monarch_peer_server *monarch_peer_server_start(struct monarch_peer_table *t,
                                                      const struct monarch_peer_bounds *bounds,
                                                      const unsigned char *content_key);
/* Closes all connections, joins the threads and frees the server, but not the table. */
void monarch_peer_server_stop(struct monarch_peer_table *t, struct monarch_peer_server *s);
/* Computes the digest of `n` bytes under a session's content key. Returns 0, or -1 if memory is
 * exhausted or libcrypto is not installed. */
int monarch_digest_of(const unsigned char *content_key, const char *bytes, uint64_t n,
                      unsigned char *digest);
