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
/* Copies the current catalog to `to`, which must be empty and no smaller. `to` is the catalog from
 * then on, and *generation, which clients look at, gets its number. Nothing is written to either
 * catalog in between. The first call has nothing to copy. Returns 0, or -1 if the entries do not
 * fit. */
int monarch_catalog_move(struct monarch_writer *w, struct monarch_catalog *to,
                         uint64_t *generation);
/* Adds entries whose `path` (and a link's `copy_ino`) are offsets in `pool`. ids[i] gets the
 * entry's number: that of the older entry if the path is known. Returns how many entries were
 * taken: fewer than n when the segment is full and must grow. *added counts the new ones. */
uint64_t monarch_catalog_add(struct monarch_writer *w, const struct monarch_entry *entries,
                             uint64_t n, const char *pool, uint64_t *ids, uint64_t *added);
/* Replaces the attributes of a file that has no copy. A client that is reading the old attributes
 * sees by the entry's version that they changed, and asks the source. Returns -1, and changes
 * nothing, when the index of inodes must be rebuilt (move the catalog) first. */
int monarch_catalog_update(struct monarch_writer *w, uint64_t id,
                           const struct monarch_entry *fresh);

/* Asks the kernel to put a segment that will not grow soon on huge pages: a look-up among a million
 * files then has fewer TLB misses. Where the kernel cannot, nothing changes. */
void monarch_collapse(const char *path);
void monarch_set_words(struct monarch_writer *w, uint64_t n, const uint64_t *ids,
                       const uint64_t *words);
/* Makes copies known by their inode, then visible. Returns -1, and publishes nothing, when the
 * index of copies must be rebuilt (move the catalog) first. made[i]: this daemon has made copy i,
 * so the copy has a stamp if the copies of its tier are stamped. NULL: it has made none of them. */
int monarch_publish(struct monarch_writer *w, uint64_t n, const uint64_t *ids,
                    const uint64_t *words, const uint64_t *copy_inos, const uint64_t *sums,
                    const uint8_t *made);
/* When this returns, the engine publishes nothing in this tier any more. */
void monarch_lose_tier(struct monarch_writer *w, unsigned tier);

/* Finds the entries of `n` files by name. The names lie one after the other in `pool`: name i
 * begins at starts[i] and ends at starts[i + 1]. `prefix`, which is empty or ends with a slash,
 * goes before each. Links that the catalog knows are followed. ids[i] is -1 for a file that is not
 * known. */
void monarch_find_all(const struct monarch_control *k, const struct monarch_clients *m,
                      const struct monarch_catalog *c, unsigned source, const char *prefix,
                      uint64_t prefix_len, const char *pool, const uint64_t *starts, uint64_t n,
                      int64_t *ids);

/* Takes bits that clients have set: clears them, and puts the numbers of their entries into `ids`,
 * in no order. Takes at most `max`, of the first `count` entries. Returns how many. */
uint64_t monarch_take_bits(struct monarch_bits *b, uint64_t count, uint64_t *ids, uint64_t max);
/* Marks in the changed filter what processes without address space for the segments have written to
 * the session's file of changes (`fd`), from *at on; moves *at behind it. */
void monarch_take_changes(struct monarch_clients *m, const struct monarch_control *k,
                          const struct monarch_catalog *c, int fd, uint64_t *at);
/* Sets flags[i] to whether the filter of changes names entry i, for `n` entries. */
void monarch_find_changed(const struct monarch_clients *m, const struct monarch_control *k,
                          const struct monarch_catalog *c, uint64_t n, const uint64_t *ids,
                          uint8_t *flags);
/* Waits until the doorbell no longer says `seen`; at most `timeout_ms`. Returns what it says. */
uint32_t monarch_wait_doorbell(struct monarch_clients *m, uint32_t seen, int timeout_ms);
void monarch_ring_doorbell(struct monarch_clients *m);

/* --- listings: listing.c ---------------------------------------------------------------------- */

/* Call once everything is scanned. Gives each directory its listing (`sum`) if all its names are
 * known. Readers may use the listing (`copy_ino`) if the directory has not changed since
 * `young_ns`: a directory with younger times could change again without its times showing it.
 * Returns how many listings readers may use; -1 without memory. */
int64_t monarch_catalog_list(struct monarch_catalog *c, int64_t young_ns);
/* Whether a directory that has a listing still has just these names at the source. */
int monarch_listing_holds(const struct monarch_catalog *c, int root, uint64_t directory);
/* Takes the directory's listing back from readers. directory: -1 for none, and then nothing
 * happens. */
void monarch_catalog_unlist(struct monarch_catalog *c, int64_t directory);
/* The directory that a file lies in; -1 for the root itself, or if the directory is not known. */
int64_t monarch_catalog_parent(const struct monarch_catalog *c, const struct monarch_entry *e);
/* The inode number that the root's listing gives to ".."; 0: unknown. */
uint64_t monarch_read_up(int root);
/* Reads what statx and statfs say of the file system of `root`. */
void monarch_read_filesystem(int root, struct monarch_filesystem *f);
/* Compares directories of a source, from entry *at on, with what they are at the source now (`root`
 * its descriptor), until about `max` entries were looked at. A directory that differs, and what has
 * changed in it, is marked in `m`. is_listed: monarch_catalog_list has been called; before that
 * `sum` is no listing. *at becomes the entry with which the next call goes on. Returns how many
 * directories differed and were not marked before. */
uint64_t monarch_compare_directories(const struct monarch_catalog *c, struct monarch_clients *m,
                                     const struct monarch_source *source, unsigned number, int root,
                                     int is_listed, uint64_t *at, uint64_t max);

/* --- what lies beside a file: beside.c ----------------------------------------------------------
 */

/* Whether a program is reading the file at the source and will hand its descriptor over. */
int monarch_is_being_read(const struct monarch_clients *m, uint64_t id, uint64_t ino,
                          uint64_t now_ns);
/* Finds files of a directory that have no copy, that nobody wants and that no program reads at the
 * source just now, in the order of the catalog. Files for which there was no room are left out.
 * `directory`, of `length` bytes, is relative to the source; 0 bytes for the root. is_deep: also
 * files in directories below it. Looks at `looks` entries at most from entry *at on, and moves *at
 * behind them. Returns how many numbers are in `ids`, `max` at most. */
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
 * threads and at most `ops_per_s` operations a second (0: no limit); stays on its file system. */
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
/* As monarch_stat_entry, with flags of statx. */
int monarch_statx_entry(int root, unsigned source, const char *path, int flags,
                        struct monarch_entry *e, char *target, uint64_t target_bytes);
/* Lets the scan skip files that the catalog has already under the same name and inode number. It
 * does so only in directories that have not changed since `since_ns` [CLOCK_REALTIME], a time when
 * the catalog still had no files. For a file that a client is reading now, the scan takes the
 * attributes that the client's open has brought, and does not ask the server. Call before the first
 * monarch_scan_allow. */
void monarch_scan_skip_known(struct monarch_scan *s, struct monarch_writer *w,
                             const struct monarch_clients *clients, int64_t since_ns);
/* Sets how many names may be looked at until the next call; below 0: all. wanted: in wanted
 * directories, where 0 keeps what is left of the last allowance. more_others: in other directories,
 * besides what is left of the last allowance. Wanted directories are listed in any case; before the
 * first call no others are. */
void monarch_scan_allow(struct monarch_scan *s, int64_t wanted, int64_t more_others);
/* The next batch, or NULL; then *finished says whether the scan has ended. */
struct monarch_batch *monarch_scan_take(struct monarch_scan *s, int *finished);
void monarch_batch_free(struct monarch_batch *b);
/* How many directories and files could not be read; *error is the first errno. */
uint64_t monarch_scan_errors(struct monarch_scan *s, int *error);
/* Joins the threads, frees the scan and returns 0. If threads have not ended within `limit_ms`,
 * because the source does not answer, returns how many, and frees nothing. */
int monarch_scan_stop(struct monarch_scan *s, int limit_ms);

/* Reads the attributes of one file, by its path relative to `root`, into *e. `target` gets a link's
 * target. Returns 0, or -errno. */
int monarch_stat_entry(int root, unsigned source, const char *path, struct monarch_entry *e,
                       char *target, uint64_t target_bytes);

/* --- comparing: compare.c -------------------------------------------------------------------- */

/* How a file or directory of the catalog compares with the source: it is the same, another version,
 * or gone. If the source gives no answer, it counts as the same. */
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
    /* Reads a copy into the page cache. Half of the threads do so; a thread that is alone does
     * not. */
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
    /* Of a FILL or CHECK that is DONE: the engine has published the copy. If not, the caller must
     * see why. */
    uint32_t is_published;
    /* Errno of a DROP or a failed FILL that could not remove its copy, which still takes its room;
     * 0 where the copy is gone. */
    int32_t left;
};

/* Throughput of one endpoint (the sources, or a peer that had the file whole): the bytes that
 * threads have got so far and how long that took them [ns], by how many threads were there when
 * each began: 1, 2 to 3, 4 to 7, ... */
enum monarch_levels { MONARCH_LEVELS = 6 };
struct monarch_flow {
    uint64_t bytes[MONARCH_LEVELS], ns[MONARCH_LEVELS];
};

struct monarch_engine;

/* Starts an engine. At most `threads` threads, which are started as they are needed, do what
 * readers wait for; up to `width` of them at a time, at first, do all other work. `peer_threads`
 * further threads do the fills from peers. block_bytes: size of the blocks that have checksums. The
 * segments are those of the session. */
struct monarch_engine *monarch_engine_start(int threads, int width, int peer_threads,
                                            uint64_t block_bytes, struct monarch_clients *clients,
                                            struct monarch_fills *fills);
/* From now on the threads publish the copies that they make. Clients' changes are looked up by the
 * sources in `control`. Call before the first order. */
void monarch_engine_publish(struct monarch_engine *e, struct monarch_writer *w,
                            struct monarch_control *control);
/* Takes readers' descriptors from these datagram sockets (n,), which the caller closes once the
 * engine has stopped. Returns 0, or -1 if no thread could be started. Call after
 * monarch_engine_publish. */
int monarch_engine_handovers(struct monarch_engine *e, const int *sockets, int n);
/* Lists files of a source that were handed over and that the catalog does not know. Their entries
 * go to (max,) `entries`, their paths, of at most MONARCH_SCAN_HINT_PATH bytes each, to `pool`.
 * Returns how many. An order that fills one of them within 50 ms gets its descriptor; after that
 * the descriptor is closed. */
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
/* The errno of the last failed read of a source's pack; 0 for none. ESTALE: the pack has changed
 * and is not read any more. */
int monarch_engine_pack_error(struct monarch_engine *e, unsigned source);
/* Sets places[i] to the position of the file's member in the pack of its source, for `n` entries;
 * -1 where no member has its name, size and time. */
void monarch_engine_pack_order(struct monarch_engine *e, const struct monarch_catalog *c,
                               uint64_t n, const uint64_t *ids, int64_t *places);
/* Limits what the sources are asked for each second; 0: no limit. */
void monarch_engine_limit(struct monarch_engine *e, uint64_t bytes_per_s, uint64_t ops_per_s);
/* Sets how many threads may at a time copy what no reader waits for, from the sources and from
 * peers; and whether those for the sources rest after each file, so that programs have the
 * processors. */
void monarch_engine_width(struct monarch_engine *e, int width, int peer_width, int rests);
/* Sets the ranks' shares: MONARCH_RANKS numbers, indexed by the rank's number in a demand. Among
 * ranks whose readers wait, each is served as often as its share says. 0, as all are at first: the
 * rank's readers are served like those that belong to no rank. */
void monarch_engine_shares(struct monarch_engine *e, const uint32_t *shares);
/* Submits orders, which are done in this sequence, but orders for files in use come before all
 * others. The catalog is read only during the call. sums: the sum that a CHECK or COMPARE expects.
 * peers: MONARCH_ASKED for each order, the peers that a FILL asks before the source; -1 for none,
 * number + MONARCH_HAS_IT for a peer that has the file whole. sums and peers may be NULL. Returns
 * how many orders were taken. */
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
/* meets: a bit for each source whose files the engine may add to the catalog as programs hand them
 * over. */
void monarch_engine_grant(struct monarch_engine *e, uint32_t tiers, const struct monarch_room *room,
                          uint64_t first_copy, uint32_t meets);
/* Ends the grant. The fills that were ordered under it go to (MONARCH_PLACED,) out. Returns how
 * many they are. */
uint64_t monarch_engine_end_grant(struct monarch_engine *e, struct monarch_placed *out);
/* Tells the engine, where nodes share, whether this node keeps each file and which peers its fill
 * asks; -1 for none. From the first call on, files of which nothing was said are left to Python.
 * Returns 0, or -1 without memory. */
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
 * Each has the result ABANDONED at once. Returns how many. */
uint64_t monarch_engine_withdraw(struct monarch_engine *e, uint64_t n, const uint64_t *ids);
uint64_t monarch_engine_results(struct monarch_engine *e, struct monarch_result *out, uint64_t max);
/* Call once the catalog has what the results so far have told. Readers then no longer need the maps
 * of fills that the engine did not publish, and nobody needs the block sums: both are freed. */
void monarch_engine_settle(struct monarch_engine *e);
/* Says whether the caller waits for results, because it has more to order or waits for room. The
 * doorbell is rung at once for a result that was not published. For published results it is rung
 * when many have come together, and earlier if the caller waits, so that the threads do not run out
 * of orders. Results can be taken without a ring. */
void monarch_engine_await(struct monarch_engine *e, int is_awaited);
/* Counts orders, except PAGE_INs, whose results were not taken yet. in_use: counts orders for files
 * in use, or else all others. way: counts one way, or both (MONARCH_WAYS). */
uint64_t monarch_engine_pending(struct monarch_engine *e, int in_use, int way);
/* Whether any order without a result is a FILL from a source. */
int monarch_engine_reads_sources(struct monarch_engine *e);
/* Counts the orders without a result that ask each of `n` peers first. */
void monarch_engine_queues(struct monarch_engine *e, uint32_t *lengths, uint32_t n);
/* The flows of the sources, then of each peer by its number; `n` in all. */
void monarch_engine_flows(struct monarch_engine *e, struct monarch_flow *out, uint32_t n);
/* Bytes read from sources and files filled from them; bytes got from peers and files filled from
 * peers alone. */
enum monarch_count {
    MONARCH_BYTES,
    MONARCH_FILES,
    MONARCH_PEER_BYTES,
    MONARCH_PEER_FILES,
    MONARCH_COUNTS /* how many there are */
};
/* Returns the count so far. */
uint64_t monarch_engine_count(struct monarch_engine *e, enum monarch_count what);
/* Abandons running orders; otherwise as monarch_scan_stop. */
int monarch_engine_stop(struct monarch_engine *e, int limit_ms);
/* Tells readers whose file is complete, or will not be filled any more, to look again. Returns how
 * many readers still have to wait. */
uint64_t monarch_answer_settled(struct monarch_clients *m, const struct monarch_catalog *c);
/* XXH3-64 of the block sums of one file, for callers that have only its path; 0 or -errno. */
int monarch_sum_file(const char *path, uint64_t block_bytes, uint64_t *sum, uint64_t *bytes);

/* XXH3-64 of the bytes. */
uint64_t monarch_xxh3_of(const char *data, uint64_t len);
/* Sets up malloc for a process that lives for weeks: the memory of large arrays goes back to the
 * system when they are freed. */
void monarch_limit_malloc(void);
int monarch_syncfs(int fd); /* 0 or -errno */
