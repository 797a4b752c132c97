/* State that the copying threads share, except their queues. */
#pragma once

#include "native.h"

struct monarch_holdings;
struct monarch_peer;
struct monarch_writer;
struct endpoint;
struct pack;

/* Maximum number of bytes of one read or write. With this many bytes, the cost of the system call
 * does not matter. With more, the first bytes would no longer be in the processor's second-level
 * cache when they are hashed and written. */
#define MONARCH_CHUNK (1024 * 1024)

/* The engine: the state that all copying threads share, except their queues. */
struct monarch_engine {
    uint64_t block_bytes;
    uint64_t counts[MONARCH_COUNTS]; /* atomic; indexed by enum monarch_count */
    int stopping;                    /* atomic */
    /* Atomic. An order names a peer by the peer's index in this array. NULL: no peer has this
     * index. */
    struct monarch_peer *peers[MONARCH_MAX_PEERS];
    /* Atomic. The copies that this node offers to its peers; NULL if it offers none. When bytes of
     * a file arrive, the copying threads wake the requests of peers that wait for these bytes. */
    struct monarch_holdings *holdings;
    /* Serves other waiting readers. A thread calls this function while its own fill waits for a
     * peer. `buffer` has MONARCH_CHUNK bytes. */
    void (*serve_readers)(struct monarch_engine *e, char *buffer);
    /* bytes_per_s, ops_per_s: the limits for bytes and operations per second at the sources; 0: no
     * limit. next_byte_ns, next_op_ns: atomic; the next byte and the next operation may be
     * requested from these times on [ns of CLOCK_MONOTONIC]. */
    uint64_t bytes_per_s, ops_per_s, next_byte_ns, next_op_ns;
    /* The writer through which finished copies are published. NULL: Python publishes them when it
     * takes the results. */
    struct monarch_writer *writer;
    struct monarch_control *control;
    /* atomic: a bit per source, set if the pages that a read loads stay in the page cache
     * (monarch_read_source) */
    uint32_t kept_sources;
    struct monarch_clients *clients;
    struct monarch_fills *fills;
    /* by source: the source's pack (copy/pack.h); NULL if it has none */
    struct pack *pack[MONARCH_MAX_SOURCES];
    /* Measured throughput (copy/flow.h). Element 0 is for all sources together; the following
     * elements are for the peers, sorted by their numbers. */
    struct endpoint *endpoint;
    /* All atomic, by source; each is a fraction of the source's recent files. fast: files that were
     * opened and read quickly (monarch_note_speed). pageless: files whose pages the kernel had
     * already dropped from the page cache (monarch_note_pages). awaited: files that were not in the
     * page cache, so that their read had to wait for the source. This last fraction counts only
     * files that O_DIRECT could have read, but that were read through the page cache. */
    uint32_t fast[MONARCH_MAX_SOURCES], pageless[MONARCH_MAX_SOURCES], awaited[MONARCH_MAX_SOURCES];
    /* Both atomic, a bit per source. awaited_sources: set if the source's `awaited` exceeds one
     * half. buffered_sources: set if the source's files cannot be read with O_DIRECT. */
    uint32_t awaited_sources, buffered_sources;
    /* atomic, by source: the number of files that could be read with O_DIRECT while the source's
     * bit in awaited_sources was set */
    uint32_t awaited_files[MONARCH_MAX_SOURCES];
    /* by source: number of fills whose duration was noted in `fast` */
    uint32_t judged[MONARCH_MAX_SOURCES];
};
