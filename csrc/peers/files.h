/* What a server asks of whoever has the files. */
#pragma once

#include "peers/wire.h"

#define MONARCH_PEER_NEVER UINT64_MAX

struct monarch_peer_opened {
    void *file; /* the owner's own */
    int fd;     /* valid until it is closed */
    uint64_t size, block_bytes;
};

/* All are called by the server's threads, several at a time, and under no lock of its own; none of
 * them may wait. */
struct monarch_peer_files {
    void *arg;
    /* Returns MONARCH_PEER_OK and the file; or UNKNOWN_FILE, CHANGED, MOVED; or LATER: it is called
     * again when the server is woken, as long as the request may wait. */
    enum monarch_peer_status (*open)(void *arg, const struct monarch_peer_request *wanted,
                                     struct monarch_peer_opened *out);
    /* How far the bytes that are there reach from `at` on, to the end of its block or further; `at`
     * if there are none yet, MONARCH_PEER_NEVER when no more will come. */
    uint64_t (*available)(void *arg, void *file, uint64_t at);
    /* For bytes that did not come in time: whether their source gives something, so that it is
     * worth while to ask again. */
    int (*is_coming)(void *arg);
    /* Whether the sum and the digest of a whole block that is there are known; if so, sets both. */
    int (*sum)(void *arg, void *file, uint64_t block, uint64_t *sum, struct monarch_digest *digest);
    /* Whether a block's bytes, whose sum was computed just now, are what was recorded. sum: NULL
     * asks whether that is known well enough to send a part of the block without a look at it. */
    int (*check)(void *arg, void *file, uint64_t block, const uint64_t *sum);
    void (*close)(void *arg, void *file);
};
