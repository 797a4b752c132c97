/* The protocol by which one node sends ranges of files to another node. Before it begins, Python
 * runs a handshake in which each node proves that it belongs to the session
 * (monarch_py/peers/handshake.py). Python then passes the connected socket to C.
 *
 * A request is one struct; the answer is a sequence of frames:
 *
 *     DATA n, n bytes, [DATA n, n bytes, ...] SUM, ..., END status
 *
 * Each request and each frame ends with a seal: the MAC (mac.h) of all its bytes before the seal.
 * Each connection has one key per direction. A MAC also depends on the number of the request or
 * frame in its direction, counted from 0. So an attacker on the network cannot change, repeat,
 * reorder, drop or return a request or a frame without the receiver noticing.
 *
 * A SUM comes at the end of every block and at the end of the range. Its value is the XXH3-64 of
 * the bytes since the last SUM. For a whole block, the sender uses the sum that the fill of the
 * copy has recorded, if it is known. Otherwise, the sender computes the sum from the bytes. The
 * seal of a SUM also covers a keyed digest of the same bytes (struct monarch_digest). The digest is
 * never sent: the receiver computes it from the bytes. An END may come in place of any frame; the
 * receiver then discards the bytes since the last SUM.
 *
 * Several requests may be sent before the first answer arrives. The answers come in the sequence of
 * the requests.
 *
 * Numbers are little-endian, as on every machine that Monarch supports. No path is ever sent. */
#pragma once

#include "peers/mac.h"

#ifndef MONARCH_CDEF
#include <assert.h>
#include <stddef.h>
#include <stdint.h>
#endif

enum {
    MONARCH_PEER_REQUEST = 0x3651504d, /* "MPQ6" */
    MONARCH_PEER_FRAME = 0x3346504d,   /* "MPF3" */
};

/* A request for a range of a file. It identifies the file by attributes that are the same in the
 * catalogs of all nodes. */
struct monarch_peer_request {
    uint32_t magic;
    uint32_t source;    /* number of the source in the configuration */
    uint64_t tag;       /* identifies the request in every frame of its answer */
    uint64_t path_hash; /* the `hash` of the file's entry */
    uint64_t size;
    /* the file's version: a number that each node computes from the file's times
     * (monarch_times_of) */
    int64_t mtime_ns;
    /* the requested bytes; length 0: the sender only asks whether the receiver has the file */
    uint64_t first, length;
    uint16_t is_awaited; /* a reader is waiting for these bytes */
    /* the block arrived damaged in an earlier answer, so the receiver of this request should check
     * its copy */
    uint16_t is_doubted;
    uint16_t is_owner; /* the sender considers the receiver the file's owner */
    uint16_t unused;
    unsigned char seal[MONARCH_MAC_BYTES];
};

enum monarch_peer_kind { MONARCH_PEER_DATA = 1, MONARCH_PEER_SUM, MONARCH_PEER_END };

struct monarch_peer_frame {
    uint32_t magic;
    uint32_t kind;
    uint64_t tag;
    /* DATA: number of bytes that follow; SUM: the sum; END: enum monarch_peer_status */
    uint64_t value;
    unsigned char seal[MONARCH_MAC_BYTES];
};

enum monarch_peer_status {
    MONARCH_PEER_OK,
    /* the requested range exceeds the file, or the other end is not a node of the session */
    MONARCH_PEER_REFUSED,
    MONARCH_PEER_UNKNOWN_FILE, /* the node has no copy and makes none */
    MONARCH_PEER_CHANGED,      /* the node's file has another size or time */
    /* the bytes were not available in time, but the source is returning data, so ask again */
    MONARCH_PEER_COMING,
    MONARCH_PEER_TIMEOUT,     /* the bytes did not arrive in time, or were not available in time */
    MONARCH_PEER_CUT,         /* the connection ended, or the answer cannot be parsed */
    MONARCH_PEER_WRONG_BYTES, /* a sum does not match the bytes */
    MONARCH_PEER_NO_ROOM,     /* the bytes arrived, but the receiver could not write them */
    MONARCH_PEER_FORGED,      /* a seal is wrong: the message was changed in transit */
    MONARCH_PEER_OTHER_NODE,  /* the other end is a node of the session, but not the expected one */
    /* never sent: the copy cannot be opened yet, so the server tries again later */
    MONARCH_PEER_LATER,
    /* MOVED + n: node n keeps the file, because the node that answers has no room for it */
    MONARCH_PEER_MOVED = 65536,
};

#ifndef MONARCH_CDEF
static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "numbers are sent as they lie in memory");
static_assert(sizeof(struct monarch_peer_request) == 80,
              "the wire format has changed: change the magic too");
static_assert(sizeof(struct monarch_peer_frame) == 40,
              "the wire format has changed: change the magic too");
/* The number of bytes before the seal in each struct; the seal covers them. */
#define MONARCH_SEALED_OF_REQUEST offsetof(struct monarch_peer_request, seal)
#define MONARCH_SEALED_OF_FRAME offsetof(struct monarch_peer_frame, seal)
#endif
