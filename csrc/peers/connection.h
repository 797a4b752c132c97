/* One connection of a server: what its threads (server.c) and its protocol (connection.c) share. */
#pragma once

#include "peers/files.h"
#include "peers/peers.h"
#include "shared/clock.h"

/* Frames that can wait to be sent: DATA, SUM, END or SUM, DATA. */
#define MONARCH_PEER_FRAMES 4

enum monarch_peer_state {
    MONARCH_PEER_READING, /* a request */
    MONARCH_PEER_OPENING, /* the file it names */
    MONARCH_PEER_FRAMING, /* between two frames of the answer */
    MONARCH_PEER_SENDING, /* the bytes of one */
    MONARCH_PEER_ENDING,  /* the last frame */
};

/* What a connection needs to go on. */
enum monarch_peer_io_state {
    MONARCH_PEER_GO,       /* nothing: at once */
    MONARCH_PEER_TO_YIELD, /* nothing either, but others should be served */
    MONARCH_PEER_TO_READ,
    MONARCH_PEER_TO_SEND,
    MONARCH_PEER_TO_WAIT, /* bytes that are not there yet */
    MONARCH_PEER_TO_CLOSE,
};

struct monarch_peer_connection {
    /* These fields are the server's, under its lock. */
    int fd; /* -1: none */
    uint32_t generation;
    struct monarch_mac *hears, *says; /* keys of requests and of frames; valid while it has an fd */
    int is_busy;                      /* a thread works on it, and all below is that thread's */
    int is_waiting;                   /* it waits for a wake */
    uint32_t wait_at;                 /* its place among those that wait */
    uint64_t deadline_ns;

    uint64_t due_ns; /* when it has waited for bytes as long as it may; 0: it does not wait */
    enum monarch_peer_state state;
    union {
        struct monarch_peer_request request;
        char bytes[sizeof(struct monarch_peer_request)];
    } in;
    unsigned got;
    uint64_t heard, said; /* counts of requests and frames: the numbers of their seals */
    struct monarch_peer_frame out[MONARCH_PEER_FRAMES];
    unsigned frames, sent; /* frames; bytes of them */
    struct monarch_peer_opened file;
    uint64_t at, end, frame_end, piece, piece_end; /* a piece has one sum */
    int blocks;                                    /* whether its descriptor blocks */
};

/* What a step needs. All but what is the thread's own is shared by the threads of one server. */
struct monarch_peer_stage {
    const struct monarch_peer_files *files;
    const struct monarch_peer_bounds *bounds;
    uint64_t *requests, *bytes;  /* atomic */
    char *buffer;                /* the thread's own, MONARCH_PEER_CHUNK */
    struct monarch_mac *content; /* the thread's own: makes digests */
    int may_block;               /* for MONARCH_PEER_STAY_MS, until the socket takes more */
};

/* How long a thread waits for one peer that takes nothing [ms]. */
#define MONARCH_PEER_STAY_MS 50

/* Works on a connection until something has to be waited for, or others should be served. If
 * it returns TO_SEND under `may_block`, it has waited for the socket in vain. */
enum monarch_peer_io_state monarch_peer_step(struct monarch_peer_connection *c,
                                             const struct monarch_peer_stage *stage);
/* Lets go of what the connection holds besides its descriptor. */
void monarch_peer_let_go(struct monarch_peer_connection *c, const struct monarch_peer_stage *stage);

/* --- server.c ---------------------------------------------------------------------------------
 */

/* What `files` answers about this file may have changed: connections that wait for it are looked at
 * again. */
void monarch_peer_wake(struct monarch_peer_server *s, uint32_t source, uint64_t path_hash);
/* The same for connections that `open` has told LATER, if `is_settled` says so of their request. */
void monarch_peer_wake_if(struct monarch_peer_server *s,
                          int (*is_settled)(void *arg, const struct monarch_peer_request *wanted),
                          void *arg);
struct monarch_peer_server *monarch_peer_serve(const struct monarch_peer_files *files,
                                               const struct monarch_peer_bounds *bounds,
                                               const unsigned char *content_key);
void monarch_peer_end(struct monarch_peer_server *s); /* closes all connections, joins, frees */
