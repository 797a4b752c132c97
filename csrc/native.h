/* The C functions that the daemon calls from Python: they write the catalog, scan sources and copy
 * files. Python decides which files are copied, to which tier and when. The engine, which copies
 * the files, decides by itself only within the room that Python has granted to it (struct
 * monarch_room). */
#pragma once

#include "shared/catalog.h"
#include "shared/path.h"

/* --- writing the catalog: publish/writer.c, publish/publish.c -----------------------------------
 */

uint64_t monarch_catalog_bytes(uint64_t capacity, uint64_t pool_bytes);
void monarch_catalog_init(void *map, uint64_t generation, uint64_t capacity, uint64_t pool_bytes);

/* Makes the writer of a session's catalog. All threads of the daemon write to the catalog through
 * this writer, one thread at a time; readers take no lock. Returns NULL if memory is exhausted.
 * Free the writer only when no thread uses it any more. */
struct monarch_writer *monarch_writer_new(void);
void monarch_writer_free(struct monarch_writer *w);
/* Copies the current catalog to `to`, which must be empty and at least as large as the current
 * catalog. Then makes `to` the current catalog: stores the number of `to` in *generation, from
 * which clients learn which catalog is current. In the first call, there is no current catalog, so
 * nothing is copied. During the call, no other thread may write to either catalog. Returns 0, or -1
 * if the entries do not fit. */
int monarch_catalog_move(struct monarch_writer *w, struct monarch_catalog *to,
                         uint64_t *generation);
/* Adds `n` entries to the catalog. The `path` of each entry is an offset in `pool`. The `copy_ino`
 * of a link is the offset in `pool` where the link's target begins. Sets ids[i] to the number of
 * the catalog's entry with the path of entries[i]. This entry may have existed before the call.
 * Increments *added for each new entry. Returns how many of the entries were processed. If the
 * result is less than `n`, the segment is full and must grow. */
uint64_t monarch_catalog_add(struct monarch_writer *w, const struct monarch_entry *entries,
                             uint64_t n, const char *pool, uint64_t *ids, uint64_t *added);
/* Replaces the attributes of a file that has no copy. A client that reads the attributes during the
 * call sees that the entry's version has changed, and asks the source instead. Returns 0. If the
 * index by inode must be rebuilt first (monarch_catalog_move), returns -1 and changes nothing. */
int monarch_catalog_update(struct monarch_writer *w, uint64_t id,
                           const struct monarch_entry *fresh);

/* Asks the kernel to use huge pages for the segment at `path`, so that a look-up among a million
 * files has fewer TLB misses. Call this when the segment will not be replaced by a larger one soon.
 * If the kernel cannot use huge pages, nothing changes. */
void monarch_collapse(const char *path);
void monarch_set_words(struct monarch_writer *w, uint64_t n, const uint64_t *ids,
                       const uint64_t *words);
/* Publishes copies: enters each copy into the index by copy, then sets its entry to PRESENT.
 * Returns 0. If the index by copy must be rebuilt first (monarch_catalog_move), returns -1 and
 * publishes nothing. made[i]: 1 if this daemon made copy i, 0 if an earlier daemon made it; made =
 * NULL: 0 for all copies. In some tiers, the copies that this daemon makes have stamps
 * (monarch_engine_stamp). A copy with a stamp needs no place in the index. */
int monarch_publish(struct monarch_writer *w, uint64_t n, const uint64_t *ids,
                    const uint64_t *words, const uint64_t *copy_inos, const uint64_t *sums,
                    const uint8_t *made);
/* Marks a tier as lost: after this call, the engine publishes no copy in this tier. */
void monarch_lose_tier(struct monarch_writer *w, unsigned tier);

/* --- clients: csrc/clients -------------------------------------------------------------------- */

/* Collects the entries for which clients have set bits in `b`: clears these bits, and writes the
 * entries' numbers to `ids`, in no particular order. Collects at most `max` entries, and only from
 * the first `count` entries of the catalog. Returns how many entries it has collected. */
uint64_t monarch_take_bits(struct monarch_bits *b, uint64_t count, uint64_t *ids, uint64_t max);
/* Reads records from the session's file of changes, `fd`, and marks the changed files in the
 * changed filter. The records come from processes that lack the address space to map the segments,
 * so that they cannot mark files in the filter themselves. Reads from offset *at to the end of the
 * file, and sets *at to the end. */
void monarch_take_changes(struct monarch_clients *m, const struct monarch_control *k,
                          const struct monarch_catalog *c, int fd, uint64_t *at);
/* For each of the `n` entries, sets flags[i] to 1 if the file of entry ids[i] is marked in the
 * changed filter, otherwise to 0. */
void monarch_find_changed(const struct monarch_clients *m, const struct monarch_control *k,
                          const struct monarch_catalog *c, uint64_t n, const uint64_t *ids,
                          uint8_t *flags);
/* Waits for at most `timeout_ms` until the doorbell's value differs from `seen`. Returns the
 * doorbell's value. */
uint32_t monarch_wait_doorbell(struct monarch_clients *m, uint32_t seen, int timeout_ms);
void monarch_ring_doorbell(struct monarch_clients *m);
/* Wakes each reader that need no longer wait, because the copy of its file is complete or is no
 * longer requested. The reader then checks the file's state again. Returns how many readers
 * continue to wait. */
uint64_t monarch_answer_settled(struct monarch_clients *m, const struct monarch_catalog *c);

/* --- listings: listing.c ---------------------------------------------------------------------- */

/* Makes the directories' listings. Call this when all sources have been scanned. If the catalog
 * knows all names of a directory, stores the directory's listing in `sum` of the directory's entry.
 * Also stores the listing in `copy_ino`, where readers find it, unless the directory has changed
 * after `young_ns`. If a directory changes twice within a short time, both changes may have the
 * same timestamp, so that readers would not notice the second change. If sources are added later,
 * call this again, with the number of the first new source as `from`; the listings of all sources
 * before it are kept. Returns how many listings readers can find, or -1 if memory is exhausted. */
int64_t monarch_catalog_list(struct monarch_catalog *c, int64_t young_ns, unsigned from);
/* Makes a directory's listing unavailable to readers. Does nothing if `directory` is -1. */
void monarch_catalog_unlist(struct monarch_catalog *c, int64_t directory);
/* Returns the number of the directory in which a file lies. Returns -1 for the root itself, or if
 * the directory is not in the catalog. */
int64_t monarch_catalog_parent(const struct monarch_catalog *c, const struct monarch_entry *e);

/* --- finding entries: find.c ------------------------------------------------------------------ */

/* Finds the entries of `n` files by name. The names are concatenated in `pool`: name i begins at
 * starts[i] and ends at starts[i + 1]. The path of a file is `prefix`, which is empty or ends with
 * a slash, followed by the file's name. Links are followed if they are in the catalog. Sets ids[i]
 * to the number of the file's entry, or to -1 if the file is not in the catalog. */
void monarch_find_all(const struct monarch_control *k, const struct monarch_clients *m,
                      const struct monarch_catalog *c, unsigned source, const char *prefix,
                      uint64_t prefix_len, const char *pool, const uint64_t *starts, uint64_t n,
                      int64_t *ids);
/* Finds the files without a copy in a directory, in the order of the catalog's entries. Skips three
 * kinds of files: files whose copies are already requested, files that a program is reading at the
 * source, and files for which there was no room. `directory` (`length` bytes) is relative to the
 * source; its length is 0 for the root. is_deep: also finds files in subdirectories. Examines at
 * most `looks` entries, from entry *at on, and sets *at to the entry at which the next call should
 * begin. Writes the entry numbers of at most `max` files to `ids`, and returns how many files it
 * found. */
uint64_t monarch_find_absent(const struct monarch_catalog *c, const struct monarch_clients *m,
                             unsigned source, const char *directory, uint64_t length, int is_deep,
                             uint64_t *at, uint64_t looks, uint64_t *ids, uint64_t max);

/* --- scanning: csrc/scan --------------------------------------------------------------------- */

struct monarch_batch {
    uint64_t count, capacity, pool_used, pool_bytes;
    struct monarch_entry *entries;
    char *pool;
    uint64_t begun_ns; /* when the first entry was found [CLOCK_MONOTONIC] */
    /* The value that `renames` of struct monarch_clients had before the batch's first file was
     * examined. If programs have renamed directories since then, paths in this batch may be
     * wrong. */
    uint64_t renames;
    struct monarch_batch *next;
};
struct monarch_scan;

/* Walks the tree below the directory `root`, a descriptor that the caller keeps open. Uses
 * `threads` threads, and makes at most `ops_per_s` operations a second (0: no limit). Stays on the
 * file system of `root`. Rings `doorbell` when batches are ready for Python (monarch_scan_take). */
struct monarch_scan *monarch_scan_start(int root, unsigned source, int threads, uint64_t ops_per_s,
                                        uint32_t *doorbell);
/* Scans only these `n` directories, whose paths are relative to `root`. is_deep: also scans all
 * directories below them. Unlike a scan of the whole source, this scan does not record how many
 * names each directory has. */
struct monarch_scan *monarch_scan_parts(int root, unsigned source, const char *const *directories,
                                        uint64_t n, int is_deep, int threads, uint64_t ops_per_s,
                                        uint32_t *doorbell);
/* Makes the scan list this directory, and the directories above it, before all other directories.
 * is_deep: also the directories below it. */
void monarch_scan_want(struct monarch_scan *s, const char *directory, int is_deep);
/* Makes the scan send fewer requests to the source's server. First, the scan no longer reads the
 * attributes of a file if the catalog already has a file with this path and this inode number. The
 * file's directory must not have changed since `since_ns` [CLOCK_REALTIME], a time at which the
 * catalog was empty. Second, if a client is reading a file now, the scan takes the attributes that
 * the kernel cached when the client opened the file. Call this before the first
 * monarch_scan_allow. */
void monarch_scan_skip_known(struct monarch_scan *s, struct monarch_writer *w,
                             const struct monarch_clients *clients, int64_t since_ns);
/* Limits how many names the scan may examine. There are two allowances: one for the names in wanted
 * directories (monarch_scan_want), and one for the names in all other directories. Each examined
 * name uses up 1 of its allowance. A wanted directory can always be listed. Any other directory is
 * listed only while the second allowance is not used up.
 *
 * wanted: the new first allowance; negative: no limit; 0: no change if the first allowance has a
 * limit. more_others: a number to add to the second allowance; negative: no limit. If the second
 * allowance had no limit, the new second allowance is `more_others`. */
void monarch_scan_allow(struct monarch_scan *s, int64_t wanted, int64_t more_others);
/* Returns the next batch. Returns NULL if no batch is ready; *finished is then 1 if the scan has
 * ended, otherwise 0. */
struct monarch_batch *monarch_scan_take(struct monarch_scan *s, int *finished);
void monarch_batch_free(struct monarch_batch *b);
/* Returns how many directories and files could not be read, and sets *error to the errno of the
 * first failure. */
uint64_t monarch_scan_errors(struct monarch_scan *s, int *error);
/* Returns the inode number that the root's listing shows for "..", or 0 if the scan has not listed
 * the root. */
uint64_t monarch_scan_up(const struct monarch_scan *s);
/* Joins the threads, frees the scan and returns 0. If some threads have not ended within
 * `limit_ms`, because the source does not answer, returns their number and frees nothing. */
int monarch_scan_stop(struct monarch_scan *s, int limit_ms);

/* --- looking at a source: look.c -------------------------------------------------------------- */

/* Reads the attributes of the file at `path`, relative to `root`, into *e. If the file is a link,
 * also stores the link's target in `target`. Returns 0 or -errno. */
int monarch_stat_entry(int root, unsigned source, const char *path, struct monarch_entry *e,
                       char *target, uint64_t target_bytes);
/* Does the same as monarch_stat_entry, and passes `flags` to statx. */
int monarch_statx_entry(int root, unsigned source, const char *path, int flags,
                        struct monarch_entry *e, char *target, uint64_t target_bytes);
/* A regular file that a process has open. */
struct monarch_open_file {
    uint64_t dev, ino;
    uint32_t links;
};
/* Finds out which regular file the link `path` (/proc/PID/fd/FD) leads to. Returns 0 if it leads to
 * something else, or to nothing. Uses only what the kernel has cached, so the call returns even if
 * the file's file system hangs. */
int monarch_find_open_file(const char *path, struct monarch_open_file *out);
/* Reads those results of statx(2) that are the same for all files below `root`. The source is asked
 * only if the kernel no longer trusts its cached attributes of `root`. */
void monarch_read_masks(int root, struct monarch_filesystem *f);
/* Reads what statx and statfs report of the file system of `root`. The call may wait for the
 * source, because statfs always asks the source. */
void monarch_read_filesystem(int root, struct monarch_filesystem *f);

/* --- comparing with a source: compare.c, revalidate.c ----------------------------------------- */

/* The result of comparing a file or directory of the catalog with the source: the source has the
 * same version (SAME), another version (REPLACED), or no file or directory of the same kind at this
 * path (GONE). If the source cannot be asked, because statx returns an error other than ENOENT and
 * ENOTDIR, the result is SAME. */
enum monarch_compared { MONARCH_SAME, MONARCH_REPLACED, MONARCH_GONE };
/* Compares the `n` entries (files and directories) with the source, in the order of `ids`, until
 * `limit_ns` have passed. Returns how many it compared, at least one. Sets found[i] to the result,
 * an enum monarch_compared, and fresh[i] to the new attributes if the source has another version.
 * roots[s] is a descriptor of the root of source s. `threads` and `ops_per_s` are as for a scan. */
uint64_t monarch_compare(const struct monarch_catalog *c, const int32_t *roots, uint64_t n,
                         const uint64_t *ids, int threads, uint64_t ops_per_s, uint64_t limit_ns,
                         uint8_t *found, struct monarch_entry *fresh);
/* Returns whether a directory at the source still has exactly the names of its listing. `root` is a
 * descriptor of the source's root. */
int monarch_listing_holds(const struct monarch_catalog *c, int root, uint64_t directory);
/* Compares the directories of one source with the source itself, from entry *at of the catalog on,
 * until about `max` entries were compared. `root` is a descriptor of the source's root. Marks each
 * directory that differs, and each changed file in it, in the changed filter of `m`. is_listed:
 * whether monarch_catalog_list was called; before that call, the `sum` of a directory is not a
 * listing. Sets *at to the entry at which the next call must begin. Returns how many directories
 * were marked that were not marked before. */
uint64_t monarch_compare_directories(const struct monarch_catalog *c, struct monarch_clients *m,
                                     const struct monarch_source *source, unsigned number, int root,
                                     int is_listed, uint64_t *at, uint64_t max);

/* --- copying: engine.c ----------------------------------------------------------------------- */

enum monarch_job_kind {
    MONARCH_FILL,
    MONARCH_CHECK,
    MONARCH_COMPARE,
    MONARCH_DROP,
    /* Reads a copy into the page cache. Only half of the threads for the sources execute PAGE_INs,
     * so that the other half is free for fills. An engine with only one thread for the sources
     * executes no PAGE_INs. */
    MONARCH_PAGE_IN,
};
enum monarch_job_status {
    MONARCH_DONE,
    MONARCH_SOURCE_CHANGED, /* the file is no longer the version that the catalog describes */
    MONARCH_SOURCE_ERROR,
    MONARCH_TIER_FULL,
    MONARCH_TIER_ERROR,
    MONARCH_DAMAGED, /* the content of a copy does not match its checksum */
    MONARCH_ABANDONED,
};

struct monarch_result {
    uint64_t id, copy, copy_ino, bytes, copy_bytes, sum;
    uint64_t *block_sums; /* freed by monarch_engine_settle */
    uint64_t blocks;
    int64_t mtime_ns, ctime_ns; /* times of the file at the source */
    int64_t started_ns;         /* time at which a thread began the order, on the wall clock */
    uint32_t kind, status, tier, in_use;
    int32_t error;
    /* of a FILL: the peer that sent all bytes, and therefore has the whole file; -1: no such
     * peer */
    int32_t giver;
    /* Of a FILL: if a peer that was asked has no room for the file, it may name the node that keeps
     * the file. This is the number of that node; -1: no peer has named a node. */
    int32_t home;
    /* Of a FILL or CHECK that is DONE: whether the engine has published the copy. If it has not,
     * the caller must find out why. */
    uint32_t is_published;
    /* Of a DROP or a failed FILL: 0 if the copy was removed. Otherwise `left` is the errno of the
     * failed removal, and the copy still takes room. */
    int32_t left;
};

/* Throughput of one endpoint. An endpoint is either all sources together, or one peer. Bytes from a
 * peer are counted only if the peer had the whole file. bytes: number of bytes that threads have
 * received from the endpoint so far; ns: the time that the threads needed. The index of `bytes` and
 * `ns` depends on how many threads used the endpoint when a thread began to receive: index 0 for 1
 * thread, index 1 for 2 or 3 threads, index 2 for 4 to 7 threads, ... */
enum monarch_levels { MONARCH_LEVELS = 6 };
struct monarch_flow {
    uint64_t bytes[MONARCH_LEVELS], ns[MONARCH_LEVELS];
};

struct monarch_engine;

/* Starts an engine for the session to which these segments belong. The engine has up to `threads`
 * threads that read the sources, and starts them as they are needed. All of these threads may do
 * work for which a reader waits. At most `width` of them at a time do other work;
 * monarch_engine_width can change `width`. In addition, `peer_threads` threads fill copies from
 * peers. block_bytes: size of the blocks; each block has a checksum. */
struct monarch_engine *monarch_engine_start(int threads, int width, int peer_threads,
                                            uint64_t block_bytes, struct monarch_clients *clients,
                                            struct monarch_fills *fills);
/* Makes the engine's threads publish the copies that they make, through the writer `w`. Before a
 * thread publishes a copy, it checks that no client has changed the file; for this check, it needs
 * the device of the file's source from `control`. Call this before the first order is submitted. */
void monarch_engine_publish(struct monarch_engine *e, struct monarch_writer *w,
                            struct monarch_control *control);
/* Makes the engine receive the descriptors that readers hand over, from these `n` datagram sockets.
 * The caller closes the sockets after the engine has stopped. Returns 0, or -1 if no thread could
 * be started. Call this after monarch_engine_publish. */
int monarch_engine_handovers(struct monarch_engine *e, const int *sockets, int n);
/* Lists files of one source that have no entries in the catalog, although programs have handed over
 * descriptors of these files. renames: how many directories programs had renamed just before this
 * call. Files whose paths were looked up before the last of these renames are omitted, because
 * their paths may be wrong. Writes the attributes of at most `max` files to `entries`, and their
 * paths, of at most MONARCH_SCAN_HINT_PATH bytes each, to `pool`. Returns how many files it has
 * listed. Each file is listed only once. The engine keeps the file's descriptor for the order that
 * will fill the file. If no such order comes, the engine closes the descriptor as soon as two
 * conditions hold: 50 ms have passed since it received the descriptor, and the daemon's loop has
 * had two iterations since this call. */
uint64_t monarch_engine_unmet(struct monarch_engine *e, unsigned source, uint64_t renames,
                              struct monarch_entry *entries, uint64_t max, char *pool);
void monarch_engine_source(struct monarch_engine *e, unsigned source, int root);
void monarch_engine_tier(struct monarch_engine *e, unsigned tier, int copies);
/* Makes the engine store a stamp in the modification time of each copy that the engine makes in
 * this tier. From the stamp, the copy's entry can be found (monarch_stamp). salt: the salt of these
 * stamps. */
void monarch_engine_stamp(struct monarch_engine *e, unsigned tier, uint64_t salt);
/* Gives the engine a pack, which is an archive of files of the source. The engine reads a member of
 * the pack instead of the file under two conditions: the file has only one unit, and the member has
 * the file's name, size and time of modification. The engine duplicates `fd`. size, mtime_ns: the
 * pack's size and time of modification when its members were listed. `members` must be in the order
 * of their positions in the pack. Call this before the first order is submitted. Returns 0 or
 * -errno. The error is ESTALE if the pack no longer has this size and time. */
struct monarch_member {
    uint64_t hash; /* XXH3-64 of the member's path, relative to the source's root */
    uint64_t offset, size;
    int64_t mtime_ns;
};
int monarch_engine_pack(struct monarch_engine *e, unsigned source, int fd, uint64_t size,
                        int64_t mtime_ns, uint64_t n, const struct monarch_member *members);
/* Returns the errno of the last read of a source's pack, or 0. ESTALE: the pack has changed, so the
 * engine no longer reads it. */
int monarch_engine_pack_error(struct monarch_engine *e, unsigned source);
/* For each of the `n` entries, sets places[i] to the position of the file's member in the pack of
 * the file's source. If no member has the file's name, size and time of modification, sets
 * places[i] to -1. */
void monarch_engine_pack_order(struct monarch_engine *e, const struct monarch_catalog *c,
                               uint64_t n, const uint64_t *ids, int64_t *places);
/* Sets how many bytes and operations per second the engine may request from the sources; 0: no
 * limit. */
void monarch_engine_limit(struct monarch_engine *e, uint64_t bytes_per_s, uint64_t ops_per_s);
/* Sets whether the engine may read small files with O_DIRECT. By default, it may. */
void monarch_engine_direct_io(struct monarch_engine *e, int may);
/* Sets how many threads at a time may copy files for which no reader waits: `width` threads may
 * copy from the sources, and `peer_width` threads from peers. rests: whether the threads that read
 * the sources sleep after each file, so that programs get more processor time. */
void monarch_engine_width(struct monarch_engine *e, int width, int peer_width, int rests);
/* Sets the shares of the ranks. `shares` has MONARCH_RANKS elements; its index is the number by
 * which demands name a rank (monarch_demand). If readers of several ranks wait, these ranks are
 * served in proportion to their shares. Before the first call, all shares are 0. Readers of a rank
 * with share 0 are served like readers that belong to no rank. */
void monarch_engine_shares(struct monarch_engine *e, const uint32_t *shares);
/* Submits orders, which are jobs for the engine's threads. The engine begins them in the sequence
 * of the arrays, except that orders for files in use (in_use = 1) come before all others. The
 * engine reads `c` only during the call. sums: the checksum that a CHECK or COMPARE expects. peers:
 * for each order, the numbers of the MONARCH_ASKED peers that a FILL asks before the source; -1: no
 * peer. If a peer has the whole file, MONARCH_HAS_IT is added to the peer's number. sums and peers
 * may be NULL. Returns how many orders were accepted. */
enum monarch_asked { MONARCH_HAS_IT = 65536 };
int monarch_engine_submit(struct monarch_engine *e, const struct monarch_catalog *c, int kind,
                          int in_use, uint64_t n, const uint64_t *ids, const uint32_t *tiers,
                          const uint64_t *copies, const uint64_t *sums, const int32_t *peers);
/* Submits orders to remove copies. The engine executes these orders before all other orders. Each
 * result has the order's id, and the file's size as `bytes`. Returns how many orders were
 * accepted. */
int monarch_engine_drop(struct monarch_engine *e, uint64_t n, const uint64_t *ids,
                        const uint32_t *tiers, const uint64_t *copies, const uint64_t *sizes);
/* A grant is room in tiers. The engine itself may use this room to start fills of files for which
 * readers or peers wait. This struct is the granted room in one tier; monarch_engine_grant takes an
 * array of `tiers` such structs. The engine numbers the copies from `first_copy` on, and starts at
 * most MONARCH_PLACED fills. Until the grant ends, only the engine changes the words of entries
 * that are ABSENT or WANTED, and only the engine places copies in these tiers. */
struct monarch_room {
    uint64_t bytes, inodes;
    uint64_t largest; /* size of the largest file that may go into the tier; 0: no limit */
    uint32_t block_bytes, entry_bytes; /* as in monarch_py/policies/placement.py */
    uint32_t is_part;                  /* whether the tier has more room than this grant */
    uint32_t is_staging;               /* whether the tier is the staging area */
};
enum { MONARCH_PLACED = 1024 };
struct monarch_placed {
    uint64_t id, copy;
    uint32_t tier, unused;
};
/* Gives a grant (struct monarch_room) to the engine. meets: a bit per source. The bit is set if the
 * engine may add files of the source to the catalog when programs hand over descriptors of them. */
void monarch_engine_grant(struct monarch_engine *e, uint32_t tiers, const struct monarch_room *room,
                          uint64_t first_copy, uint32_t meets);
/* Ends the grant. Writes the fills that the engine has started under the grant to `out`, which has
 * room for MONARCH_PLACED fills. Returns the number of these fills. */
uint64_t monarch_engine_end_grant(struct monarch_engine *e, struct monarch_placed *out);
/* If nodes share files, the home of a file says from which nodes this node gets the file, and where
 * this node puts its own copy. monarch_engine_homes passes the homes of `n` files to the engine.
 * After the first call, the engine itself starts fills only of files whose homes it has received;
 * Python must submit all other fills. Returns 0, or -1 if memory is exhausted. */
enum monarch_storage { MONARCH_NOT_TOLD, MONARCH_IN_TIERS, MONARCH_IN_STAGING };
struct monarch_home {
    int16_t asked_first, asked_then; /* the peers that a fill asks; -1: none */
    uint16_t storage; /* an enum monarch_storage: where this node puts its copy of the file */
    /* set by the engine: 1 + the number of the peer that sent the whole file; callers pass 0 */
    uint16_t giver;
};
int monarch_engine_homes(struct monarch_engine *e, uint64_t n, const uint64_t *ids,
                         const struct monarch_home *homes);
/* Waits, for at most `limit_us`, until there is work that the engine leaves to the daemon's loop.
 * There are three cases: a file needs a fill that the engine may not start itself; an order has
 * ended, so there may now be room for a file that needs a fill; a fill has ended, but the engine
 * has not published the copy. Returns 1 if such work has come up since the last call, otherwise
 * 0. */
int monarch_engine_rest(struct monarch_engine *e, uint32_t limit_us);
/* Withdraws the FILL orders of these `n` entries. An order is not withdrawn in three cases: a
 * thread has begun it, its file is in use, or a handed-over descriptor waits for it. Each withdrawn
 * order gets the result ABANDONED at once. Returns how many orders were withdrawn. */
uint64_t monarch_engine_withdraw(struct monarch_engine *e, uint64_t n, const uint64_t *ids);
uint64_t monarch_engine_results(struct monarch_engine *e, struct monarch_result *out, uint64_t max);
/* Frees the data of all results that were taken so far: the bitmaps of their fills (struct
 * monarch_fill), and the checksums of their blocks. Call this when the catalog reflects these
 * results. Before that, readers need the bitmaps of fills whose copies the engine has not
 * published, and the caller may need the checksums. */
void monarch_engine_settle(struct monarch_engine *e);
/* Sets whether the caller waits for results, because it has more orders to submit or needs room for
 * copies. For a result whose copy the engine has not published, the engine rings the doorbell at
 * once. For other results, it rings the doorbell only after many of them have come. If the caller
 * waits, it rings after a few, so that the threads do not run out of orders. Results can also be
 * taken before the doorbell rings. */
void monarch_engine_await(struct monarch_engine *e, int is_awaited);
/* Returns the number of orders whose results were not taken yet. PAGE_INs are not counted. in_use:
 * 1 counts orders for files in use, 0 counts all other orders. origin: counts only orders whose
 * bytes come from this origin; MONARCH_ORIGINS: counts the orders of both origins. */
uint64_t monarch_engine_pending(struct monarch_engine *e, int in_use, int origin);
/* Returns whether any FILL from a source is unfinished, or has a result that was not taken yet. */
int monarch_engine_reads_sources(struct monarch_engine *e);
/* Counts, for each of `n` peers, the orders that ask this peer first and whose results were not
 * taken yet. */
void monarch_engine_queues(struct monarch_engine *e, uint32_t *lengths, uint32_t n);
/* Reads `n` flows: first the flow of the sources, then the flows of the peers, in the order of the
 * peers' numbers. */
void monarch_engine_flows(struct monarch_engine *e, struct monarch_flow *out, uint32_t n);
/* The engine's counters: bytes read from sources, and files filled from them; bytes received from
 * peers, and files filled from peers alone. */
enum monarch_count {
    MONARCH_BYTES,
    MONARCH_FILES,
    MONARCH_PEER_BYTES,
    MONARCH_PEER_FILES,
    MONARCH_COUNTS /* number of counters */
};
/* Returns the counter's value. */
uint64_t monarch_engine_count(struct monarch_engine *e, enum monarch_count what);
/* Stops the engine and abandons unfinished orders. Joins the threads, frees the engine and returns
 * 0. If some threads have not ended within `limit_ms`, returns their number and frees nothing. */
int monarch_engine_stop(struct monarch_engine *e, int limit_ms);
/* Computes the checksum of the file at `path`: the XXH3-64 of the checksums of its blocks. Returns
 * 0 or -errno. */
int monarch_sum_file(const char *path, uint64_t block_bytes, uint64_t *sum, uint64_t *bytes);

/* Returns the XXH3-64 of the bytes. */
uint64_t monarch_xxh3_of(const char *data, uint64_t len);
/* Configures malloc for a process that runs for weeks: when a large array is freed, its memory
 * returns to the system. */
void monarch_limit_malloc(void);
/* Asks the kernel for SCHED_BATCH and short time slices (since Linux 6.12) for the calling thread
 * and for threads that it makes later. If a SCHED_BATCH thread wakes, it does not interrupt the
 * thread that runs on its processor. The interrupted thread would mostly have gone to sleep within
 * 0.1 ms, so the interruption would cost two context switches for nothing. If programs use all
 * processors, short slices let the daemon's threads run at the scheduler's next decision. Their
 * share of the processor time stays the same. On older kernels, a SCHED_BATCH thread could wait for
 * many milliseconds, so the function has no effect there. */
void monarch_set_scheduling(void);
int monarch_syncfs(int fd); /* 0 or -errno */
