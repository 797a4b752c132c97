/* Callbacks by which a server of peers asks the owner of the files. */
#pragma once

#include "peers/wire.h"

#define MONARCH_PEER_NEVER UINT64_MAX

struct monarch_peer_opened {
    void *file; /* the owner's handle */
    int fd;     /* valid until the file is closed */
    uint64_t size, block_bytes;
};

/* The server's threads call these functions, several at a time, and hold no lock of the server.
 * None of the functions may wait. */
struct monarch_peer_files {
    void *arg;
    /* Returns MONARCH_PEER_OK and the file; or UNKNOWN_FILE, CHANGED, MOVED; or LATER: then `open`
     * is called again when the server is woken, as long as the request may wait. */
    enum monarch_peer_status (*open)(void *arg, const struct monarch_peer_request *wanted,
                                     struct monarch_peer_opened *out);
    /* Returns the end of the bytes that are there from `at` on; it need not look beyond the end of
     * the block. Returns `at` if no bytes are there yet, MONARCH_PEER_NEVER if no more will
     * come. */
    uint64_t (*available)(void *arg, void *file, uint64_t at);
    /* Asked about bytes that did not come in time: whether their source gives something, so that it
     * is worth while to ask again. */
    int (*is_coming)(void *arg);
    /* Whether the sum and the digest of a whole block that is there are known; if so, sets both. */
    int (*sum)(void *arg, void *file, uint64_t block, uint64_t *sum, struct monarch_digest *digest);
    /* Whether a block's bytes, whose sum was computed just now, are those that were recorded. sum:
     * NULL asks whether the block was found good so recently that a part of it can be sent without
     * computing its sum. */
    int (*check)(void *arg, void *file, uint64_t block, const uint64_t *sum);
    void (*close)(void *arg, void *file);
};
