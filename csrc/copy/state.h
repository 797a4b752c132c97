/* State that the copying threads share, except their queues. */
#pragma once

#include "native.h"

struct monarch_holdings;
struct monarch_peer;
struct monarch_writer;
struct endpoint;
struct pack;

/* Maximum number of bytes that one read or one write transfers. With this many bytes, the cost of
 * the system call itself does not matter. With more, the first bytes would no longer be in the
 * second-level cache when they are hashed and written. */
#define MONARCH_CHUNK (1024 * 1024)

/* The engine: the state that all copying threads share, except their queues. */
struct monarch_engine {
    uint64_t block_bytes;
    uint64_t counts[MONARCH_COUNTS]; /* atomic; indexed by enum monarch_count */
    int stopping;                    /* atomic */
    /* Atomic. An order names a peer by its index in this array. NULL: no peer has this index. */
    struct monarch_peer *peers[MONARCH_MAX_PEERS];
    /* The copies that this node offers to its peers. NULL if it offers none. Atomic. A peer that
     * waits for a file is woken after each unit of the file. */
    struct monarch_holdings *holdings;
    /* Serves waiting readers. A thread calls this function while it has to wait for a peer.
     * `buffer` has MONARCH_CHUNK bytes. */
    void (*serve_readers)(struct monarch_engine *e, char *buffer);
    /* bytes_per_s, ops_per_s: the most bytes and operations per second that are requested from the
     * sources; 0: no limit. next_byte_ns, next_op_ns: atomic; the times from which the next byte
     * and the next operation may be requested [ns of CLOCK_MONOTONIC]. */
    uint64_t bytes_per_s, ops_per_s, next_byte_ns, next_op_ns;
    /* The writer through which finished copies are published. NULL: the caller publishes them when
     * it takes the results. */
    struct monarch_writer *writer;
    struct monarch_control *control;
    /* atomic: a bit per source, set if the pages of its files stay in the page cache after a
     * read */
    uint32_t kept_sources;
    struct monarch_clients *clients;
    struct monarch_fills *fills;
    /* by source: the source's pack (copy/pack.h); NULL if it has none */
    struct pack *pack[MONARCH_MAX_SOURCES];
    /* Measured throughput (copy/flow.h). Element 0 is for all sources together; the elements after
     * it are for the peers, in the order of their numbers. */
    struct endpoint *endpoint;
    /* All atomic, by source. fast: the share of recent files that were fast (monarch_note_speed).
     * pageless: the share of recent files whose pages were gone (monarch_note_pages). awaited: the
     * share of recent files whose bytes were not in the page cache yet, so that the read waited for
     * the source. `awaited` counts only files that could have been read with O_DIRECT, but were
     * read through the page cache. */
    uint32_t fast[MONARCH_MAX_SOURCES], pageless[MONARCH_MAX_SOURCES], awaited[MONARCH_MAX_SOURCES];
    /* Both atomic, a bit per source. awaited_sources: set if the source's element of `awaited`
     * exceeds one half. buffered_sources: set if the source's files cannot be read with
     * O_DIRECT. */
    uint32_t awaited_sources, buffered_sources;
    /* atomic, by source: the number of files that could be read with O_DIRECT while the source's
     * bit in awaited_sources was set */
    uint32_t awaited_files[MONARCH_MAX_SOURCES];
    /* by source: number of fills whose duration was noted in `fast` */
    uint32_t judged[MONARCH_MAX_SOURCES];
};
