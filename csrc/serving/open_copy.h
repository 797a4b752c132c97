/* The files that this node can serve to its peers (its holdings), and copies that are being
 * sent. */
#pragma once

#include <pthread.h>

#include "peers/files.h"
#include "serving/serving.h"

/* Number of elements of the table of recent checks of blocks. */
#define CHECKS 4096

struct checked {
    uint64_t word, block, at_ns;
};

/* A copy that was found rotten but is not yet reported to the daemon. */
struct rotten {
    uint64_t id, word;
};

struct monarch_holdings {
    struct monarch_clients *clients;
    const struct monarch_fills *fills;
    uint64_t block_bytes, device[MONARCH_MAX_SOURCES];
    int copies[MONARCH_MAX_TIERS];
    pthread_rwlock_t lock; /* guards `catalog`, which is replaced when the catalog grows */
    const struct monarch_catalog *catalog;
    /* atomic, by entry: which node keeps the file (enum monarch_home_here) */
    uint16_t *home;
    int patience;      /* atomic: enum monarch_patience */
    uint32_t next_tag; /* atomic: the tag of the next demand (monarch_demand) */
    struct monarch_sums *sums;
    unsigned char content_key[MONARCH_KEY_BYTES]; /* key of digests */
    pthread_mutex_t checking; /* guards the fields from `checked` to `moved_count` */
    struct checked checked[CHECKS];
    struct rotten rotten[MONARCH_ROTTEN];
    uint64_t rotten_count;
    /* entries of files that this node has begun to keep; not yet reported to the daemon */
    uint64_t moved_here[MONARCH_MOVED];
    uint64_t moved_count;
    /* guards `server`: a thread that wakes requests of the server holds this lock for reading, so
     * that no other thread frees the server meanwhile */
    pthread_rwlock_t waking;
    struct monarch_peer_server *server;
};

/* A copy that is being sent to a peer. */
struct open_copy {
    /* sum: the checksum of the whole file, from the catalog */
    uint64_t id, word, size, blocks, block_bytes, sum;
    int fd, slot; /* slot: the fill's slot; -1 if the copy was complete when it was opened */
    /* 1: if requested bytes are missing, a demand is written for them (is_hasty in open_copy.c) */
    int is_hasty;
    int is_doubted; /* 1: the peer has received the bytes before, and they were damaged */
    /* 1: the copy was found complete. From then on, all its bytes can be sent, even if the copy is
     * removed before the answer ends. */
    int is_whole;
    struct monarch_sums_held *sums; /* sums of the blocks of a complete copy; NULL: unknown */
};

static inline unsigned monarch_home_here(const struct monarch_holdings *h, uint64_t id) {
    return id < MONARCH_MAX_FILES ? __atomic_load_n(&h->home[id], __ATOMIC_RELAXED)
                                  : MONARCH_KEPT_ELSEWHERE;
}

/* Returns whether the entry's word is still `word`. If so, the entry still has the copy that this
 * word identifies. */
int monarch_has_word(struct monarch_holdings *h, uint64_t id, uint64_t word);

/* Callbacks for the server (peers/files.h). They find the copy for a request, and report how much
 * of it can be sent. arg: the struct monarch_holdings. file: the struct open_copy. */
enum monarch_peer_status monarch_open_copy(void *arg, const struct monarch_peer_request *wanted,
                                           struct monarch_peer_opened *out);
uint64_t monarch_copy_available(void *arg, void *file, uint64_t at);
int monarch_copy_is_coming(void *arg);
void monarch_close_copy(void *arg, void *file);
