/* Callbacks by which the peer server finds, opens and checks the files that it sends. */
#pragma once

#include "peers/wire.h"

#define MONARCH_PEER_NEVER UINT64_MAX

struct monarch_peer_opened {
    void *file; /* the callbacks' own handle of the file */
    int fd;     /* valid until the file is closed */
    uint64_t size, block_bytes;
};

/* The server's threads call these functions without any lock of the server, and several threads at
 * the same time. None of the functions may block. */
struct monarch_peer_files {
    void *arg;
    /* Opens the requested file's copy. Returns MONARCH_PEER_OK and stores the copy in *out;
     * otherwise returns UNKNOWN_FILE, CHANGED, MOVED or LATER. After LATER, the server calls `open`
     * again whenever the request is woken, until the request's time limit. */
    enum monarch_peer_status (*open)(void *arg, const struct monarch_peer_request *wanted,
                                     struct monarch_peer_opened *out);
    /* Returns the offset up to which the bytes from `at` on can be sent now. The result may be the
     * end of the block that contains `at`, even if more is available. Returns `at` if no byte from
     * there on is available yet. Returns MONARCH_PEER_NEVER if the bytes will never be
     * available. */
    uint64_t (*available)(void *arg, void *file, uint64_t at);
    /* Called when the requested bytes were not available in time. Returns whether the peer should
     * repeat its request, because the source is still returning data. */
    int (*is_coming)(void *arg);
    /* Looks up the recorded sum and digest of a block. If they are known, stores them and returns
     * 1; otherwise returns 0. Called only for a block whose bytes are all available. */
    int (*sum)(void *arg, void *file, uint64_t block, uint64_t *sum, struct monarch_digest *digest);
    /* Returns whether `sum`, which was just computed from a block's bytes, equals the recorded sum.
     * sum = NULL: returns whether a recent call has found the block good. A part of it can then be
     * sent without a new check. */
    int (*check)(void *arg, void *file, uint64_t block, const uint64_t *sum);
    void (*close)(void *arg, void *file);
};
