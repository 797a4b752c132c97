/* The C parts that the daemon drives from Python: writing the catalog, scanning sources, copying
 * files. Python says what, where and in what order; the engine decides within its grants. */
#ifndef MONARCH_NATIVE_H
#define MONARCH_NATIVE_H

#include "shared/catalog.h"
#include "shared/path.h"

/* --- writing the catalog: catalog_write.c, publish.c ------------------------------------------ */

uint64_t monarch_catalog_bytes(uint64_t capacity, uint64_t pool_bytes);
void monarch_catalog_init(void *map, uint64_t generation, uint64_t capacity, uint64_t pool_bytes);

/* Through which all threads of the daemon write a session's catalog, one at a time; readers take no
 * lock. NULL without memory. Freed when nobody writes any more. */
struct monarch_writer *monarch_writer_new(void);
void monarch_writer_free(struct monarch_writer *w);
/* Everything goes from the catalog that is written into `to`, which is empty and no smaller; that
 * is the one from then on, and *generation, which clients look at, gets its number. Nothing is
 * written in between. The first one has nothing to take over. 0, or -1 if it does not fit. */
int monarch_catalog_move(struct monarch_writer *w, struct monarch_catalog *to,
                         uint64_t *generation);
/* Adds entries whose `path` (and a link's `copy_ino`) are offsets in `pool`. ids[i] gets the
 * number, that of the older entry if the path is known. Returns how many of them were taken:
 * fewer than n when the segment is full and must grow. *added counts the new ones. */
uint64_t monarch_catalog_add(struct monarch_writer *w, const struct monarch_entry *entries,
                             uint64_t n, const char *pool, uint64_t *ids, uint64_t *added);
/* New attributes for a file that has no copy. Who reads the old ones meanwhile sees it by their
 * version, and asks the source. Returns -1 when the index of inodes must be rebuilt (move the
 * catalog) first; nothing is changed then. */
int monarch_catalog_update(struct monarch_writer *w, uint64_t id,
                           const struct monarch_entry *fresh);

/* Asks the kernel to put a segment that will not grow soon on huge pages: a look-up among a million
 * files then misses fewer translations. Where it cannot, nothing changes. */
void monarch_collapse(const char *path);
void monarch_set_words(struct monarch_writer *w, uint64_t n, const uint64_t *ids,
                       const uint64_t *words);
/* Makes copies known by their inode, then visible. Returns -1 when the index of copies must be
 * rebuilt (move the catalog) first; nothing is published then. made[i]: this daemon has made it, so
 * that it is stamped where the others of its tier are; NULL for none. */
int monarch_publish(struct monarch_writer *w, uint64_t n, const uint64_t *ids,
                    const uint64_t *words, const uint64_t *copy_inos, const uint64_t *sums,
                    const uint8_t *made);
/* When this returns, the engine publishes nothing in this tier any more. */
void monarch_lose_tier(struct monarch_writer *w, unsigned tier);

/* The entries of `n` files by their names, one after the other in `pool`, where name i begins at
 * starts[i] and ends at starts[i + 1]; `prefix`, which ends with a slash or is empty, goes before
 * each. Links that the catalog knows are followed. -1 for one that is not known. */
void monarch_find_all(const struct monarch_control *k, const struct monarch_clients *m,
                      const struct monarch_catalog *c, unsigned source, const char *prefix,
                      uint64_t prefix_len, const char *pool, const uint64_t *starts, uint64_t n,
                      int64_t *ids);

/* Numbers of entries that clients want since the last call; at most `max`. */
uint64_t monarch_take_wants(struct monarch_clients *m, uint64_t count, uint64_t *ids, uint64_t max);
/* The same of those that clients have opened for reading; in no order. */
uint64_t monarch_take_opened(struct monarch_clients *m, uint64_t count, uint64_t *ids,
                             uint64_t max);
/* The same of those that were read to their end by programs that had found no copy. */
uint64_t monarch_take_read(struct monarch_clients *m, uint64_t count, uint64_t *ids, uint64_t max);
/* Marks what processes without room for the segments have told, in the session's file of changes
 * (`fd`) from *at on. */
void monarch_take_changes(struct monarch_clients *m, const struct monarch_control *k,
                          const struct monarch_catalog *c, int fd, uint64_t *at);
/* Of `n` entries, sets flags[i] for those that the changed filter names. */
void monarch_find_changed(const struct monarch_clients *m, const struct monarch_control *k,
                          const struct monarch_catalog *c, uint64_t n, const uint64_t *ids,
                          uint8_t *flags);
/* Waits until the doorbell no longer says `seen`; at most `timeout_ms`. Returns what it says. */
uint32_t monarch_wait_doorbell(struct monarch_clients *m, uint32_t seen, int timeout_ms);
void monarch_ring_doorbell(struct monarch_clients *m);

/* --- listings: listing.c ---------------------------------------------------------------------- */

/* Once everything is scanned: gives each directory its listing (`sum`), if all its names are known,
 * and lets readers use it (`copy_ino`) if the directory has not changed since `young_ns`: it could
 * change again without its times showing it. Returns how many readers may use; -1 without memory.
 */
int64_t monarch_catalog_list(struct monarch_catalog *c, int64_t young_ns);
/* Whether a directory that has a listing still has just these names at the source. */
int monarch_listing_holds(const struct monarch_catalog *c, int root, uint64_t directory);
/* The directory's listing holds no longer; -1 is none. */
void monarch_catalog_unlist(struct monarch_catalog *c, int64_t directory);
/* The directory that a file lies in, -1 for the root or one that is not known. */
int64_t monarch_catalog_parent(const struct monarch_catalog *c, const struct monarch_entry *e);
/* The inode that the root's listing gives to ".."; 0: unknown. */
uint64_t monarch_read_up(int root);
/* Compares the directories of a source, from entry *at on and `max` of them, with what they are at
 * the source now (`root` its descriptor). One that is another, and what has changed in it, is
 * marked in `m`. is_listed: monarch_catalog_list has been called; before that `sum` is no listing.
 * *at is where to go on; returns how many were others. */
void monarch_read_filesystem(int root, struct monarch_filesystem *f);
uint64_t monarch_compare_directories(const struct monarch_catalog *c, struct monarch_clients *m,
                                     const struct monarch_source *source, unsigned number, int root,
                                     int is_listed, uint64_t *at, uint64_t max);

/* --- what lies beside a file: beside.c ----------------------------------------------------------
 */

/* Whether a program reads the file at the source just now, to hand its descriptor over. */
int monarch_is_being_read(const struct monarch_clients *m, uint64_t id, uint64_t ino,
                          uint64_t now_ns);
/* Files of a directory that have no copy, that nobody wants and that no program reads at the source
 * just now, in the order of the catalog; those for which there was no room are left out.
 * `directory` is relative to the source, of `length` bytes, 0 for the root; is_deep: also what lies
 * in directories below it. Looks at `looks` entries at most from entry *at on, and moves *at behind
 * them. Returns how many numbers are in `ids`, `max` at most. */
uint64_t monarch_find_absent(const struct monarch_catalog *c, const struct monarch_clients *m,
                             unsigned source, const char *directory, uint64_t length, int is_deep,
                             uint64_t *at, uint64_t looks, uint64_t *ids, uint64_t max);

/* --- scanning: csrc/scan --------------------------------------------------------------------- */

struct monarch_batch {
    uint64_t count, capacity, pool_used, pool_bytes;
    struct monarch_entry *entries;
    char *pool;
    uint64_t begun_ns; /* its first entry was found, of CLOCK_MONOTONIC */
    struct monarch_batch *next;
};
struct monarch_scan;

/* Walks the tree below the directory `root` (a descriptor, kept by the caller) with `threads`
 * threads and at most `ops_per_s` operations a second (0: no limit); stays on its file system. */
struct monarch_scan *monarch_scan_start(int root, unsigned source, int threads, uint64_t ops_per_s,
                                        uint32_t *doorbell);
/* The same of `n` directories alone, relative to the root; is_deep: with what lies below them. It
 * does not say how many names they hold. */
struct monarch_scan *monarch_scan_parts(int root, unsigned source, const char *const *directories,
                                        uint64_t n, int is_deep, int threads, uint64_t ops_per_s,
                                        uint32_t *doorbell);
/* A directory, and those that lie above it, come before all others that are still to be listed;
 * is_deep: with those below it. */
void monarch_scan_want(struct monarch_scan *s, const char *directory, int is_deep);
/* The same with flags of statx. */
int monarch_statx_entry(int root, unsigned source, const char *path, int flags,
                        struct monarch_entry *e, char *target, uint64_t target_bytes);
/* Files that the catalog has already, under the same name and inode's number, are not looked at
 * where their directories have not changed since `since_ns` [CLOCK_REALTIME], when it had none. Of
 * a file that a client reads just now, what its open has brought is enough: the server is not
 * asked. Before the first monarch_scan_allow. */
void monarch_scan_skip_known(struct monarch_scan *s, struct monarch_writer *w,
                             const struct monarch_clients *clients, int64_t since_ns);
/* Until the next call so many names are looked at in wanted directories (0: what is left of those
 * that it may), and in others so many more than it may now; below 0: all. Directories that are
 * wanted are listed all the same; before the first call nothing else is. */
void monarch_scan_allow(struct monarch_scan *s, int64_t wanted, int64_t more_others);
/* The next batch, or NULL: then *finished says whether there will be none. */
struct monarch_batch *monarch_scan_take(struct monarch_scan *s, int *finished);
void monarch_batch_free(struct monarch_batch *b);
/* Directories and files that could not be read; *error the first errno. */
uint64_t monarch_scan_errors(struct monarch_scan *s, int *error);
/* Joins the threads and frees it: 0. Threads that have not ended within `limit_ms`, as the source
 * does not answer: how many, and nothing is freed. */
int monarch_scan_stop(struct monarch_scan *s, int limit_ms);

/* One file by its path relative to `root`: 0 and the entry, or -errno. `target` gets a link's. */
int monarch_stat_entry(int root, unsigned source, const char *path, struct monarch_entry *e,
                       char *target, uint64_t target_bytes);

/* --- comparing: compare.c -------------------------------------------------------------------- */

/* Compared with the source, a file or directory of the catalog is the same, another version, or
 * gone. One that the source says nothing of counts as the same. */
enum monarch_compared { MONARCH_SAME, MONARCH_REPLACED, MONARCH_GONE };
/* Compares `n` entries, files and directories, in this order until `limit_ns` are over; returns how
 * many it has come to, one at least. found[i] gets an enum monarch_compared, fresh[i] the
 * attributes of what is another version. roots[s]: descriptor of source s. threads, ops_per_s as
 * for a scan. */
uint64_t monarch_compare(const struct monarch_catalog *c, const int32_t *roots, uint64_t n,
                         const uint64_t *ids, int threads, uint64_t ops_per_s, uint64_t limit_ns,
                         uint8_t *found, struct monarch_entry *fresh);

/* --- copying: engine.c ----------------------------------------------------------------------- */

enum monarch_job_kind {
    MONARCH_FILL,
    MONARCH_CHECK,
    MONARCH_COMPARE,
    MONARCH_DROP,
    MONARCH_PAGE_IN, /* a copy, into the page cache; done by half of the threads, not by one alone
                      */
};
enum monarch_job_status {
    MONARCH_DONE,
    MONARCH_SOURCE_CHANGED, /* it is not the file that the catalog describes */
    MONARCH_SOURCE_ERROR,
    MONARCH_TIER_FULL,
    MONARCH_TIER_ERROR,
    MONARCH_DAMAGED, /* a copy's content is not what its checksum says */
    MONARCH_ABANDONED,
};

struct monarch_result {
    uint64_t id, copy, copy_ino, bytes, copy_bytes, sum;
    uint64_t *block_sums; /* until monarch_engine_settle */
    uint64_t blocks;
    int64_t mtime_ns, ctime_ns; /* of the source */
    int64_t started_ns;         /* when the work on it began, on the wall clock */
    uint32_t kind, status, tier, in_use;
    int32_t error;
    int32_t giver; /* of a FILL: the peer that gave all of it, and so has it whole; -1 for none */
    int32_t home;  /* of a FILL: the node that keeps the file because the peer that was asked has no
                      room for it; -1 where no peer has said so */
    /* Of a FILL or CHECK that is DONE: the catalog has said PRESENT of it. Else it is the caller's
     * to see why not. */
    uint32_t is_published;
    /* Errno of a DROP or a failed FILL that could not remove its copy, which still takes its room;
     * 0 where the copy is gone. */
    int32_t left;
};

/* What threads have got so far from one place (the sources, or a peer that had the file whole), and
 * how long it took them [ns], by how many were at it when they began: 1, 2 to 3, 4 to 7, ... */
enum monarch_levels { MONARCH_LEVELS = 6 };
struct monarch_flow {
    uint64_t bytes[MONARCH_LEVELS], ns[MONARCH_LEVELS];
};

struct monarch_engine;

/* At most `threads` threads, which are started as they are needed, do what readers wait for, at
 * first `width` of them everything else; `peer_threads` others do what comes from peers. Blocks are
 * those of the checksums. The segments are those of the session. */
struct monarch_engine *monarch_engine_start(int threads, int width, int peer_threads,
                                            uint64_t block_bytes, struct monarch_clients *clients,
                                            struct monarch_fills *fills);
/* From now on the threads publish what they have made; clients' changes are those of the sources in
 * `control`. Before the first order. */
void monarch_engine_publish(struct monarch_engine *e, struct monarch_writer *w,
                            struct monarch_control *control);
/* Readers' descriptors come by these sockets (n,), of datagrams, which the caller closes once the
 * engine has stopped. -1: no thread could be started. After monarch_engine_publish. */
int monarch_engine_handovers(struct monarch_engine *e, const int *sockets, int n);
/* Files of a source that were handed over and that the catalog does not know: (max,) their entries
 * go to `entries`, with paths in `pool`, MONARCH_SCAN_HINT_PATH bytes each at most. Returns how
 * many. An order that fills one of them within 50 ms has its descriptor; later, that is closed. */
uint64_t monarch_engine_unmet(struct monarch_engine *e, unsigned source,
                              struct monarch_entry *entries, uint64_t max, char *pool);
void monarch_engine_source(struct monarch_engine *e, unsigned source, int root);
void monarch_engine_tier(struct monarch_engine *e, unsigned tier, int copies);
/* A tier whose copies are stamped with their entries' numbers (monarch_stamp). */
void monarch_engine_stamp(struct monarch_engine *e, unsigned tier, uint64_t salt);
/* The most that the sources are asked for, each second; 0: no limit. */
void monarch_engine_limit(struct monarch_engine *e, uint64_t bytes_per_s, uint64_t ops_per_s);
/* How many threads may copy what no reader waits for at a time, from the sources and from peers;
 * and whether the sources' rest after each file, so that programs have the processors. */
void monarch_engine_width(struct monarch_engine *e, int width, int peer_width, int rests);
/* Of what readers wait for, each rank of this node has as many turns as its share among those of
 * the ranks that wait: MONARCH_RANKS numbers, by the rank's in a demand. 0, as all are at first:
 * its readers take their turns as those that belong to no rank. */
void monarch_engine_shares(struct monarch_engine *e, const uint32_t *shares);
/* Orders in bulk, done in this order; those for files in use before all others. The catalog is read
 * only during the call. sums: what a CHECK or COMPARE expects; peers: MONARCH_ASKED for each order,
 * whom a FILL asks before the source, -1 for nobody; both may be NULL. Of one that has the file
 * whole, its number + MONARCH_HAS_IT. */
enum monarch_asked { MONARCH_HAS_IT = 65536 };
int monarch_engine_submit(struct monarch_engine *e, const struct monarch_catalog *c, int kind,
                          int in_use, uint64_t n, const uint64_t *ids, const uint32_t *tiers,
                          const uint64_t *copies, const uint64_t *sums, const int32_t *peers);
/* Removes copies, before all other orders. ids and sizes: of their files, given back as `id` and
 * `bytes`. */
int monarch_engine_drop(struct monarch_engine *e, uint64_t n, const uint64_t *ids,
                        const uint32_t *tiers, const uint64_t *copies, const uint64_t *sizes);
/* Grants the engine room for orders of its own, for readers and peers that wait for files of which
 * it has no order: `tiers` rooms, of which each is granted in full, or in part. The fills'
 * copies have the numbers from `first_copy` on, MONARCH_PLACED at most. Until the grant ends,
 * nobody but the engine changes the words of entries that are ABSENT or WANTED, and nobody else
 * places anything in these tiers. */
struct monarch_room {
    uint64_t bytes, inodes;
    uint32_t block_bytes, entry_bytes; /* as in monarch_py/policies/placement.py */
    uint32_t is_part, unused;
};
enum { MONARCH_PLACED = 1024 };
struct monarch_placed {
    uint64_t id, copy;
    uint32_t tier, unused;
};
/* meets : a bit for each source whose files the engine may take into the catalog, as programs hand
 * them over */
void monarch_engine_grant(struct monarch_engine *e, uint32_t tiers, const struct monarch_room *room,
                          uint64_t first_copy, uint32_t meets);
/* Ends the grant; what was ordered under it goes to (MONARCH_PLACED,) out. Returns how many. */
uint64_t monarch_engine_end_grant(struct monarch_engine *e, struct monarch_placed *out);
/* Where nodes share: whether this one keeps a file, and whom its fill asks, -1 for nobody. From the
 * first call on, files of which nothing was said are left to Python. -1 without memory. */
struct monarch_home {
    int16_t asked_first, asked_then;
    uint16_t is_kept;
};
int monarch_engine_homes(struct monarch_engine *e, uint64_t n, const uint64_t *ids,
                         const struct monarch_home *homes);
/* Waits until somebody waits for a file that has no order and that the grant leaves to Python, for
 * `limit_us` at most. Whether somebody has since the last rest. */
int monarch_engine_rest(struct monarch_engine *e, uint32_t limit_us);
/* Takes back fills of these `n` entries, as far as nobody uses the file and no thread has begun:
 * each has the result ABANDONED at once. Returns how many. */
uint64_t monarch_engine_withdraw(struct monarch_engine *e, uint64_t n, const uint64_t *ids);
uint64_t monarch_engine_results(struct monarch_engine *e, struct monarch_result *out, uint64_t max);
/* The catalog says by now what the results so far have told: readers no longer need the maps of
 * those fills that were not published, nor anybody the block sums. */
void monarch_engine_settle(struct monarch_engine *e);
/* The doorbell is rung at once for what was not published. For what was, when many results have
 * come together; a caller who has more to order, or waits for room, says so and is rung earlier:
 * before there is nothing left to do. Results lie there unrung all the same. */
void monarch_engine_await(struct monarch_engine *e, int is_awaited);
/* Orders without a result yet, but for PAGE_IN: for files in use, or for all others, of one way, or
 * of both (MONARCH_WAYS). */
uint64_t monarch_engine_pending(struct monarch_engine *e, int in_use, int way);
/* Whether any of them is a FILL from a source. */
int monarch_engine_reads_sources(struct monarch_engine *e);
/* Of all of them those that ask each of `n` peers first. */
void monarch_engine_queues(struct monarch_engine *e, uint32_t *lengths, uint32_t n);
/* Of the sources, then of each peer by its number; `n` in all. */
void monarch_engine_flows(struct monarch_engine *e, struct monarch_flow *out, uint32_t n);
uint64_t monarch_engine_bytes(struct monarch_engine *e);      /* read from sources so far */
uint64_t monarch_engine_files(struct monarch_engine *e);      /* filled from sources so far */
uint64_t monarch_engine_peer_bytes(struct monarch_engine *e); /* got from peers so far */
uint64_t monarch_engine_peer_files(struct monarch_engine *e); /* filled from peers alone so far */
/* Abandons what runs; otherwise as monarch_scan_stop. */
int monarch_engine_stop(struct monarch_engine *e, int limit_ms);
/* Readers whose file will not be filled any more, or is complete, are told to look again. Returns
 * how many others wait. */
uint64_t monarch_answer_settled(struct monarch_clients *m, const struct monarch_catalog *c);
/* XXH3-64 of the block sums of one file, for those who have only its path; 0 or -errno. */
int monarch_sum_file(const char *path, uint64_t block_bytes, uint64_t *sum, uint64_t *bytes);

/* For a process that lives for weeks: what large arrays took goes back when they are freed. */
void monarch_limit_malloc(void);
int monarch_syncfs(int fd); /* 0 or -errno */

/* --- for tests ------------------------------------------------------------------------------- */

uint64_t monarch_stamp_of(uint64_t salt, uint64_t id);
/* Whether a source is a fast one after each of n files that took so long there. */
void monarch_fast_after(uint64_t n, const uint64_t *ns, uint8_t *is_fast);
/* Sets a file's bit as a client does; whether anything was new. */
int monarch_want_file(struct monarch_clients *m, uint64_t id);
/* Rings the engine as a client that waits. */
void monarch_ring_engine(struct monarch_clients *m);
/* Readers that always wait take turns: of each (n,) the rank, where it waits, which is another
 * place each, and when for the first time; who is served, `turns` times, goes to served. */
void monarch_take_turns(const uint32_t *shares, const uint8_t *ranks, const uint8_t *places,
                        const uint64_t *since, uint64_t n, uint64_t turns, uint32_t *served);
/* The same readers, of whom none can be served and each is taken by whoever meets him: the order in
 * which they are met goes to (n,) met. Returns how many. */
uint64_t monarch_meet_all(const uint32_t *shares, const uint8_t *ranks, const uint8_t *places,
                          uint64_t n, uint32_t *met);
uint64_t monarch_xxh3_of(const char *data, uint64_t len);
uint64_t monarch_xxh3_in_pieces(const char *data, uint64_t len, uint64_t piece);

#endif
