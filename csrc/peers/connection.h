/* One connection of a server: the state that the server's threads (server.c) and the protocol
 * (connection.c) share. */
#pragma once

#include "peers/files.h"
#include "peers/peers.h"
#include "shared/clock.h"

/* Size of the array of frames that wait to be sent. At most three wait at the same time: a DATA, a
 * SUM and an END. */
#define MONARCH_PEER_FRAMES 4

enum monarch_peer_state {
    MONARCH_PEER_READING, /* a request is being read */
    MONARCH_PEER_OPENING, /* the requested file is being opened */
    MONARCH_PEER_FRAMING, /* the connection is between two frames of the answer */
    MONARCH_PEER_SENDING, /* the bytes of a DATA frame are being sent */
    MONARCH_PEER_ENDING,  /* the last frame is being sent */
};

/* The next step of a connection, or the event for which it must wait first. */
enum monarch_peer_io_state {
    MONARCH_PEER_GO, /* the connection can continue at once */
    /* the connection could continue, but other connections should be served first */
    MONARCH_PEER_TO_YIELD,
    MONARCH_PEER_TO_READ,
    MONARCH_PEER_TO_SEND,
    MONARCH_PEER_TO_WAIT, /* the connection waits for bytes of the file */
    MONARCH_PEER_TO_CLOSE,
};

struct monarch_peer_connection {
    /* The fields up to `deadline_ns` belong to the server, and are used under the server's lock. */
    int fd; /* -1: this element of the server's array `at` is free */
    uint32_t generation;
    /* hears: checks the seals of requests. says: computes the seals of frames. Both are valid while
     * `fd` is not -1. */
    struct monarch_mac *hears, *says;
    /* a thread works on the connection; only this thread uses the fields from `due_ns` on */
    int is_busy;
    int is_waiting;   /* the connection waits to be woken */
    uint32_t wait_at; /* index of the connection in the server's `waits` */
    uint64_t deadline_ns;

    uint64_t due_ns; /* deadline of the connection's wait for bytes of the file; 0: no wait */
    enum monarch_peer_state state;
    union {
        struct monarch_peer_request request;
        char bytes[sizeof(struct monarch_peer_request)];
    } in;
    unsigned got;
    /* heard: number of requests received so far, and so the number of the next request's seal.
     * said: number of frames made so far, and so the number of the next frame's seal. */
    uint64_t heard, said;
    struct monarch_peer_frame out[MONARCH_PEER_FRAMES];
    /* frames: number of frames in `out`; sent: how many bytes of these frames were sent */
    unsigned frames, sent;
    struct monarch_peer_opened file;
    /* Positions in the file. at: the next byte to send. end: the end of the requested range.
     * frame_end: the end of the current DATA frame. [piece, piece_end): the current piece. A piece
     * is the bytes that one SUM covers. */
    uint64_t at, end, frame_end, piece, piece_end;
    int blocks; /* whether calls on the socket block */
};

/* The arguments of monarch_peer_step. Data marked "the thread's own" is used by one thread only;
 * all other data is shared by the server's threads. */
struct monarch_peer_stage {
    const struct monarch_peer_files *files;
    const struct monarch_peer_bounds *bounds;
    uint64_t *requests, *bytes;  /* atomic */
    char *buffer;                /* the thread's own; MONARCH_PEER_CHUNK bytes */
    struct monarch_mac *content; /* the thread's own: computes digests */
    /* the step may block up to MONARCH_PEER_STAY_MS until the socket accepts more bytes */
    int may_block;
};

/* Maximum time [ms] for which a thread blocks on one connection while its peer accepts no bytes. */
#define MONARCH_PEER_STAY_MS 50

/* Works on a connection until it must wait, or until other connections should be served. Returns
 * what must happen before the connection can continue. If `may_block` is set, TO_SEND means that
 * the socket accepted no more bytes within MONARCH_PEER_STAY_MS. */
enum monarch_peer_io_state monarch_peer_step(struct monarch_peer_connection *c,
                                             const struct monarch_peer_stage *stage);
/* Closes the file that the connection has open. */
void monarch_peer_let_go(struct monarch_peer_connection *c, const struct monarch_peer_stage *stage);

/* --- server.c --------------------------------------------------------------------------------- */

/* Wakes the connections that wait for this file, so that they call the callbacks (struct
 * monarch_peer_files) again. Call this when more of the file may be available, or when its fill has
 * failed. */
void monarch_peer_wake(struct monarch_peer_server *s, uint32_t source, uint64_t path_hash);
/* Wakes connections that wait because `open` has returned LATER, so that they call `open` again.
 * Wakes a connection only if `is_settled` returns 1 for its request. */
void monarch_peer_wake_if(struct monarch_peer_server *s,
                          int (*is_settled)(void *arg, const struct monarch_peer_request *wanted),
                          void *arg);
struct monarch_peer_server *monarch_peer_serve(const struct monarch_peer_files *files,
                                               const struct monarch_peer_bounds *bounds,
                                               const unsigned char *content_key);
/* Closes all connections, joins the threads and frees the server. */
void monarch_peer_end(struct monarch_peer_server *s);
