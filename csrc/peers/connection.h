/* One connection of a server: what its threads (server.c) and its protocol (connection.c) share. */
#pragma once

#include "peers/files.h"
#include "peers/peers.h"
#include "shared/clock.h"

/* Room for the frames that wait to be sent: DATA, SUM and END, or SUM and DATA. */
#define MONARCH_PEER_FRAMES 4

enum monarch_peer_state {
    MONARCH_PEER_READING, /* reads a request */
    MONARCH_PEER_OPENING, /* opens the file that the request names */
    MONARCH_PEER_FRAMING, /* between two frames of the answer */
    MONARCH_PEER_SENDING, /* sends the bytes of a DATA frame */
    MONARCH_PEER_ENDING,  /* sends the last frame */
};

/* What a connection needs to go on. */
enum monarch_peer_io_state {
    MONARCH_PEER_GO,       /* nothing: it goes on at once */
    MONARCH_PEER_TO_YIELD, /* nothing, but other connections should be served first */
    MONARCH_PEER_TO_READ,
    MONARCH_PEER_TO_SEND,
    MONARCH_PEER_TO_WAIT, /* bytes that are not there yet */
    MONARCH_PEER_TO_CLOSE,
};

struct monarch_peer_connection {
    /* These fields are the server's, under its lock. */
    int fd; /* -1: none */
    uint32_t generation;
    struct monarch_mac *hears, *says; /* keys of requests and of frames; valid while `fd` is */
    int is_busy;      /* a thread works on it, and owns the fields from `due_ns` on */
    int is_waiting;   /* it waits to be woken */
    uint32_t wait_at; /* its index in the server's `waits` */
    uint64_t deadline_ns;

    uint64_t due_ns; /* when its wait for bytes ends in any case; 0: it does not wait */
    enum monarch_peer_state state;
    union {
        struct monarch_peer_request request;
        char bytes[sizeof(struct monarch_peer_request)];
    } in;
    unsigned got;
    uint64_t heard, said; /* requests received and frames made so far: the numbers of the next
                             seals */
    struct monarch_peer_frame out[MONARCH_PEER_FRAMES];
    unsigned frames, sent; /* frames in `out`, and how many of their bytes were sent */
    struct monarch_peer_opened file;
    uint64_t at, end, frame_end, piece, piece_end; /* one SUM covers a piece */
    int blocks;                                    /* whether calls on its socket block */
};

/* What monarch_peer_step needs. Except for the fields that are the thread's own, the threads of one
 * server share it. */
struct monarch_peer_stage {
    const struct monarch_peer_files *files;
    const struct monarch_peer_bounds *bounds;
    uint64_t *requests, *bytes;  /* atomic */
    char *buffer;                /* the thread's own, MONARCH_PEER_CHUNK */
    struct monarch_mac *content; /* the thread's own: makes digests */
    int may_block; /* the step may wait MONARCH_PEER_STAY_MS for the socket to take more */
};

/* How long a thread waits for one peer that takes nothing [ms]. */
#define MONARCH_PEER_STAY_MS 50

/* Works on a connection until it has to wait for something, or until others should be served.
 * Returns what the connection needs to go on. TO_SEND under `may_block` says that the function has
 * waited for the socket in vain. */
enum monarch_peer_io_state monarch_peer_step(struct monarch_peer_connection *c,
                                             const struct monarch_peer_stage *stage);
/* Closes the file that the connection has open. */
void monarch_peer_let_go(struct monarch_peer_connection *c, const struct monarch_peer_stage *stage);

/* --- server.c ---------------------------------------------------------------------------------
 */

/* Makes the connections that wait for this file look again. Call when the answers of `files` about
 * the file may have changed. */
void monarch_peer_wake(struct monarch_peer_server *s, uint32_t source, uint64_t path_hash);
/* Makes connections look again to which `open` has answered LATER: those for whose requests
 * `is_settled` is true. */
void monarch_peer_wake_if(struct monarch_peer_server *s,
                          int (*is_settled)(void *arg, const struct monarch_peer_request *wanted),
                          void *arg);
struct monarch_peer_server *monarch_peer_serve(const struct monarch_peer_files *files,
                                               const struct monarch_peer_bounds *bounds,
                                               const unsigned char *content_key);
void monarch_peer_end(struct monarch_peer_server *s); /* closes all connections, joins, frees */
