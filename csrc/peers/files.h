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
    /* Returns MONARCH_PEER_OK, with the file in *out; or UNKNOWN_FILE, CHANGED or MOVED; or LATER,
     * after which `open` is called again when the server is woken, as long as the request may
     * wait. */
    enum monarch_peer_status (*open)(void *arg, const struct monarch_peer_request *wanted,
                                     struct monarch_peer_opened *out);
    /* Returns the end of the bytes that are there from `at` on; it need not look beyond the end of
     * the block. Returns `at` if no bytes are there yet, MONARCH_PEER_NEVER if no more will
     * come. */
    uint64_t (*available)(void *arg, void *file, uint64_t at);
    /* Called when bytes did not come in time. Returns whether their source gives something, so that
     * it is worth while for the peer to ask again. */
    int (*is_coming)(void *arg);
    /* Returns whether the sum and the digest of a block are known, and if so, sets both. All of the
     * block is there. */
    int (*sum)(void *arg, void *file, uint64_t block, uint64_t *sum, struct monarch_digest *digest);
    /* Returns whether `sum`, which was computed from a block's bytes just now, is the sum that was
     * recorded. If `sum` is NULL, returns whether the block was found good so recently that a part
     * of it can be sent without computing its sum. */
    int (*check)(void *arg, void *file, uint64_t block, const uint64_t *sum);
    void (*close)(void *arg, void *file);
};
