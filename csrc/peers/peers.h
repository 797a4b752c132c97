/* Sends ranges of files from one node's copies to another node, over a connected stream socket.
 *
 * The server serves many connections with a few threads. A server thread may block while it reads
 * the local disk. It may block on a connection only briefly (MONARCH_PEER_STAY_MS), and only while
 * enough other threads are free. The client has no threads of its own: the thread that needs the
 * bytes calls it. Python decides which node to ask, makes the connections and keeps the secret
 * (monarch_py/peers). */
#pragma once

#include "peers/wire.h"

/* The keys of one connection. Both ends have computed them from the session's secret and the
 * messages of the handshake (monarch_py/peers/handshake.py). */
struct monarch_peer_keys {
    unsigned char mine[MONARCH_KEY_BYTES];   /* key for messages that this end sends */
    unsigned char theirs[MONARCH_KEY_BYTES]; /* key for messages that the other end sends */
};

/* --- the server: server.c, connection.c ------------------------------------------------------- */

struct monarch_peer_bounds {
    uint32_t threads, connections; /* maximum number of threads, and of connections */
    /* a connection that has had no request for this long is closed */
    uint32_t idle_ms;
    /* Time limit in two cases, after which the connection is closed: from the first to the last
     * byte of a request; and while the peer accepts no byte of an answer. */
    uint32_t stall_ms;
    /* maximum time for which an answer waits for bytes that are not available yet; then the answer
     * ends with COMING or TIMEOUT */
    uint32_t wait_ms;
    uint32_t unused;
};

struct monarch_peer_counts {
    uint64_t connections;     /* connections that are open now */
    uint64_t accepted;        /* connections that were accepted so far */
    uint64_t dropped;         /* connections that ended during a request or an answer */
    uint64_t requests, bytes; /* number of requests begun, number of bytes sent */
    uint64_t waiting;         /* requests that wait for bytes now */
};

struct monarch_peer_server;

/* Takes over a connected socket whose peer has proved that it belongs to the session. If there are
 * too many connections, replaces the one that has been idle for the longest time. Returns 0; -EBUSY
 * if none is idle; or another -errno. After an error, the caller must close the socket. */
int monarch_peer_server_adopt(struct monarch_peer_server *s, int fd,
                              const struct monarch_peer_keys *keys);
int monarch_peer_server_has_room(struct monarch_peer_server *s);
void monarch_peer_server_counts(struct monarch_peer_server *s, struct monarch_peer_counts *out);
/* --- the client: client.c --------------------------------------------------------------------- */

/* Maximum amount of data [bytes] that is read from a socket or a file at a time. */
#define MONARCH_PEER_CHUNK 262144
/* An answer of at most this size [bytes] is sent in one system call together with its frames, and
 * received in one. This needs a copy of the bytes in memory, which costs less than more system
 * calls. */
#define MONARCH_PEER_SMALL 32768

/* One range of a file: the request, the destination of the bytes, and the outcome. */
struct monarch_peer_get {
    uint64_t path_hash, size;
    int64_t mtime_ns;
    uint64_t first, length;
    uint64_t memory; /* address of the destination; 0: the destination is the file `to` */
    uint64_t at;     /* offset in `to` */
    uint32_t source;
    int32_t to;
    uint32_t is_awaited; /* a reader is waiting for these bytes */
    /* the block has arrived damaged before, so the peer should check its copy */
    uint32_t is_doubted;
    uint32_t status; /* outcome: enum monarch_peer_status */
    /* number of bytes at the beginning of the range that were received with a correct sum */
    uint64_t received;
    int32_t error;     /* errno if the status is NO_ROOM */
    uint32_t is_owner; /* 1: according to this node, the peer owns the file */
};

struct monarch_peer_link;

/* Called after a piece of the range gets[which] has arrived with a correct sum and seal. first,
 * bytes: the piece's offset in the range and its length. sum: its XXH3-64. digest: its digest
 * (MONARCH_MAC_BYTES bytes). */
typedef void (*monarch_peer_arrived)(void *arg, uint64_t which, uint64_t first, uint64_t bytes,
                                     uint64_t sum, const unsigned char *digest);

/* Makes a link from a connected socket. Returns NULL if memory is exhausted or libcrypto is not
 * installed; the caller must then close the socket. content_key: the key for digests, which all
 * nodes of the session share. first_byte_ms: time limit for an answer's first frame. between_ms:
 * time limit of each later wait. */
struct monarch_peer_link *monarch_peer_link_new(int fd, const struct monarch_peer_keys *keys,
                                                const unsigned char *content_key,
                                                uint32_t first_byte_ms, uint32_t between_ms);
/* Fetches all ranges, and returns when each range has its status. Sends requests without waiting
 * for earlier answers. Returns 0. Returns -1 if the link cannot be used any more; ranges without an
 * answer then have the status CUT. Only one thread at a time may call this for a link. buffer:
 * MONARCH_PEER_CHUNK bytes; NULL: the function allocates them. Links have no buffers, because many
 * links are idle. */
int monarch_peer_fetch(struct monarch_peer_link *l, struct monarch_peer_get *gets, uint64_t n,
                       char *buffer, monarch_peer_arrived arrived, void *arg);
/* Fetch one range in two steps. monarch_peer_request sends the request, and monarch_peer_take
 * receives the answer with the same tag. So a request can be sent while the previous answer is
 * still arriving. Answers must be taken in the sequence of the requests. One thread may call
 * monarch_peer_request while another is in monarch_peer_take, but no two threads may be in the same
 * function. monarch_peer_request does not wait; it returns -1 if the request was not sent, else 0.
 * monarch_peer_take returns what monarch_peer_fetch returns. */
int monarch_peer_request(struct monarch_peer_link *l, const struct monarch_peer_get *g,
                         uint64_t *tag);
int monarch_peer_take(struct monarch_peer_link *l, struct monarch_peer_get *g, uint64_t tag,
                      char *buffer, monarch_peer_arrived arrived, void *arg);
/* Returns the number of frames that have arrived over the link; 0: the link has never worked. */
uint64_t monarch_peer_link_frames(const struct monarch_peer_link *l);
/* Cuts the connection. If another thread is fetching over the link, its fetch then ends. */
void monarch_peer_link_cut(const struct monarch_peer_link *l);
void monarch_peer_link_close(struct monarch_peer_link *l);

/* --- one peer: peer.c ------------------------------------------------------------------------- */

struct monarch_peer;
/* Makes a new link. Returns NULL if that fails, or if requests to this peer are suppressed for now;
 * *status then says why. */
typedef struct monarch_peer_link *(*monarch_peer_connect)(void *arg, uint32_t *status);
/* Called when a link has broken, and when the peer works again. status: why the link broke;
 * MONARCH_PEER_OK: the peer works again. began_ns: when the failed fetch began [ns of
 * CLOCK_MONOTONIC]. */
typedef void (*monarch_peer_report)(void *arg, uint32_t status, uint64_t began_ns);

/* Makes a peer. Returns NULL if memory is exhausted. */
struct monarch_peer *monarch_peer_new(monarch_peer_connect connect, monarch_peer_report report,
                                      void *arg);
/* Adds a link that the caller has connected, as an idle link. */
void monarch_peer_add_link(struct monarch_peer *p, struct monarch_peer_link *l);
/* Fetches ranges from the peer, like monarch_peer_fetch, but chooses or connects the link itself.
 * Many threads may call this at the same time. Returns 0, or -1 if the peer has failed or requests
 * to it are suppressed now. Sets the status of each range in any case. */
int monarch_peer_ask(struct monarch_peer *p, struct monarch_peer_get *gets, uint64_t n,
                     char *buffer, monarch_peer_arrived arrived, void *arg);
/* Returns whether the peer's daemon may still be starting: the peer was made only a short time ago,
 * and no fetch has succeeded and no link was added since. */
int monarch_peer_is_starting(const struct monarch_peer *p);
/* Ends all requests to the peer, and makes all later requests fail. The ranges of all these
 * requests get the status CUT. */
void monarch_peer_hang_up(struct monarch_peer *p);
/* Frees the peer. Call this when no thread uses the peer any more. */
void monarch_peer_free(struct monarch_peer *p);

#ifdef MONARCH_CDEF
extern "Python" struct monarch_peer_link *monarch_connect_peer(void *arg, uint32_t *status);
extern "Python" void monarch_report_peer(void *arg, uint32_t status, uint64_t began_ns);
#endif
