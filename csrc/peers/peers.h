/* Ranges of files from one node's copies to another's, over a connected stream socket.
 *
 * The server answers many connections with a few threads; none of them ever waits for a peer, only
 * for its own disk. The client is called by whoever wants the bytes. Nothing here decides who holds
 * what, connects, or knows a secret: that is Python's (monarch_py/peers). */
#ifndef MONARCH_PEERS_H
#define MONARCH_PEERS_H

#include "peers/wire.h"

/* What both ends of a connection have made of the session's secret and of what they greeted each
 * other with (monarch_py/peers/handshake.py). */
struct monarch_peer_keys {
    unsigned char mine[MONARCH_KEY_BYTES];   /* of what this end says */
    unsigned char theirs[MONARCH_KEY_BYTES]; /* of what the other says */
};

/* --- what is shared: table.c -------------------------------------------------------------------
 */

/* Open files by their catalog identity, among them those that are being filled: a few hundred. */
struct monarch_peer_table;

struct monarch_peer_table *monarch_peer_table_new(void);
/* Shares a file under a duplicate of `fd`, in place of one with the same source and hash. sums: of
 * its blocks, with their digests, MONARCH_MAC_BYTES each; NULL if they are not known, and then they
 * are computed each time. is_whole: all of it is there; else what monarch_peer_table_block tells.
 * 0 or -errno. */
int monarch_peer_table_share(struct monarch_peer_table *t, uint32_t source, uint64_t path_hash,
                             uint64_t size, int64_t mtime_ns, int fd, uint64_t block_bytes,
                             const uint64_t *sums, const unsigned char *digests, int is_whole);
/* One more block is there, in any order; whoever waits for it is served. -ENOENT: no such file. */
int monarch_peer_table_block(struct monarch_peer_table *t, uint32_t source, uint64_t path_hash,
                             uint64_t block, uint64_t sum);
/* Nobody gets it any more; whoever waits is told so, and what is being sent is sent. -ENOENT. */
int monarch_peer_table_withdraw(struct monarch_peer_table *t, uint32_t source, uint64_t path_hash);
uint64_t monarch_peer_table_length(struct monarch_peer_table *t);
/* When no server shares it any more. */
void monarch_peer_table_free(struct monarch_peer_table *t);

/* --- the server: server.c, connection.c --------------------------------------------------------
 */

struct monarch_peer_bounds {
    uint32_t threads, connections; /* the most there will be */
    uint32_t idle_ms;              /* without a request: the connection is closed */
    uint32_t stall_ms;             /* a peer that does not go on sending or taking: the same */
    uint32_t wait_ms; /* for bytes that are not there yet: then END COMING or TIMEOUT */
    uint32_t unused;
};

struct monarch_peer_counts {
    uint64_t connections;     /* open now */
    uint64_t accepted;        /* ever */
    uint64_t dropped;         /* for bad requests, or for being late */
    uint64_t requests, bytes; /* begun; sent */
    uint64_t waiting;         /* requests that wait for bytes now */
};

struct monarch_peer_server;

/* content_key: MONARCH_KEY_BYTES that all nodes of the session have alike, for digests. NULL
 * without memory, descriptors, threads or libcrypto. */
struct monarch_peer_server *monarch_peer_server_start(struct monarch_peer_table *t,
                                                      const struct monarch_peer_bounds *bounds,
                                                      const unsigned char *content_key);
/* Takes over a connected socket whose owner has proved what it is, in place of one that was idle
 * for long when there are as many as there may be; -EBUSY when all of those are at work, and then,
 * as after every error, it stays the caller's. */
int monarch_peer_server_adopt(struct monarch_peer_server *s, int fd,
                              const struct monarch_peer_keys *keys);
int monarch_peer_server_has_room(struct monarch_peer_server *s);
void monarch_peer_server_counts(struct monarch_peer_server *s, struct monarch_peer_counts *out);
/* Closes all, joins the threads and frees it; what it shares stays. */
void monarch_peer_server_stop(struct monarch_peer_table *t, struct monarch_peer_server *s);

/* --- the client: client.c ----------------------------------------------------------------------
 */

/* What is read of a socket or a file at a time [bytes]. */
#define MONARCH_PEER_CHUNK 262144
/* An answer of no more bytes than this goes out in one call, with its frames, and is taken in one:
 * to copy it costs less than the calls do [bytes]. */
#define MONARCH_PEER_SMALL 32768

/* One range of one file: what is asked, where it goes, what came of it. */
struct monarch_peer_get {
    uint64_t path_hash, size;
    int64_t mtime_ns;
    uint64_t first, length;
    uint64_t memory; /* address that the bytes go to; 0: into the file `to`, */
    uint64_t at;     /* from here on */
    uint32_t source;
    int32_t to;
    uint32_t is_awaited; /* somebody waits for these very bytes */
    uint32_t is_doubted; /* their block came wrong: the holder is to look at it */
    uint32_t status;     /* enum monarch_peer_status */
    uint64_t received;   /* bytes whose sum was right, from the range's beginning */
    int32_t error;       /* errno, where the status is NO_ROOM */
    uint32_t is_owner;   /* this node takes the peer for the file's owner */
};

struct monarch_peer_link;

/* What is told of bytes whose sum and seal were right: `bytes` of gets[which], from `first` on in
 * its range; their XXH3-64, and their digest (MONARCH_MAC_BYTES). */
typedef void (*monarch_peer_arrived)(void *arg, uint64_t which, uint64_t first, uint64_t bytes,
                                     uint64_t sum, const unsigned char *digest);

/* Takes over a connected socket; NULL without memory or libcrypto, and then it stays the caller's.
 * content_key: as for the server. */
struct monarch_peer_link *monarch_peer_link_new(int fd, const struct monarch_peer_keys *keys,
                                                const unsigned char *content_key,
                                                uint32_t first_byte_ms, uint32_t between_ms);
/* Asks for all ranges, without waiting for one answer before the next request, and returns when
 * each has its status. 0; -1 when the link cannot be used any more: what was not answered by then
 * is CUT. One thread at a time. buffer: MONARCH_PEER_CHUNK bytes for what goes into files, of the
 * one who asks, because links that nobody uses are many; NULL: one of its own. */
int monarch_peer_fetch(struct monarch_peer_link *l, struct monarch_peer_get *gets, uint64_t n,
                       char *buffer, monarch_peer_arrived arrived, void *arg);
/* The same in two parts, for one range each, so that it can be asked for while the answer before it
 * comes: the one that asks is any thread, one at a time, and the one that takes is another's, one
 * at a time, in the order of the requests. Asking does not wait; -1: it was not asked for. */
int monarch_peer_request(struct monarch_peer_link *l, const struct monarch_peer_get *g,
                         uint64_t *tag);
int monarch_peer_take(struct monarch_peer_link *l, struct monarch_peer_get *g, uint64_t tag,
                      char *buffer, monarch_peer_arrived arrived, void *arg);
/* Frames of answers that came over it, ever: 0 is a link that never worked. */
uint64_t monarch_peer_link_frames(const struct monarch_peer_link *l);
/* From another thread: the fetch that is under way ends. */
void monarch_peer_link_cut(const struct monarch_peer_link *l);
void monarch_peer_link_close(struct monarch_peer_link *l);

/* --- one peer: peer.c ---------------------------------------------------------------------------
 */

struct monarch_peer;
/* A new link; or NULL, and *status says why, or that the peer is left alone for now. */
typedef struct monarch_peer_link *(*monarch_peer_connect)(void *arg, uint32_t *status);
/* A link has broken, with this status; MONARCH_PEER_OK: it works again. began_ns: when that which
 * failed was begun, on CLOCK_MONOTONIC. */
typedef void (*monarch_peer_report)(void *arg, uint32_t status, uint64_t began_ns);

/* NULL without memory. */
struct monarch_peer *monarch_peer_new(monarch_peer_connect connect, monarch_peer_report report,
                                      void *arg);
/* As monarch_peer_fetch, for any number of threads at a time; large answers share links. -1: the
 * peer failed, or is left alone; each range has its status all the same. */
int monarch_peer_ask(struct monarch_peer *p, struct monarch_peer_get *gets, uint64_t n,
                     char *buffer, monarch_peer_arrived arrived, void *arg);
/* Whether it has not answered yet, and may be about to. */
int monarch_peer_is_starting(const struct monarch_peer *p);
/* Ends all that is asked of it, and asks it nothing any more: whoever waits for it has CUT. */
void monarch_peer_hang_up(struct monarch_peer *p);
/* When nobody asks it any more. */
void monarch_peer_free(struct monarch_peer *p);

#ifdef MONARCH_CDEF
extern "Python" struct monarch_peer_link *monarch_connect_peer(void *arg, uint32_t *status);
extern "Python" void monarch_report_peer(void *arg, uint32_t status, uint64_t began_ns);
#endif

#endif
