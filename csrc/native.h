/* The C parts that the daemon drives from Python: writing the catalog, scanning sources, copying
 * files. Python decides what is copied, where to and in what order; the engine decides within its
 * grants. */
#pragma once

#include "shared/catalog.h"
#include "shared/path.h"

/* --- writing the catalog: catalog_write.c, publish.c ------------------------------------------ */

uint64_t monarch_catalog_bytes(uint64_t capacity, uint64_t pool_bytes);
void monarch_catalog_init(void *map, uint64_t generation, uint64_t capacity, uint64_t pool_bytes);

/* The writer through which all threads of the daemon write a session's catalog, one at a time;
 * readers take no lock. Returns NULL without memory. Free the writer when no thread writes any
 * more. */
struct monarch_writer *monarch_writer_new(void);
void monarch_writer_free(struct monarch_writer *w);
/* Copies the current catalog to `to`, which must be empty and no smaller, and makes `to` the
 * current catalog: *generation, by which clients find the catalog, gets its number. No thread
 * writes to either catalog meanwhile. The first call has nothing to copy. Returns 0, or -1 if the
 * entries do not fit. */
int monarch_catalog_move(struct monarch_writer *w, struct monarch_catalog *to,
                         uint64_t *generation);
/* Adds entries whose `path` (and a link's `copy_ino`) are offsets in `pool`. ids[i] gets the
 * entry's number: that of the older entry if the path is known. Returns how many entries were
 * taken: fewer than n when the segment is full and must grow. Each new one adds 1 to *added. */
uint64_t monarch_catalog_add(struct monarch_writer *w, const struct monarch_entry *entries,
                             uint64_t n, const char *pool, uint64_t *ids, uint64_t *added);
/* Replaces the attributes of a file that has no copy. A client that is reading the old attributes
 * sees by the entry's version that they changed, and asks the source. Returns 0; or -1, and changes
 * nothing, when the index of inodes must be rebuilt first (monarch_catalog_move). */
int monarch_catalog_update(struct monarch_writer *w, uint64_t id,
                           const struct monarch_entry *fresh);

/* Asks the kernel to put a segment that will not grow soon on huge pages: a look-up among a million
 * files then has fewer TLB misses. Where the kernel cannot, nothing changes. */
void monarch_collapse(const char *path);
void monarch_set_words(struct monarch_writer *w, uint64_t n, const uint64_t *ids,
                       const uint64_t *words);
/* Publishes copies: makes them known by their inodes, then visible. Returns 0; or -1, and publishes
 * nothing, when the index of copies must be rebuilt first (monarch_catalog_move). made[i]: whether
 * this daemon has made copy i, so that the copy has a stamp if its tier's copies are stamped. made
 * may be NULL: this daemon has made none of the copies. */
int monarch_publish(struct monarch_writer *w, uint64_t n, const uint64_t *ids,
                    const uint64_t *words, const uint64_t *copy_inos, const uint64_t *sums,
                    const uint8_t *made);
/* Ends publishing in a tier: once this returns, the engine publishes no copy there any more. */
void monarch_lose_tier(struct monarch_writer *w, unsigned tier);

/* Finds the entries of `n` files by name. The names lie one after the other in `pool`: name i
 * begins at starts[i] and ends at starts[i + 1]. `prefix`, which is empty or ends with a slash,
 * goes before each. Links that the catalog knows are followed. ids[i] gets the entry's number, or
 * -1 if the catalog does not know the file. */
void monarch_find_all(const struct monarch_control *k, const struct monarch_clients *m,
                      const struct monarch_catalog *c, unsigned source, const char *prefix,
                      uint64_t prefix_len, const char *pool, const uint64_t *starts, uint64_t n,
                      int64_t *ids);

/* Takes bits that clients have set: clears them, and puts the numbers of their entries into `ids`,
 * in no particular order. Takes at most `max` bits, of the first `count` entries. Returns how many
 * it took. */
uint64_t monarch_take_bits(struct monarch_bits *b, uint64_t count, uint64_t *ids, uint64_t max);
/* Takes in the changes that processes without address space for the segments have written to the
 * session's file of changes, `fd`: marks them in the changed filter. Reads the file from *at on,
 * and moves *at to its end. */
void monarch_take_changes(struct monarch_clients *m, const struct monarch_control *k,
                          const struct monarch_catalog *c, int fd, uint64_t *at);
/* Sets flags[i] to whether the changed filter names entry ids[i], for `n` entries. */
void monarch_find_changed(const struct monarch_clients *m, const struct monarch_control *k,
                          const struct monarch_catalog *c, uint64_t n, const uint64_t *ids,
                          uint8_t *flags);
/* Waits, for `timeout_ms` at most, until the doorbell's value is no longer `seen`. Returns the
 * value. */
uint32_t monarch_wait_doorbell(struct monarch_clients *m, uint32_t seen, int timeout_ms);
void monarch_ring_doorbell(struct monarch_clients *m);

/* --- listings: listing.c ---------------------------------------------------------------------- */

/* Gives each directory its listing, in `sum`, if all its names are known. Call it once everything
 * is scanned. Readers get the listing, in `copy_ino`, if the directory has not changed since
 * `young_ns`: a directory with younger times could change again without its times showing it. If
 * sources were added since, call it again with the number of the first of them as `from`: the
 * listings of the sources before it stay. Returns how many listings readers got, or -1 without
 * memory. */
int64_t monarch_catalog_list(struct monarch_catalog *c, int64_t young_ns, unsigned from);
/* Returns whether a directory still has exactly the names of its listing at the source. `root` is
 * the source's descriptor. */
int monarch_listing_holds(const struct monarch_catalog *c, int root, uint64_t directory);
/* Takes a directory's listing back from readers. Does nothing if `directory` is -1. */
void monarch_catalog_unlist(struct monarch_catalog *c, int64_t directory);
/* Returns the directory that a file lies in; -1 for the root itself, or if the directory is not
 * known. */
int64_t monarch_catalog_parent(const struct monarch_catalog *c, const struct monarch_entry *e);
/* Reads what statx and statfs say of the file system of `root`. */
void monarch_read_filesystem(int root, struct monarch_filesystem *f);
/* Compares directories of a source, from entry *at on, with what they are at the source now, until
 * about `max` entries were looked at. `root` is the source's descriptor. Each directory that
 * differs is marked in `m`, and so is what has changed in it. is_listed: monarch_catalog_list has
 * been called; before that, `sum` is no listing. *at becomes the entry with which the next call
 * goes on. Returns how many directories differed and were not marked before. */
uint64_t monarch_compare_directories(const struct monarch_catalog *c, struct monarch_clients *m,
                                     const struct monarch_source *source, unsigned number, int root,
                                     int is_listed, uint64_t *at, uint64_t max);

/* --- what lies beside a file: beside.c ----------------------------------------------------------
 */

/* Returns whether a program is reading the file at the source and will hand its descriptor over. */
int monarch_is_being_read(const struct monarch_clients *m, uint64_t id, uint64_t ino,
                          uint64_t now_ns);
/* Finds files of a directory, in the catalog's order, that have no copy, that nobody wants and that
 * no program reads at the source just now. Files for which there was no room are left out.
 * `directory`, of `length` bytes, is relative to the source; the root has 0 bytes. is_deep: also
 * finds files in the directories below. Looks at `looks` entries at most, from entry *at on, and
 * moves *at behind them. Writes the files' numbers to `ids`, and returns how many, `max` at
 * most. */
uint64_t monarch_find_absent(const struct monarch_catalog *c, const struct monarch_clients *m,
                             unsigned source, const char *directory, uint64_t length, int is_deep,
                             uint64_t *at, uint64_t looks, uint64_t *ids, uint64_t max);

/* --- scanning: csrc/scan --------------------------------------------------------------------- */

struct monarch_batch {
    uint64_t count, capacity, pool_used, pool_bytes;
    struct monarch_entry *entries;
    char *pool;
    uint64_t begun_ns; /* when its first entry was found [CLOCK_MONOTONIC] */
    struct monarch_batch *next;
};
struct monarch_scan;

/* Walks the tree below the directory `root` (a descriptor, kept by the caller) with `threads`
 * threads and at most `ops_per_s` operations a second (0: no limit). Stays on the file system of
 * `root`. Rings `doorbell` when Python has batches to take. */
struct monarch_scan *monarch_scan_start(int root, unsigned source, int threads, uint64_t ops_per_s,
                                        uint32_t *doorbell);
/* Scans only these `n` directories, named relative to the root; is_deep: with all that lies below
 * them. Such a scan does not say how many names the directories hold. */
struct monarch_scan *monarch_scan_parts(int root, unsigned source, const char *const *directories,
                                        uint64_t n, int is_deep, int threads, uint64_t ops_per_s,
                                        uint32_t *doorbell);
/* Puts a directory, and the directories above it, before all others that are still to be listed;
 * is_deep: also the directories below it. */
void monarch_scan_want(struct monarch_scan *s, const char *directory, int is_deep);
/* Does what monarch_stat_entry does, with flags for statx. */
int monarch_statx_entry(int root, unsigned source, const char *path, int flags,
                        struct monarch_entry *e, char *target, uint64_t target_bytes);
/* Lets the scan skip files that the catalog has already under the same name and inode number. It
 * does so only in directories that have not changed since `since_ns` [CLOCK_REALTIME], a time when
 * the catalog still had no files. For a file that a client is reading now, the scan takes the
 * attributes that the client's open has brought, and does not ask the server. Call before the first
 * monarch_scan_allow. */
void monarch_scan_skip_known(struct monarch_scan *s, struct monarch_writer *w,
                             const struct monarch_clients *clients, int64_t since_ns);
/* Sets how many names may be looked at until the next call; a number below 0 allows all. wanted:
 * for wanted directories; 0 keeps what is left of the last allowance. more_others: for other
 * directories, on top of what is left of the last allowance. Wanted directories are listed in any
 * case. Other directories are not listed before the first call. */
void monarch_scan_allow(struct monarch_scan *s, int64_t wanted, int64_t more_others);
/* Takes the next batch, and returns it. Without a batch, returns NULL, and *finished says whether
 * the scan has ended. */
struct monarch_batch *monarch_scan_take(struct monarch_scan *s, int *finished);
void monarch_batch_free(struct monarch_batch *b);
/* Returns how many directories and files could not be read; *error is the first errno. */
uint64_t monarch_scan_errors(struct monarch_scan *s, int *error);
/* Returns the inode number that the root's listing gives to ".."; 0 if the scan has not listed the
 * root. */
uint64_t monarch_scan_up(const struct monarch_scan *s);
/* Joins the threads, frees the scan and returns 0. If threads have not ended within `limit_ms`,
 * because the source does not answer, returns how many they are, and frees nothing. */
int monarch_scan_stop(struct monarch_scan *s, int limit_ms);

/* Reads the attributes of one file, by its path relative to `root`, into *e. `target` gets a link's
 * target. Returns 0, or -errno. */
int monarch_stat_entry(int root, unsigned source, const char *path, struct monarch_entry *e,
                       char *target, uint64_t target_bytes);

/* --- comparing: compare.c -------------------------------------------------------------------- */

/* How a file or directory of the catalog compares with the source: it is the same, another version,
 * or gone. A file about which the source gives no answer counts as the same. */
enum monarch_compared { MONARCH_SAME, MONARCH_REPLACED, MONARCH_GONE };
/* Compares `n` entries, files and directories, in this order, for `limit_ns` at most; returns how
 * many it got to, at least one. found[i] gets an enum monarch_compared, fresh[i] the attributes of
 * another version. roots[s]: descriptor of source s. threads, ops_per_s: as for a scan. */
uint64_t monarch_compare(const struct monarch_catalog *c, const int32_t *roots, uint64_t n,
                         const uint64_t *ids, int threads, uint64_t ops_per_s, uint64_t limit_ns,
                         uint8_t *found, struct monarch_entry *fresh);

/* --- copying: engine.c ----------------------------------------------------------------------- */

enum monarch_job_kind {
    MONARCH_FILL,
    MONARCH_CHECK,
    MONARCH_COMPARE,
    MONARCH_DROP,
    /* Reads a copy into the page cache. Only every other thread does such orders; a thread that is
     * alone does none. */
    MONARCH_PAGE_IN,
};
enum monarch_job_status {
    MONARCH_DONE,
    MONARCH_SOURCE_CHANGED, /* the file is not the one that the catalog describes */
    MONARCH_SOURCE_ERROR,
    MONARCH_TIER_FULL,
    MONARCH_TIER_ERROR,
    MONARCH_DAMAGED, /* a copy's content is not what its checksum says */
    MONARCH_ABANDONED,
};

struct monarch_result {
    uint64_t id, copy, copy_ino, bytes, copy_bytes, sum;
    uint64_t *block_sums; /* valid until monarch_engine_settle */
    uint64_t blocks;
    int64_t mtime_ns, ctime_ns; /* of the source */
    int64_t started_ns;         /* when the work on it began, on the wall clock */
    uint32_t kind, status, tier, in_use;
    int32_t error;
    int32_t giver; /* of a FILL: the peer that gave all of it, and so has it whole; -1 for none */
    int32_t home;  /* of a FILL: the node that keeps the file because the peer that was asked has no
                      room for it; -1 where no peer has said so */
    /* Of a FILL or CHECK that is DONE: whether the engine has published the copy. If it has not,
     * the caller must see why. */
    uint32_t is_published;
    /* Errno of a DROP or a failed FILL that could not remove its copy, which still takes its room;
     * 0 where the copy is gone. */
    int32_t left;
};

/* Throughput of one endpoint (the sources, or a peer that had the file whole): the bytes that
 * threads have got so far, and how long that took them [ns]. The index stands for the number of
 * threads that were at the endpoint when a thread began: 1, 2 to 3, 4 to 7, ... */
enum monarch_levels { MONARCH_LEVELS = 6 };
struct monarch_flow {
    uint64_t bytes[MONARCH_LEVELS], ns[MONARCH_LEVELS];
};

struct monarch_engine;

/* Starts an engine. It starts up to `threads` threads for the sources, as they are needed. All of
 * them may do work for which a reader waits; at most `width` of them at a time do other work, until
 * monarch_engine_width sets another number. `peer_threads` further threads do the fills from peers.
 * block_bytes: size of the blocks that have checksums. The segments are those of the session. */
struct monarch_engine *monarch_engine_start(int threads, int width, int peer_threads,
                                            uint64_t block_bytes, struct monarch_clients *clients,
                                            struct monarch_fills *fills);
/* Makes the threads publish the copies that they make, through `w`. Before a thread publishes a
 * copy, it checks that no client has changed the file; `control` tells the device of the file's
 * source. Call before the first order. */
void monarch_engine_publish(struct monarch_engine *e, struct monarch_writer *w,
                            struct monarch_control *control);
/* Takes readers' descriptors from these datagram sockets (n,), which the caller closes once the
 * engine has stopped. Returns 0, or -1 if no thread could be started. Call after
 * monarch_engine_publish. */
int monarch_engine_handovers(struct monarch_engine *e, const int *sockets, int n);
/* Lists files of a source that were handed over and that the catalog does not know. Their entries
 * go to (max,) `entries`, their paths, of at most MONARCH_SCAN_HINT_PATH bytes each, to `pool`.
 * Returns how many files it has listed. An order that fills one of them within 50 ms gets its
 * descriptor; after that the descriptor is closed. */
uint64_t monarch_engine_unmet(struct monarch_engine *e, unsigned source,
                              struct monarch_entry *entries, uint64_t max, char *pool);
void monarch_engine_source(struct monarch_engine *e, unsigned source, int root);
void monarch_engine_tier(struct monarch_engine *e, unsigned tier, int copies);
/* Makes the engine stamp a tier's copies with their entries' numbers (monarch_stamp). */
void monarch_engine_stamp(struct monarch_engine *e, unsigned tier, uint64_t salt);
/* Gives the engine a pack: an archive that has files of the source as members, in which the engine
 * then reads files of one unit that are members of the same name, size and time of modification.
 * `fd` is duplicated. size, mtime_ns: those of the archive for which the members were listed. The
 * members are in the order in which they lie in it. Call before the first order. Returns 0 or
 * -errno; ESTALE: the archive has changed since. */
struct monarch_member {
    uint64_t hash; /* XXH3-64 of the path in the source, relative to its root */
    uint64_t offset, size;
    int64_t mtime_ns;
};
int monarch_engine_pack(struct monarch_engine *e, unsigned source, int fd, uint64_t size,
                        int64_t mtime_ns, uint64_t n, const struct monarch_member *members);
/* The errno of the last read of a source's pack, or 0. ESTALE: the pack has changed
 * and is not read any more. */
int monarch_engine_pack_error(struct monarch_engine *e, unsigned source);
/* Sets places[i] to the position of the file's member in the pack of its source, for `n` entries;
 * -1 where no member has its name, size and time. */
void monarch_engine_pack_order(struct monarch_engine *e, const struct monarch_catalog *c,
                               uint64_t n, const uint64_t *ids, int64_t *places);
/* Limits what the sources are asked for each second; 0: no limit. */
void monarch_engine_limit(struct monarch_engine *e, uint64_t bytes_per_s, uint64_t ops_per_s);
/* Sets how many threads may at a time copy what no reader waits for, from the sources and from
 * peers; and whether the threads for the sources rest after each file, so that programs have the
 * processors. */
void monarch_engine_width(struct monarch_engine *e, int width, int peer_width, int rests);
/* Sets the ranks' shares: MONARCH_RANKS numbers, indexed by the rank's number in a demand. Among
 * ranks whose readers wait, each is served in proportion to its share. While a rank's share is 0,
 * as it is at first, its readers are served like those that belong to no rank. */
void monarch_engine_shares(struct monarch_engine *e, const uint32_t *shares);
/* Submits orders. They are done in this sequence, except that orders for files in use come before
 * all others. The catalog is read only during the call. sums: the sum that a CHECK or COMPARE
 * expects. peers: MONARCH_ASKED for each order, the peers that a FILL asks before the source; -1
 * for none, number + MONARCH_HAS_IT for a peer that has the file whole. sums and peers may be NULL.
 * Returns how many orders were taken. */
enum monarch_asked { MONARCH_HAS_IT = 65536 };
int monarch_engine_submit(struct monarch_engine *e, const struct monarch_catalog *c, int kind,
                          int in_use, uint64_t n, const uint64_t *ids, const uint32_t *tiers,
                          const uint64_t *copies, const uint64_t *sums, const int32_t *peers);
/* Orders the removal of copies, before all other orders. The ids and sizes, which are those of the
 * files, come back as `id` and `bytes` of the results. Returns how many orders were taken. */
int monarch_engine_drop(struct monarch_engine *e, uint64_t n, const uint64_t *ids,
                        const uint32_t *tiers, const uint64_t *copies, const uint64_t *sizes);
/* monarch_engine_grant gives the engine room for orders of its own, for readers and peers that wait
 * for files without an order: `tiers` rooms, each granted in full or in part. The copies of these
 * fills are numbered from `first_copy` on; there are MONARCH_PLACED at most. Until the grant ends,
 * only the engine changes the words of entries that are ABSENT or WANTED, and only the engine
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
/* Gives the grant that struct monarch_room describes. meets: a bit for each source whose files the
 * engine may add to the catalog as programs hand them over. */
void monarch_engine_grant(struct monarch_engine *e, uint32_t tiers, const struct monarch_room *room,
                          uint64_t first_copy, uint32_t meets);
/* Ends the grant. Writes the fills that were ordered under it to `out` (MONARCH_PLACED,), and
 * returns how many they are. */
uint64_t monarch_engine_end_grant(struct monarch_engine *e, struct monarch_placed *out);
/* Where nodes share files, tells the engine whether this node keeps each file, and which peers the
 * file's fill asks; -1 for none. From the first call on, files of which nothing was said are left
 * to Python. Returns 0, or -1 without memory. */
struct monarch_home {
    int16_t asked_first, asked_then;
    uint16_t is_kept;
};
int monarch_engine_homes(struct monarch_engine *e, uint64_t n, const uint64_t *ids,
                         const struct monarch_home *homes);
/* Waits, for `limit_us` at most, until somebody waits for a file that has no order and that the
 * grant leaves to Python, or a fill ends unpublished. Returns whether that has happened since the
 * last rest. */
int monarch_engine_rest(struct monarch_engine *e, uint32_t limit_us);
/* Takes back the FILLs of these `n` entries that no thread has begun and whose files nobody uses.
 * Each has the result ABANDONED at once. Returns how many it took back. */
uint64_t monarch_engine_withdraw(struct monarch_engine *e, uint64_t n, const uint64_t *ids);
uint64_t monarch_engine_results(struct monarch_engine *e, struct monarch_result *out, uint64_t max);
/* Frees the maps and block sums of the results that were taken so far. Call once the catalog has
 * what these results have told: readers then no longer need the maps of fills that the engine did
 * not publish, and nobody needs the block sums. */
void monarch_engine_settle(struct monarch_engine *e);
/* Tells the engine whether the caller waits for results, because it has more to order or waits for
 * room. The doorbell is rung at once for a result that was not published. For published results it
 * is rung when many have come together, and earlier if the caller waits, so that the threads do not
 * run out of orders. Results can be taken without a ring. */
void monarch_engine_await(struct monarch_engine *e, int is_awaited);
/* Returns how many orders, except PAGE_INs, have results that were not taken yet. in_use: 1 counts
 * orders for files in use, 0 all others. way: counts one way, or both (MONARCH_WAYS). */
uint64_t monarch_engine_pending(struct monarch_engine *e, int in_use, int way);
/* Returns whether any order without a result is a FILL from a source. */
int monarch_engine_reads_sources(struct monarch_engine *e);
/* Counts, for each of `n` peers, the orders without a result that ask this peer first. */
void monarch_engine_queues(struct monarch_engine *e, uint32_t *lengths, uint32_t n);
/* Reads the flows of the sources, then those of each peer by its number; `n` in all. */
void monarch_engine_flows(struct monarch_engine *e, struct monarch_flow *out, uint32_t n);
/* The engine's counters: bytes read from sources and files filled from them; bytes got from peers
 * and files filled from peers alone. */
enum monarch_count {
    MONARCH_BYTES,
    MONARCH_FILES,
    MONARCH_PEER_BYTES,
    MONARCH_PEER_FILES,
    MONARCH_COUNTS /* how many there are */
};
/* Returns the count so far. */
uint64_t monarch_engine_count(struct monarch_engine *e, enum monarch_count what);
/* Stops the engine as monarch_scan_stop stops a scan, and abandons running orders. */
int monarch_engine_stop(struct monarch_engine *e, int limit_ms);
/* Tells readers whose file is complete, or will not be filled any more, to look again. Returns how
 * many readers still have to wait. */
uint64_t monarch_answer_settled(struct monarch_clients *m, const struct monarch_catalog *c);
/* Computes the XXH3-64 of the block sums of one file, for callers that have only its path. Returns
 * 0 or -errno. */
int monarch_sum_file(const char *path, uint64_t block_bytes, uint64_t *sum, uint64_t *bytes);

/* Returns the XXH3-64 of the bytes. */
uint64_t monarch_xxh3_of(const char *data, uint64_t len);
/* Sets up malloc for a process that lives for weeks: the memory of large arrays goes back to the
 * system when they are freed. */
void monarch_limit_malloc(void);
int monarch_syncfs(int fd); /* 0 or -errno */
