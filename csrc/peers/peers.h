/* Sends ranges of files from one node's copies to another's, over a connected stream socket.
 *
 * The server answers many connections with a few threads. A server thread may wait for its own
 * disk; it waits for a peer only briefly, and only while enough other threads are free
 * (MONARCH_PEER_STAY_MS). The client has no threads: the thread that wants the bytes calls it.
 * Nothing here decides who holds what, connects, or knows a secret: Python does that
 * (monarch_py/peers). */
#pragma once

#include "peers/wire.h"

/* The keys that both ends of a connection have derived from the session's secret and their
 * greetings (monarch_py/peers/handshake.py). */
struct monarch_peer_keys {
    unsigned char mine[MONARCH_KEY_BYTES];   /* for what this end says */
    unsigned char theirs[MONARCH_KEY_BYTES]; /* for what the other end says */
};

/* --- the server: server.c, connection.c --------------------------------------------------------
 */

struct monarch_peer_bounds {
    uint32_t threads, connections; /* the most of each */
    uint32_t idle_ms;              /* a connection without a request is closed after this */
    uint32_t stall_ms;             /* a connection whose peer stalls is closed after this */
    uint32_t wait_ms; /* limit of a wait for bytes that are not there yet; then the answer ends with
                         COMING or TIMEOUT */
    uint32_t unused;
};

struct monarch_peer_counts {
    uint64_t connections;     /* open now */
    uint64_t accepted;        /* so far */
    uint64_t dropped;         /* closed for a bad request or for being late */
    uint64_t requests, bytes; /* requests begun, and bytes sent */
    uint64_t waiting;         /* requests that wait for bytes now */
};

struct monarch_peer_server;

/* Takes over a connected socket whose peer has proved that it belongs to the session. If there are
 * as many connections as there may be, the new connection replaces the one that was idle for
 * longest. Returns 0, -EBUSY if all are at work, or another -errno. After every error the socket
 * stays the caller's. */
int monarch_peer_server_adopt(struct monarch_peer_server *s, int fd,
                              const struct monarch_peer_keys *keys);
int monarch_peer_server_has_room(struct monarch_peer_server *s);
void monarch_peer_server_counts(struct monarch_peer_server *s, struct monarch_peer_counts *out);
/* --- the client: client.c ----------------------------------------------------------------------
 */

/* How much is read of a socket or a file at a time [bytes]. */
#define MONARCH_PEER_CHUNK 262144
/* An answer of at most this size is sent in one call with its frames, and received in one call:
 * copying its bytes costs less than more calls [bytes]. */
#define MONARCH_PEER_SMALL 32768

/* One range of a file: what is asked for, where its bytes go, and what came of it. */
struct monarch_peer_get {
    uint64_t path_hash, size;
    int64_t mtime_ns;
    uint64_t first, length;
    uint64_t memory; /* address that the bytes go to; 0: into the file `to` */
    uint64_t at;     /* offset in `to` */
    uint32_t source;
    int32_t to;
    uint32_t is_awaited; /* somebody waits for these very bytes */
    uint32_t is_doubted; /* their block arrived wrong before: the holder is to check it */
    uint32_t status;     /* enum monarch_peer_status */
    uint64_t received;   /* bytes whose sum was right, from the range's beginning */
    int32_t error;       /* errno, where the status is NO_ROOM */
    uint32_t is_owner;   /* this node takes the peer for the file's owner */
};

struct monarch_peer_link;

/* Called when bytes have come whose sum and seal were right: `bytes` bytes of gets[which], from
 * `first` on in its range. `sum` is their XXH3-64, `digest` their digest (MONARCH_MAC_BYTES). */
typedef void (*monarch_peer_arrived)(void *arg, uint64_t which, uint64_t first, uint64_t bytes,
                                     uint64_t sum, const unsigned char *digest);

/* Takes over a connected socket. Returns NULL without memory or libcrypto; the socket then stays
 * the caller's. content_key: the session's key for digests, as for the server. first_byte_ms limits
 * the wait for an answer's first frame, between_ms each wait after it. */
struct monarch_peer_link *monarch_peer_link_new(int fd, const struct monarch_peer_keys *keys,
                                                const unsigned char *content_key,
                                                uint32_t first_byte_ms, uint32_t between_ms);
/* Fetches all ranges. A request does not wait for the answer to the one before it. The call ends
 * when each range has its status. It returns 0; or -1 when the link cannot be used any more, and
 * then ranges without an answer are CUT. Only one thread at a time may call it. buffer:
 * MONARCH_PEER_CHUNK bytes, for what goes into files; NULL: the function allocates one. A link has
 * no buffer of its own, because many links are idle. */
int monarch_peer_fetch(struct monarch_peer_link *l, struct monarch_peer_get *gets, uint64_t n,
                       char *buffer, monarch_peer_arrived arrived, void *arg);
/* Fetches one range in two calls, so that the range can be asked for while the answer before it
 * still comes. One thread at a time may ask, and one may take. Answers are taken in the order of
 * the requests. monarch_peer_request does not wait; it returns 0, or -1 if the range was not asked
 * for. monarch_peer_take returns what monarch_peer_fetch does. */
int monarch_peer_request(struct monarch_peer_link *l, const struct monarch_peer_get *g,
                         uint64_t *tag);
int monarch_peer_take(struct monarch_peer_link *l, struct monarch_peer_get *g, uint64_t tag,
                      char *buffer, monarch_peer_arrived arrived, void *arg);
/* Returns how many frames of answers have come over the link so far; 0: the link has never
 * worked. */
uint64_t monarch_peer_link_frames(const struct monarch_peer_link *l);
/* Ends the fetch that is under way, from another thread. */
void monarch_peer_link_cut(const struct monarch_peer_link *l);
void monarch_peer_link_close(struct monarch_peer_link *l);

/* --- one peer: peer.c ---------------------------------------------------------------------------
 */

struct monarch_peer;
/* Makes a new link. If that fails, or the peer is left alone for now, returns NULL, and *status
 * says why. */
typedef struct monarch_peer_link *(*monarch_peer_connect)(void *arg, uint32_t *status);
/* Called when a link has broken, with the status that says why; and with MONARCH_PEER_OK when the
 * peer works again. began_ns: when the fetch that failed began [CLOCK_MONOTONIC]. */
typedef void (*monarch_peer_report)(void *arg, uint32_t status, uint64_t began_ns);

/* Returns NULL without memory. */
struct monarch_peer *monarch_peer_new(monarch_peer_connect connect, monarch_peer_report report,
                                      void *arg);
/* Does what monarch_peer_fetch does, for any number of threads at a time; large answers share
 * links. Returns 0; or -1 if the peer has failed or is left alone for now, but even then sets each
 * range's status. */
int monarch_peer_ask(struct monarch_peer *p, struct monarch_peer_get *gets, uint64_t n,
                     char *buffer, monarch_peer_arrived arrived, void *arg);
/* Returns whether the peer has never answered, but may do so soon, because this node has not known
 * it for long. */
int monarch_peer_is_starting(const struct monarch_peer *p);
/* Ends all requests to the peer, so that their ranges are CUT, and makes no new ones. */
void monarch_peer_hang_up(struct monarch_peer *p);
/* Frees the peer. Call when nobody asks it any more. */
void monarch_peer_free(struct monarch_peer *p);

#ifdef MONARCH_CDEF
extern "Python" struct monarch_peer_link *monarch_connect_peer(void *arg, uint32_t *status);
extern "Python" void monarch_report_peer(void *arg, uint32_t status, uint64_t began_ns);
#endif
