/* One connection of a server: the state that the server's threads (server.c) and the protocol
 * (connection.c) share. */
#pragma once

#include "peers/files.h"
#include "peers/peers.h"
#include "shared/clock.h"

/* Size of the array of frames that wait to be sent. At most three frames wait at a time: DATA, SUM
 * and END. */
#define MONARCH_PEER_FRAMES 4

enum monarch_peer_state {
    MONARCH_PEER_READING, /* a request is being read */
    MONARCH_PEER_OPENING, /* the requested file is being opened */
    MONARCH_PEER_FRAMING, /* the connection is between two frames of the answer */
    MONARCH_PEER_SENDING, /* the bytes of a DATA frame are being sent */
    MONARCH_PEER_ENDING,  /* the last frame is being sent */
};

/* The state of a connection: what it must do, or wait for, before it can continue. */
enum monarch_peer_io_state {
    MONARCH_PEER_GO,       /* the connection need not wait, and can continue at once */
    MONARCH_PEER_TO_YIELD, /* it could continue, but other connections should be served first */
    MONARCH_PEER_TO_READ,
    MONARCH_PEER_TO_SEND,
    MONARCH_PEER_TO_WAIT, /* the connection waits for bytes of the file */
    MONARCH_PEER_TO_CLOSE,
};

struct monarch_peer_connection {
    /* The fields up to `deadline_ns` are the server's, and are used under its lock. */
    int fd; /* -1: this place is free */
    uint32_t generation;
    /* hears: checks the seals of requests; says: makes the seals of frames. Both are valid as long
     * as `fd` is not -1. */
    struct monarch_mac *hears, *says;
    int is_busy;      /* a thread works on the connection, and owns the fields from `due_ns` on */
    int is_waiting;   /* the connection waits to be woken */
    uint32_t wait_at; /* index of the connection in the server's `waits` */
    uint64_t deadline_ns;

    uint64_t due_ns; /* deadline of the connection's wait for bytes; 0: it does not wait */
    enum monarch_peer_state state;
    union {
        struct monarch_peer_request request;
        char bytes[sizeof(struct monarch_peer_request)];
    } in;
    unsigned got;
    /* heard: number of requests received so far; said: number of frames made so far. Each is also
     * the number of the next seal in its direction */
    uint64_t heard, said;
    struct monarch_peer_frame out[MONARCH_PEER_FRAMES];
    /* frames: number of frames in `out`; sent: how many bytes of these frames were sent */
    unsigned frames, sent;
    struct monarch_peer_opened file;
    /* Positions in the file. at: the next byte to send. end: the end of the requested range.
     * frame_end: the end of the current DATA frame. [piece, piece_end): the current piece, which is
     * the range that one SUM covers. */
    uint64_t at, end, frame_end, piece, piece_end;
    int blocks; /* whether calls on the socket block */
};

/* The arguments of monarch_peer_step. Fields marked "the thread's own" are used by one thread only.
 * All other pointers lead to data that the server's threads share. */
struct monarch_peer_stage {
    const struct monarch_peer_files *files;
    const struct monarch_peer_bounds *bounds;
    uint64_t *requests, *bytes;  /* atomic */
    char *buffer;                /* the thread's own; MONARCH_PEER_CHUNK bytes */
    struct monarch_mac *content; /* the thread's own: computes digests */
    int may_block; /* the step may wait up to MONARCH_PEER_STAY_MS until the socket accepts more */
};

/* Maximum time [ms] for which a thread blocks on one connection whose peer receives no bytes. */
#define MONARCH_PEER_STAY_MS 50

/* Works on a connection until it must wait, or until other connections should be served. Returns
 * what must happen before the connection can continue. If `may_block` is set, the result TO_SEND
 * means that the socket accepted no more within MONARCH_PEER_STAY_MS. */
enum monarch_peer_io_state monarch_peer_step(struct monarch_peer_connection *c,
                                             const struct monarch_peer_stage *stage);
/* Closes the file that the connection has open. */
void monarch_peer_let_go(struct monarch_peer_connection *c, const struct monarch_peer_stage *stage);

/* --- server.c --------------------------------------------------------------------------------- */

/* Call this when more of this file may have become available, or when the fill of the file has
 * failed. The connections that wait for the file then call the callbacks (struct
 * monarch_peer_files) again. */
void monarch_peer_wake(struct monarch_peer_server *s, uint32_t source, uint64_t path_hash);
/* Wakes each connection for which `open` has returned LATER, if `is_settled` returns true for its
 * request. The connection then calls `open` again. */
void monarch_peer_wake_if(struct monarch_peer_server *s,
                          int (*is_settled)(void *arg, const struct monarch_peer_request *wanted),
                          void *arg);
struct monarch_peer_server *monarch_peer_serve(const struct monarch_peer_files *files,
                                               const struct monarch_peer_bounds *bounds,
                                               const unsigned char *content_key);
/* Closes all connections, joins the threads and frees the server. */
void monarch_peer_end(struct monarch_peer_server *s);
