/* The protocol between two nodes, once each has proved that it belongs to the session. Python does
 * the proving (monarch_py/peers/handshake.py) and hands the connected socket to C.
 *
 * A request is one struct; the answer is a sequence of frames:
 *
 *     DATA n, n bytes, [DATA n, n bytes, ...] SUM, ..., END status
 *
 * Each request and each frame ends in a seal: the MAC of what stands before it, under the key of
 * this connection and direction, with the number of the request or frame, counted from 0 (mac.h).
 * So nobody in between can change, repeat, swap or leave out a request or a frame, nor send it back
 * to its sender. A SUM has the XXH3-64 of the bytes since the last SUM: for a whole block the one
 * that its fill recorded, for a part of a block one that is computed when it is sent. The seal of a
 * SUM also covers a keyed digest of the same bytes (struct monarch_digest), which is never sent:
 * the receiver computes its own. A SUM stands at every block's end and at the end of the range. An
 * END may come in place of any frame: bytes that no SUM has followed count for nothing. Requests
 * may be sent without waiting for answers, which come in the same order.
 *
 * Numbers are little-endian, as on every machine that Monarch runs on; no path is ever sent. */
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

/* A request names a file by attributes that are the same in every node's catalog. */
struct monarch_peer_request {
    uint32_t magic;
    uint32_t source;    /* its number in the configuration */
    uint64_t tag;       /* comes back with every frame of the answer */
    uint64_t path_hash; /* as an entry's `hash` */
    uint64_t size;
    int64_t mtime_ns;       /* time of modification, or what stands for it in both catalogs */
    uint64_t first, length; /* the bytes asked for; length 0 only asks whether the file is there */
    uint16_t is_awaited;    /* somebody waits for these very bytes */
    uint16_t is_doubted;    /* their block arrived wrong before: the holder is to check it */
    uint16_t is_owner;      /* the asker takes this node for the file's owner */
    uint16_t unused;
    unsigned char seal[MONARCH_MAC_BYTES];
};

enum monarch_peer_kind { MONARCH_PEER_DATA = 1, MONARCH_PEER_SUM, MONARCH_PEER_END };

struct monarch_peer_frame {
    uint32_t magic;
    uint32_t kind;
    uint64_t tag;
    uint64_t value; /* DATA: bytes that follow; SUM: the sum; END: enum monarch_peer_status */
    unsigned char seal[MONARCH_MAC_BYTES];
};

enum monarch_peer_status {
    MONARCH_PEER_OK,
    MONARCH_PEER_REFUSED,      /* no range of that file; or no member of this session */
    MONARCH_PEER_UNKNOWN_FILE, /* the node has no copy, or gave up making it */
    MONARCH_PEER_CHANGED,      /* the node's file has another size or time */
    MONARCH_PEER_COMING,       /* the bytes did not come in time, but their source gives
                                  something */
    MONARCH_PEER_TIMEOUT,      /* the bytes did not come within a bound */
    MONARCH_PEER_CUT,          /* the connection ended, or what came was no answer */
    MONARCH_PEER_WRONG_BYTES,  /* a sum is not that of the bytes */
    MONARCH_PEER_NO_ROOM,      /* the bytes came, and could not be written here */
    MONARCH_PEER_FORGED,       /* a seal is wrong: somebody in between has changed something */
    MONARCH_PEER_OTHER_NODE,   /* the answerer has proved to be another node of the session */
    MONARCH_PEER_LATER,        /* never sent: the file is not there yet, ask again */
    /* MOVED + n: node n keeps the file, because there is no room for it here. */
    MONARCH_PEER_MOVED = 65536,
};

#ifndef MONARCH_CDEF
static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "numbers are sent as they lie in memory");
static_assert(sizeof(struct monarch_peer_request) == 80, "another wire: another magic");
static_assert(sizeof(struct monarch_peer_frame) == 40, "another wire: another magic");
/* How many bytes of its own struct a seal covers. */
#define MONARCH_SEALED_OF_REQUEST offsetof(struct monarch_peer_request, seal)
#define MONARCH_SEALED_OF_FRAME offsetof(struct monarch_peer_frame, seal)
#endif
