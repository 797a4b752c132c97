/* State that the copying threads share, except their queues. */
#pragma once

#include "native.h"

struct monarch_holdings;
struct monarch_peer;
struct monarch_writer;
struct endpoint;
struct pack;

/* One read and one write move this much at most: long enough that a system call costs nothing,
 * short enough that the bytes are still in the second-level cache when they are hashed and
 * written. */
#define MONARCH_CHUNK (1024 * 1024)

/* State that all copying threads share, except their queues. */
struct monarch_engine {
    uint64_t block_bytes;
    uint64_t counts[MONARCH_COUNTS]; /* atomic: by enum monarch_count */
    int stopping;                    /* atomic */
    /* The peers that orders name, by number; NULL for a peer that is not there. Atomic. */
    struct monarch_peer *peers[MONARCH_MAX_PEERS];
    /* This node's holdings. Peers that wait there for a file are woken at every unit of it. NULL
     * for none. Atomic. */
    struct monarch_holdings *holdings;
    /* Does work that readers wait for, in a thread that would otherwise only wait for a peer.
     * `buffer` has MONARCH_CHUNK bytes. */
    void (*serve_readers)(struct monarch_engine *e, char *buffer);
    /* The most that the sources are asked for each second; 0: no limit. The times are atomic: when
     * the next byte and the next operation may be asked for [ns]. */
    uint64_t bytes_per_s, ops_per_s, next_byte_ns, next_op_ns;
    /* The writer through which finished copies are published. NULL: the caller that takes the
     * results publishes them. */
    struct monarch_writer *writer;
    struct monarch_control *control;
    uint32_t kept_sources; /* atomic: a bit for each source whose pages stay after a read */
    struct monarch_clients *clients;
    struct monarch_fills *fills;
    struct pack *pack[MONARCH_MAX_SOURCES]; /* of each source; NULL for none, see pack.h */
    struct endpoint *endpoint; /* the sources, then each peer by its number: see flow.c */
    /* Atomic: see monarch_note_speed and monarch_note_pages. */
    uint32_t fast[MONARCH_MAX_SOURCES], pageless[MONARCH_MAX_SOURCES];
    uint32_t judged[MONARCH_MAX_SOURCES]; /* how many fills each source was judged by */
};
