/* Callbacks by which the peer server finds, opens and checks the files that it sends. */
#pragma once

#include "peers/wire.h"

#define MONARCH_PEER_NEVER UINT64_MAX

struct monarch_peer_opened {
    void *file; /* the callbacks' own handle of the file */
    int fd;     /* valid until the file is closed */
    uint64_t size, block_bytes;
};

/* The server's threads call these functions, several at a time, without any lock of the server.
 * None of the functions may wait. */
struct monarch_peer_files {
    void *arg;
    /* Returns MONARCH_PEER_OK, with the file in *out; otherwise UNKNOWN_FILE, CHANGED, MOVED or
     * LATER. After LATER, the server calls `open` again whenever it is woken, as long as the
     * request may wait. */
    enum monarch_peer_status (*open)(void *arg, const struct monarch_peer_request *wanted,
                                     struct monarch_peer_opened *out);
    /* Returns the end of the range of bytes that begins at `at` and can be sent now. The range may
     * stop at the end of the block that contains `at`, even if more bytes are available. Returns
     * `at` if the bytes from `at` on are not available yet, and MONARCH_PEER_NEVER if they will
     * never be available. */
    uint64_t (*available)(void *arg, void *file, uint64_t at);
    /* Called when the requested bytes were not available in time. Returns whether the source of
     * these bytes is returning data. If so, the peer is told to repeat the request. */
    int (*is_coming)(void *arg);
    /* Returns whether the sum and the digest of a block are known. If they are, stores them in *sum
     * and *digest. Called only for a block whose bytes are all available. */
    int (*sum)(void *arg, void *file, uint64_t block, uint64_t *sum, struct monarch_digest *digest);
    /* Returns whether `sum`, which was just computed from a block's bytes, equals the recorded sum.
     * If `sum` is NULL, returns whether the block was found good recently. If so, a part of the
     * block can be sent without computing the sum. */
    int (*check)(void *arg, void *file, uint64_t block, const uint64_t *sum);
    void (*close)(void *arg, void *file);
};
