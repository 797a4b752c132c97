/* One connection of a server: between its threads (server.c) and what is said (connection.c). */
#ifndef MONARCH_PEER_CONNECTION_H
#define MONARCH_PEER_CONNECTION_H

#include "peers/files.h"
#include "peers/peers.h"

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
enum monarch_peer_turn {
    MONARCH_PEER_GO,       /* nothing: at once */
    MONARCH_PEER_TO_YIELD, /* nothing either, but others should have their turn */
    MONARCH_PEER_TO_READ,
    MONARCH_PEER_TO_SEND,
    MONARCH_PEER_TO_WAIT, /* bytes that are not there yet */
    MONARCH_PEER_TO_CLOSE,
};

struct monarch_peer_connection {
    /* The server's, under its lock. */
    int fd; /* -1: none */
    uint32_t generation;
    struct monarch_mac *hears, *says; /* the keys of requests and of frames; while it has an fd */
    int is_busy;                      /* a thread works on it, and all below is that thread's */
    int is_waiting;                   /* for a wake, */
    uint32_t wait_at;                 /* in this place among those that wait */
    uint64_t deadline_ns;

    uint64_t due_ns; /* when it has waited for bytes as long as it may; 0: it does not wait */
    enum monarch_peer_state state;
    union {
        struct monarch_peer_request request;
        char bytes[sizeof(struct monarch_peer_request)];
    } in;
    unsigned got;
    uint64_t heard, said; /* requests and frames: numbers of their seals */
    struct monarch_peer_frame out[MONARCH_PEER_FRAMES];
    unsigned frames, sent; /* frames; bytes of them */
    struct monarch_peer_opened file;
    uint64_t at, end, frame_end, piece, piece_end; /* a piece has one sum */
    int blocks;                                    /* how its descriptor is set */
};

/* What the threads of one server share and a step needs. */
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

uint64_t monarch_peer_now_ns(void);
/* Goes on until something has to be waited for, or others should have their turn. With `may_block`
 * it has waited for the socket, in vain, when it says TO_SEND. */
enum monarch_peer_turn monarch_peer_step(struct monarch_peer_connection *c,
                                         const struct monarch_peer_stage *stage);
/* What it holds besides its descriptor. */
void monarch_peer_let_go(struct monarch_peer_connection *c, const struct monarch_peer_stage *stage);

/* --- server.c ---------------------------------------------------------------------------------
 */

/* What `files` answers about this file may be another thing by now: those that wait for it are
 * looked at again. */
void monarch_peer_wake(struct monarch_peer_server *s, uint32_t source, uint64_t path_hash);
/* The same of those that `open` has told LATER and of which `is_settled` says so. */
void monarch_peer_wake_if(struct monarch_peer_server *s,
                          int (*is_settled)(void *arg, const struct monarch_peer_request *wanted),
                          void *arg);
struct monarch_peer_server *monarch_peer_serve(const struct monarch_peer_files *files,
                                               const struct monarch_peer_bounds *bounds,
                                               const unsigned char *content_key);
void monarch_peer_end(struct monarch_peer_server *s); /* closes all; joins and frees */

#endif
