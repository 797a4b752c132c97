/* The layout of the memory that the daemon and the preload library share. The declarations for
 * Python are generated from this header.
 *
 * A session's directory (DIR = <shm>/monarch-<uid>/<key>) holds four kinds of segment:
 *
 *   DIR/control     written by the daemon: its state, its sources and its tiers
 *   DIR/catalog.N   written by the daemon: every known file; a larger catalog gets a larger N
 *   DIR/fills       written by the daemon: which parts of unfinished copies can be read
 *   DIR/clients     written by the clients: their requests, changed files and statistics
 *
 * Every segment is allocated in full before it is published. Otherwise, if /dev/shm were full, a
 * reader that touched a hole of the segment would get SIGBUS. */
#pragma once

#ifndef MONARCH_CDEF
#include <assert.h>
#include <stddef.h>
#include <stdint.h>
#endif

#define MONARCH_MAGIC 0x686372616e6f4dULL /* "Monarch" */
#define MONARCH_VERSION 26
#define MONARCH_MAX_SOURCES 16
#define MONARCH_MAX_TIERS 16
/* Maximum number of groups of a process: NGROUPS_MAX supplementary groups and the effective one. */
#define MONARCH_MAX_GROUPS 65537
/* Maximum size [bytes] of a source's path, with the NUL. */
#define MONARCH_SOURCE_PATH 1024
/* Maximum size [bytes] of the path of the directory in which a tier keeps its copies, with a '/'
 * and the NUL. */
#define MONARCH_TIER_PATH 240
/* Length of the name of a copy's file. The name is the copy's number, in hexadecimal with leading
 * zeros. */
#define MONARCH_COPY_NAME 13

/* Number of bits in `wanted` of struct monarch_clients, one per entry. An entry numbered 16 Mi or
 * higher has no bit, so its file is always read from the source. */
#define MONARCH_MAX_FILES 16777216
/* Maximum number of entries of all kinds. The limit comes from the slots of the index by path: a
 * slot stores the entry's number + 1 in 25 bits. */
#define MONARCH_MAX_ENTRIES 33554431
/* Maximum size [bytes] of the pool, which holds the paths of all entries. A slot of the index by
 * path stores a position in the pool in 31 bits, in units of 16 bytes. */
#define MONARCH_MAX_POOL 34359738368
/* Number of bits of the changed filter, a Bloom filter in which each changed file sets two bits.
 * After 100,000 changed files, one in 7,000 of the unchanged files looks changed too. Such a file
 * is read from the source, which is slower but correct. */
#define MONARCH_FILTER_BITS 16777216
/* Number of bits of the changed filter that one bit of the coarse filter summarizes. The coarse
 * filter (8 KiB) stays in a core's first-level cache, unlike the changed filter. So the check of an
 * unchanged file rarely reads the changed filter. */
#define MONARCH_FILTER_COARSE 256
/* Alignment [bytes] of mapped catalogs, so that huge pages can back them. */
#define MONARCH_HUGE_PAGE 2097152
#define MONARCH_SCAN_HINTS 64
#define MONARCH_SCAN_HINT_PATH 1004
#define MONARCH_STAT_SLOTS 64
/* Number of slots of `look` in struct monarch_clients. If two directories share a slot, each check
 * of one overwrites the time of the other's last check. Both are then checked more often than
 * necessary. */
#define MONARCH_LOOKS 16384
#define MONARCH_MAX_PEERS 4096 /* maximum number of nodes of a session */
#define MONARCH_ASKED 2        /* maximum number of peers that a fill asks before the source */
/* Length of arrays with an element for each rank of a node. Index 0 is for processes without a
 * rank; the launcher's rank n has index n + 1. So at most MONARCH_RANKS - 1 ranks are counted and
 * served separately. */
#define MONARCH_RANKS 128

/* Number of slots for claims. A claim says that a program is reading a file at the source. If two
 * files share a slot, the later claim usually replaces the earlier one. */
#define MONARCH_CLAIMS 65536

/* The unit [bytes] in which a copy is filled. Readers can read a unit as soon as it is filled. A
 * unit is small, so that a reader's first unit arrives soon, but large enough to amortize the
 * source's latency. */
#define MONARCH_UNIT 262144
#define MONARCH_FILL_SLOTS 256   /* maximum number of copies that are filled at a time */
#define MONARCH_FILL_UNITS 65536 /* bits in a fill's bitmap; large files have larger units */
/* Number of slots for demands. A reader that finds no free slot for its demand reads from the
 * source. */
#define MONARCH_DEMANDS 256
#define MONARCH_SHARES 10000 /* the unit of `fill_after`: 1 / 10,000 of a file */

enum monarch_session_state { MONARCH_STARTING, MONARCH_SERVING, MONARCH_CLOSED };
/* OTHER: a socket, a pipe, a device or a mount point. The catalog has only its name; the source
 * answers all calls for its attributes. */
enum monarch_kind { MONARCH_FILE, MONARCH_DIR, MONARCH_LINK, MONARCH_OTHER };

/* An entry's word has four fields: state | reason << 4 | tier << 8 | copy << 12. One atomic load of
 * the word reads field values that belong together. `copy` is the number of the copy. Such a number
 * is never reused, not even by a later daemon. */
enum monarch_state {
    MONARCH_ABSENT,
    MONARCH_WANTED,
    MONARCH_FILLING,
    MONARCH_PRESENT,
    MONARCH_BYPASS
};
enum monarch_reason {
    MONARCH_NO_REASON,
    MONARCH_NO_ROOM,     /* the file fits into no tier */
    MONARCH_EXCLUDED,    /* a pattern or a size limit of the configuration excludes the file */
    MONARCH_CHANGED,     /* the file was written, renamed or removed during the session */
    MONARCH_FAILED,      /* the source or every tier returned an error */
    MONARCH_UNSUPPORTED, /* the file has attributes that the catalog cannot hold */
};

/* Flags of an entry. OWN and OF_OTHERS are used only if nodes share files. OWN: this node fills the
 * file from the source. OF_OTHERS: this node fills it from another node. Both are unset until the
 * file's owner is decided. */
enum monarch_flag {
    /* The file has statx(2) attributes that the catalog does not hold (immutable, ...) */
    MONARCH_ATTRIBUTES = 1,
    MONARCH_OWN = 2,
    MONARCH_OF_OTHERS = 4,
};

/* The answer of statfs(2) for a source, field by field. */
struct monarch_filesystem {
    int64_t type, bsize, frsize, namelen, flags;
    uint64_t blocks, bfree, bavail, files, ffree;
    int32_t fsid[2];
    /* statx(2) values that all files of the source share: the mount, the supported attributes, and
     * the mask of the filled-in fields. The mask is statx_mask[1] for calls that request the birth
     * time, otherwise statx_mask[0]. */
    uint64_t mount, attributes_mask;
    uint32_t statx_mask[2];
};

struct monarch_source {
    /* Device and inode of the directory `path`. A process that finds another device or inode at
     * `path` runs in another mount namespace or under another chroot. */
    uint64_t dev, ino;
    uint64_t up_ino; /* inode number that a listing of `path` shows for ".." */
    struct monarch_filesystem filesystem;
    uint32_t path_len, alias_len;
    char path[MONARCH_SOURCE_PATH];  /* resolved, no trailing slash */
    char alias[MONARCH_SOURCE_PATH]; /* the path as the configuration spells it, if that differs */
};

struct monarch_tier {
    uint64_t dev, ino; /* device and inode of the directory that holds the tier's copies */
    uint32_t path_len, usable;
    char path[MONARCH_TIER_PATH]; /* ends with a slash */
};

struct monarch_control {
    uint64_t magic;
    uint32_t version;
    uint32_t state; /* enum monarch_session_state */
    uint32_t pid;
    uint32_t off; /* 1: Monarch is switched off, because an administrator's switch file exists */
    uint64_t heartbeat;
    uint64_t generation; /* generation of the current catalog; 0: no catalog exists yet */
    uint32_t scanned;    /* 1: every source has been scanned at least once */
    uint32_t sources, tiers;
    uint32_t owner; /* user id */
    uint64_t block_bytes;
    uint64_t mounts;       /* inode of the daemon's mount namespace; 0: unknown */
    uint32_t fill_on_open; /* 1: opening a file requests its copy */
    /* The part of a file that programs must have requested before the daemon fills the file, in
     * units of 1 / MONARCH_SHARES of the file. */
    uint32_t fill_after;
    /* Size [bytes] of the largest file that a program may hand over; 0: no file. To hand a file
     * over, a program reads it at the source and passes its descriptor to the daemon. The daemon
     * then makes the copy through this descriptor. */
    uint64_t handed_bytes;
    uint32_t promote_mappings;
    /* 1: the catalog answers calls for names and attributes. 0: the source answers them. Each open
     * of a copy then first checks at the source whether the file is still the version that was
     * copied. */
    uint32_t metadata_cached;
    uint32_t follow_opens; /* atomic; 1: clients report in `opened` which files they open */
    /* 1: clients report in `read` which files they have read to their end */
    uint32_t follow_reads;
    uint32_t reads_everything; /* 1: the daemon may read every file, whatever its mode */
    /* Atomic: a bit per source. The bit is set if a program can read a small file from the source
     * sooner than its copy would be ready. This is so for a local disk, or if the files are in the
     * page cache. */
    uint32_t fast_sources;
    /* Atomic: a bit per source. The bit is set as soon as enough small files have been filled to
     * decide whether the source is fast. */
    uint32_t judged_sources;
    /* Atomic: a bit per source. The bit is set if the kernel does not keep the source's files in
     * the page cache. After the handover of such a file, the daemon must read it from the source
     * again. So programs hand over only one in 128 of these files, to find out whether the kernel
     * keeps them now. */
    uint32_t pageless_sources;
    uint32_t shares; /* 1: nodes share the files (MONARCH_OWN, MONARCH_OF_OTHERS) */
    /* Atomic. 1 if the running scan will find every file, and the daemon is configured to fill even
     * files that no client has opened. */
    uint32_t scan_meets_all;
    uint64_t users; /* inode of the daemon's user namespace */
    uint64_t pids;  /* inode of the daemon's pid namespace; 0: unknown */
    /* How long [ns] the catalog may answer calls for attributes, counted from the beginning of the
     * last comparison of the directories with the source. */
    uint64_t revalidate_ns;
    /* atomic: when the daemon last began to compare the directories with the source [ns of
     * CLOCK_MONOTONIC]; 0: it has not done so yet */
    uint64_t compared_ns;
    struct monarch_source source[MONARCH_MAX_SOURCES];
    struct monarch_tier tier[MONARCH_MAX_TIERS];
    char switch_file[2][MONARCH_TIER_PATH];
    uint32_t groups; /* number of groups that the daemon belongs to; they are in `group` */
    uint32_t group[MONARCH_MAX_GROUPS];
};

/* A slot of the index by path. `place` identifies the entry and its path (monarch_slot_of). `copy`
 * identifies the entry's copy, if there is one (monarch_guess_of). */
struct monarch_slot {
    uint64_t place, copy; /* atomic; place: 0 in a free slot; copy: 0 if there is no copy */
};

/* One known file, directory or link. All fields that an open needs are in the first cache line. */
struct monarch_entry {
    uint64_t hash; /* XXH3-64 of the relative path, mixed with the source's number */
    uint64_t path; /* offset of the path in the pool; the path ends with a NUL */
    uint64_t word; /* atomic */
    uint64_t ino;
    uint64_t size;
    /* A file: the inode of its copy. A link: the offset of its target in the pool. A directory: the
     * listing that readers may use (monarch_listing). */
    uint64_t copy_ino;
    /* A file: the checksum of its PRESENT copy, which is the XXH3-64 of the checksums of its
     * blocks. A directory: 1 + the number of names that the scan has found in it.
     * monarch_catalog_list replaces that number by the listing of these names. 0: not all names are
     * known, or the directory changed during the scan. */
    uint64_t sum;
    uint16_t path_len;
    uint8_t source;
    uint8_t kind;     /* enum monarch_kind */
    uint16_t blksize; /* statx's preferred size of reads and writes, in units of 512 bytes */
    uint16_t flags;

    int64_t mtime_ns;
    int64_t ctime_ns, atime_ns, btime_ns; /* btime 0: unknown */
    uint64_t blocks;                      /* space that the file occupies, in units of 512 bytes */
    uint32_t mode, uid, gid, nlink;
    uint32_t place;   /* position of the name in its directory's listing at the source */
    uint32_t version; /* atomic: odd while the attributes are being replaced */
};

struct monarch_catalog {
    uint64_t magic;
    uint64_t generation;
    uint64_t bytes;    /* size of the whole segment */
    uint64_t capacity; /* entries */
    uint64_t count;    /* atomic: number of entries that readers may read */
    uint64_t slots;    /* number of slots of each of the three indexes */
    uint64_t pool_bytes, pool_used;
    uint64_t index_at, inodes_at, copies_at, entries_at, names_at, pool_at; /* offsets */
    /* how many slots of the index by inode, and of the index by copy, are in use; a slot is never
     * freed */
    uint64_t inodes_used, copies_used;
    /* 1 + the number of the tier in which every copy has a stamp (monarch_stamp); 0: no such
     * tier */
    uint64_t stamped;
    /* A bit per tier. The bit is set if this daemon stamps the copies that it makes in the tier.
     * Copies of earlier daemons in the tier lack this daemon's stamps. The bit is not set for the
     * tier in `stamped`. */
    uint64_t evicting;
    /* salt of the stamps; each daemon has its own salt, because a file's entry may have different
     * numbers in the catalogs of two daemons */
    uint64_t salt;
};

/* The path of a file that a client has opened but the catalog lacks. It is only a hint: if it is
 * lost, the daemon finds the file later. */
struct monarch_scan_hint {
    /* atomic: (number of the hint) << 2 | state of this slot: 0 free, 1 being written, 2 ready */
    uint64_t ticket;
    uint32_t source;
    uint32_t path_len;
    char path[MONARCH_SCAN_HINT_PATH];
    /* 1: the program has read only a small part of the file, so the daemon does not fill the
     * file */
    uint32_t is_part;
};

/* The progress of a fill. `done` has one bit per unit; if the bit is set, the unit can be read from
 * the copy. Another fill may reuse this slot. So a reader checks the slot's `word` (struct
 * monarch_fills) before and after it reads a bit. The bit counts only if the word is the copy's
 * both times. */
struct monarch_fill {
    uint64_t unit_bytes;
    uint64_t failed; /* atomic; 1: the fill has failed, and no more units will be filled */
    uint64_t whole;  /* atomic; 1: all units are filled, and the source's file has not changed */
    uint64_t done[MONARCH_FILL_UNITS / 64];
};

struct monarch_fills {
    uint64_t magic;
    /* atomic: number of units filled so far; its growth shows readers that the daemon makes
     * progress */
    uint64_t units;
    uint64_t source_ns; /* atomic: when a source last returned data [ns of CLOCK_MONOTONIC] */
    /* atomic: word of the FILLING entry that uses this slot; 0: the slot is free */
    uint64_t word[MONARCH_FILL_SLOTS];
    struct monarch_fill fill[MONARCH_FILL_SLOTS];
};

struct monarch_stats {
    uint64_t hits, misses; /* opens of files with a copy; opens of files without a copy */
    /* bytes_from_tier: total size of the files counted in `hits`; bytes_from_source: total size of
     * the files counted in `misses` */
    uint64_t bytes_from_tier, bytes_from_source;
    uint64_t waits, wait_ns; /* number and total time [ns] of the reads that waited for a fill */
    /* number of reads that gave up waiting for a fill, and read from the source */
    uint64_t fallbacks;
    uint64_t promotions; /* number of descriptors and mappings switched from source to copy */
    uint64_t bytes_while_filling; /* bytes read from incomplete copies */
    /* number of calls for names and attributes that the catalog answered */
    uint64_t metadata_hits;
    /* number of bytes that programs have read at the sources (monarch_count_source) */
    uint64_t source_bytes_read_by_programs;
    /* number and total time [ns] of the opens at the sources */
    uint64_t source_opens, source_open_ns;
    uint64_t unused[3]; /* pads to two cache lines */
};

/* The two origins of a fill's bytes. Each has threads of its own, so that a wait for a peer never
 * delays a read of the source. With common threads, two nodes that fill files from each other could
 * deadlock. */
enum monarch_origin { MONARCH_FROM_SOURCE, MONARCH_FROM_PEER, MONARCH_ORIGINS };

/* The bell on which the copying threads of one origin sleep. A thread that adds work increments the
 * futex, and then wakes one sleeping thread, if any. The woken thread takes work, and wakes another
 * thread if there is more work. */
struct monarch_bell {
    uint32_t rings;    /* futex */
    uint32_t sleeping; /* atomic: number of threads that sleep on the futex, or soon will */
};

/* Two sums of file sizes for one rank. opened_bytes: all files that the rank's processes have
 * opened. missed_bytes: those of the opened files that should have had a copy, but had none yet. */
struct monarch_rank {
    uint64_t opened_bytes, missed_bytes;
    uint64_t unused[6]; /* pads to a cache line */
};

/* A two-level bitmap. `word` has a bit per file, and `summary` has a bit per word of 64 files.
 * Through `summary`, the daemon finds the few set bits among 16 Mi without reading every word. */
struct monarch_bits {
    uint64_t summary[MONARCH_MAX_FILES / 64 / 64]; /* atomic */
    uint64_t word[MONARCH_MAX_FILES / 64];         /* atomic */
};

/* A record of the session's file `changes`. A process that lacks the address space to map the
 * segments appends a record for each file that it changes. */
struct monarch_change {
    uint64_t dev, ino;
    uint64_t is_tree; /* 1: the inode is a directory, and everything below it has changed */
};
/* The value of `told` after a client has failed to write a record to the file `changes`. From then
 * on, any file may have changed. */
#define MONARCH_CHANGE_UNKNOWN UINT64_MAX

/* The datagram with which a program hands over the descriptor of a file that it has read. It goes
 * to the session's socket `handovers.<id % 16>`, for which the kernel queues 10 datagrams. It is
 * only a hint, and may be lost. For a file with an entry, it ends before the field `source`;
 * otherwise, it ends with the path's NUL. */
#define MONARCH_HANDOVER_SOCKETS 16
struct monarch_handover {
    uint64_t id; /* number of the file's entry; without an entry, the result of monarch_unmet */
    uint32_t is_read; /* 1: the program has just read the whole file */
    uint32_t source;
    uint32_t path_len;
    char path[MONARCH_SCAN_HINT_PATH];
};

struct monarch_clients {
    uint64_t magic;
    uint32_t doorbell; /* futex: clients ring it when there is work for the daemon */
    uint32_t sleeping; /* 1: the daemon waits on the doorbell */
    uint64_t changes;  /* number of marks in the changed filter; incremented after each mark */
    uint64_t renames;  /* number of renames of directories so far */
    uint64_t scan_hints;
    /* The bells of both origins. A client that demands a unit rings the bell of the origin from
     * which the file is filled. The client rings both bells if the origin is not decided, or if the
     * file is already being filled. It also does so if no thread sleeps on the origin's bell. */
    struct monarch_bell engine[MONARCH_ORIGINS];
    /* The sum of the daemon's progress counters when a client gave up waiting; 0: no client has
     * given up. While the sum still has this value, the daemon makes no progress, so no process
     * waits for it. */
    uint64_t silent_at;
    /* 1: a client needed attributes from the catalog, but the catalog's last comparison with the
     * source was too long ago. The daemon then begins a comparison, and sets this field to 0. */
    uint64_t stale;
    /* Atomic. Each slot belongs to one directory. It records when a client last checked at the
     * source that the directory is unchanged since its listing was made. It combines the number of
     * the directory's entry + 1 (25 bits) with the time of the check. The time is in ticks of
     * CLOCK_MONOTONIC (TICK_BITS in lookup/metadata.c). */
    uint64_t look[MONARCH_LOOKS];
    /* Demands. A demand names a unit that a reader waits for. Upper half: the entry's number + 1,
     * and the reader's rank. Lower half, a futex: the unit, and a tag that distinguishes this
     * demand from earlier ones. The daemon answers a demand by setting it to 0. A demand is only a
     * hint: readers learn from the bitmaps of `fills` which units can be read. The daemon never
     * waits for a client, which may have been killed. */
    uint64_t demand[MONARCH_DEMANDS];
    /* Claims; monarch_claim_at returns a file's slot. While a claim is valid, a program reads the
     * file at the source, and the daemon does not prefetch the file. */
    uint64_t claim[MONARCH_CLAIMS];
    struct monarch_stats stats[MONARCH_STAT_SLOTS];
    struct monarch_rank rank[MONARCH_RANKS];
    struct monarch_scan_hint scan_hint[MONARCH_SCAN_HINTS];
    struct monarch_bits wanted;
    /* a bit for each file that was opened; used while `follow_opens` is 1. The daemon clears each
     * bit that it finds set. */
    struct monarch_bits opened;
    /* a bit for each file without a copy that was read to its end; used if `follow_reads` is 1 */
    struct monarch_bits read;
    /* Atomic. Nonzero: the session's file `changes` has records that the daemon has not read yet.
     * Until the daemon has read them, clients treat every file as changed. Each writer of a record
     * stores a new number, so that the daemon notices records added while it reads. */
    uint64_t told;
    uint64_t unused[7]; /* pads the cache line of `told`, which each open reads */
    uint64_t changed[MONARCH_FILTER_BITS / 64];
    uint64_t changed_coarse[MONARCH_FILTER_BITS / MONARCH_FILTER_COARSE / 64];
};

#ifndef MONARCH_CDEF
/* Combines the seconds and nanoseconds of a file's time into one number [ns], as entries store it.
 * A time that does not fit into 64 bits wraps around. */
static inline int64_t monarch_time_ns(int64_t s, int64_t ns) {
    return (int64_t)((uint64_t)s * 1000000000 + (uint64_t)ns);
}

static_assert(sizeof(struct monarch_entry) == 128, "two cache lines; bump MONARCH_VERSION");
static_assert(sizeof(struct monarch_slot) == 16, "four to a cache line; bump MONARCH_VERSION");
static_assert(sizeof(struct monarch_stats) == 128, "bump MONARCH_VERSION");
static_assert(sizeof(struct monarch_scan_hint) == 1024, "bump MONARCH_VERSION");
static_assert(sizeof(struct monarch_rank) == 64, "bump MONARCH_VERSION");
static_assert(MONARCH_MAX_ENTRIES == (1 << 25) - 1 && MONARCH_RANKS == 1 << 7,
              "an entry's number and a rank must fit into the upper half of a demand");

#define MONARCH_WORD_STATE(w) (15 & (w))
#define MONARCH_WORD_REASON(w) ((unsigned)((w) >> 4 & 15))
#define MONARCH_WORD_TIER(w) (((w) >> 8) & 15)
#define MONARCH_WORD_COPY(w) ((w) >> 12)

static inline uint64_t monarch_word(unsigned state, unsigned reason, unsigned tier, uint64_t copy) {
    return state | reason << 4 | tier << 8 | copy << 12;
}

static inline int monarch_bit_is_set(const uint64_t *words, uint64_t i) {
    return __atomic_load_n(&words[i / 64], __ATOMIC_SEQ_CST) >> (i % 64) & 1;
}

/* Sets a file's bit first, and the summary bit second. Returns 0 if both were set before.
 *
 * The daemon clears the summary bit first, and reads and clears the files' bits second. If it reads
 * a file's bit too early, this function sets the summary bit again afterwards. So no bit is lost,
 * with one exception: a client may be killed after it has set only the file's bit. The summary bit
 * then stays unset until another call for one of its 64 files. */
static inline int monarch_set_bit(struct monarch_bits *b, uint64_t id) {
    uint64_t above = id / 64;
    int is_new = !monarch_bit_is_set(b->word, id);
    if (is_new)
        __atomic_fetch_or(&b->word[above], 1ULL << (id % 64), __ATOMIC_SEQ_CST);
    if (monarch_bit_is_set(b->summary, above))
        return is_new;
    __atomic_fetch_or(&b->summary[above / 64], 1ULL << (above % 64), __ATOMIC_SEQ_CST);
    return 1;
}

/* Finalizer of a hash function: spreads inode numbers and source numbers over 64 bits. */
static inline uint64_t monarch_mix(uint64_t v) {
    v = (v ^ (v >> 32)) * 0xD6E8FEB86659FD93ULL;
    v = (v ^ (v >> 32)) * 0xD6E8FEB86659FD93ULL;
    return v ^ (v >> 32);
}

/* Returns the size [bytes] of the units in which a file of `size` bytes is filled: at most a block.
 * If the file has more units than a fill's bitmap has bits, readers can use its copy only when it
 * is complete. */
static inline uint64_t monarch_unit_of(uint64_t size, uint64_t block) {
    uint64_t unit = block % MONARCH_UNIT ? block : MONARCH_UNIT;
    while (unit < block && (size + unit - 1) / unit > MONARCH_FILL_UNITS)
        unit = block % (unit * 2) ? block : unit * 2;
    return unit;
}

/* Returns the value that represents a demand. This value is never 0. The tag distinguishes this
 * demand from earlier demands for the same unit. */
static inline uint64_t monarch_demand(uint64_t entry, uint64_t unit, uint32_t tag, unsigned rank) {
    return (uint64_t)rank << 57 | (entry + 1) << 32 | unit << 12 | (tag & 0xFFF) | 1;
}
static inline uint64_t monarch_demand_entry(uint64_t demand) {
    return (demand >> 32 & MONARCH_MAX_ENTRIES) - 1;
}
static inline unsigned monarch_demand_rank(uint64_t demand) { return (unsigned)(demand >> 57); }
static inline uint64_t monarch_demand_unit(uint64_t demand) { return demand >> 12 & 0xFFFFF; }

/* Returns the index of the fill's slot in `word` and `fill`, or -1 if no slot has this word. */
static inline int monarch_fill_slot(const struct monarch_fills *fills, uint64_t word) {
    int i = 0;
    while (i < MONARCH_FILL_SLOTS && __atomic_load_n(&fills->word[i], __ATOMIC_ACQUIRE) != word)
        i++;
    return i < MONARCH_FILL_SLOTS ? i : -1;
}
static inline int monarch_unit_is_done(const struct monarch_fill *f, uint64_t unit) {
    return unit < MONARCH_FILL_UNITS &&
           (__atomic_load_n(&f->done[unit / 64], __ATOMIC_ACQUIRE) >> (unit % 64) & 1);
}

/* Makes the value of a claim: (number of the entry + 1) << 32 | flags | time in ticks of about 1
 * ms. Flag bit 31: a descriptor was handed over. Flag bit 30: the daemon must close that descriptor
 * now. Every claim expires after a second, so a killed program's claim ends soon. A claim with bit
 * 31 also ends when the daemon closes the descriptor. */
#define MONARCH_CLAIM_HANDED (1ULL << 31)
#define MONARCH_CLAIM_RECALLED (1ULL << 30)
#define MONARCH_CLAIM_TICK 20 /* a tick is 1 << 20 ns */
#define MONARCH_CLAIM_TICKS 1000
static inline uint64_t monarch_claim_of(uint64_t id, uint64_t flag, uint64_t now_ns) {
    return (id + 1) << 32 | flag | (now_ns >> MONARCH_CLAIM_TICK & (MONARCH_CLAIM_RECALLED - 1));
}
static inline int monarch_claim_names(uint64_t claim, uint64_t id) { return claim >> 32 == id + 1; }
/* Returns whether the claim is valid, that is, has not expired. A claim from later than `now_ns` is
 * valid too: it may have been made after the caller read the clock. */
static inline int monarch_claim_holds(uint64_t claim, uint64_t now_ns) {
    uint64_t age = (now_ns >> MONARCH_CLAIM_TICK) - claim + MONARCH_CLAIM_TICKS;
    return claim && (age & (MONARCH_CLAIM_RECALLED - 1)) < 2 * MONARCH_CLAIM_TICKS;
}
/* Returns the number for a file without an entry, computed from its inode number. It is larger than
 * any entry's number. Two files may get the same number. */
static inline uint64_t monarch_unmet(uint64_t ino) {
    return MONARCH_MAX_ENTRIES + 1 + ino % (MONARCH_MAX_ENTRIES - 1);
}
static inline int monarch_is_unmet(uint64_t id) { return id > MONARCH_MAX_ENTRIES; }

/* Returns the slot for a file's claim. The slot holds 0 while there is no claim. */
static inline uint64_t *monarch_claim_at(struct monarch_clients *m, uint64_t id) {
    return &m->claim[id % MONARCH_CLAIMS];
}

/* monarch_filter_bit and monarch_filter_second return the positions of a file's two bits in the
 * changed filter. Both positions come from the same hash. */
static inline uint64_t monarch_filter_bit(uint64_t dev, uint64_t ino) {
    return monarch_mix(ino ^ monarch_mix(dev)) % MONARCH_FILTER_BITS;
}
static inline uint64_t monarch_filter_second(uint64_t dev, uint64_t ino) {
    return monarch_mix(ino ^ monarch_mix(dev)) / MONARCH_FILTER_BITS % MONARCH_FILTER_BITS;
}

/* Returns the slot where probing for a hash starts. A multiplication computes it from the upper
 * bits of the hash. So an index can have any length, not only a power of two. */
static inline uint64_t monarch_first_slot(uint64_t hash, uint64_t slots) {
    return (uint64_t)(((unsigned __int128)hash * slots) >> 64);
}

/* Returns the slot where probing starts in the index by path: the first slot of a cache line. So
 * most searches end in the line where they began. */
static inline uint64_t monarch_first_path_slot(uint64_t hash, uint64_t slots) {
    return monarch_first_slot(hash, slots) & ~3ULL;
}

/* Makes the `place` of a slot (struct monarch_slot). From the highest bit down: the last 8 bits of
 * the hash; 31 bits for the path's position in the pool, in units of 16 bytes; 25 bits for the
 * number of the entry + 1. From these positions, a look-up fetches the entry and the path into the
 * cache at the same time. */
#define MONARCH_TEXT_UNIT 16
static inline uint64_t monarch_slot_of(uint64_t hash, uint64_t text, uint64_t id) {
    return hash << 56 | text / MONARCH_TEXT_UNIT << 25 | (id + 1);
}
static inline uint64_t monarch_slot_id(uint64_t slot) { return (slot & 0x1FFFFFF) - 1; }
static inline uint64_t monarch_slot_text(uint64_t slot) {
    return (slot >> 25 & 0x7FFFFFFF) * MONARCH_TEXT_UNIT;
}

/* Makes the `copy` of a slot (struct monarch_slot): 0 if the entry is not PRESENT, otherwise its
 * word. In that word, bits 8 to 15 of the hash replace the state and the reason; `place` has bits 0
 * to 7 of the hash. So the library can begin to open the copy before the entry is in the
 * processor's cache. The value may be out of date, so the entry must be checked before the copy is
 * used. */
static inline uint64_t monarch_guess_of(uint64_t hash, uint64_t word) {
    return MONARCH_WORD_STATE(word) == MONARCH_PRESENT ? (word & ~255ULL) | (hash >> 8 & 255) : 0;
}

/* Makes a slot of the index by inode. The highest 7 bits are the last 7 bits of the hash, the
 * others are the number of the entry + 1. If the 7 bits match, a look-up compares the inode in the
 * entry. A slot of the index by copy has 32 bits of the hash, because monarch_find_dropped relies
 * on the hash alone. It cannot compare inodes: the entry of a removed copy may already have another
 * copy. */
static inline uint32_t monarch_inode_slot(uint64_t hash, uint64_t id) {
    return (uint32_t)(hash << 25 | (id + 1));
}

/* Returns the stamp of a copy in a tier whose copies are evicted. In the copy's mtime, the seconds
 * are the entry's number, and the nanoseconds are the stamp. So the mtime leads to the entry, and
 * the copy needs no slot in the index by copy. Slots of that index are never freed, so frequent
 * evictions would fill it. */
static inline uint64_t monarch_stamp(uint64_t salt, uint64_t id) {
    return monarch_mix(salt ^ monarch_mix(id + 1)) % 1000000000;
}

/* The `place` of an entry whose position in its directory is unknown, for example because a client
 * reported the file before the scan found it. */
#define MONARCH_NO_PLACE 0xFFFFFFFFU

/* Makes the value of a directory's listing: the index of the directory's first name in the
 * catalog's `names`, and the number of its names. A directory's names are consecutive in `names`,
 * in the order of the source's listing. If not all of them are known, or if the directory has
 * changed, the directory has 0 instead of a listing. */
static inline uint64_t monarch_listing(uint64_t first, uint64_t n) { return first << 32 | (n + 1); }
static inline uint64_t monarch_listing_first(uint64_t listing) { return listing >> 32; }
static inline uint64_t monarch_listing_length(uint64_t listing) {
    return (listing & 0xFFFFFFFF) - 1;
}

static inline uint64_t monarch_aligned(uint64_t n) { return (n + 127) / 128 * 128; }

/* Computes the positions of all parts of a catalog of this size. No other code computes them. */
static inline void monarch_lay_out(struct monarch_catalog *c, uint64_t capacity,
                                   uint64_t pool_bytes) {
    c->capacity = capacity;
    c->pool_bytes = pool_bytes;
    c->slots = capacity / 2 * 3 + 64;
    c->index_at = monarch_aligned(sizeof *c);
    c->inodes_at = c->index_at + c->slots * sizeof(struct monarch_slot);
    c->copies_at = monarch_aligned(c->inodes_at + c->slots * sizeof(uint32_t));
    c->entries_at = monarch_aligned(c->copies_at + c->slots * sizeof(uint64_t));
    c->names_at = c->entries_at + capacity * sizeof(struct monarch_entry);
    c->pool_at = monarch_aligned(c->names_at + capacity * sizeof(uint32_t));
    c->bytes = c->pool_at + monarch_aligned(pool_bytes);
}

static inline const struct monarch_entry *monarch_entries(const struct monarch_catalog *c) {
    return (const struct monarch_entry *)((const char *)c + c->entries_at);
}

/* Returns the catalog's `names`: the numbers of the entries in all listings, directory by
 * directory. */
static inline const uint32_t *monarch_names(const struct monarch_catalog *c) {
    return (const uint32_t *)((const char *)c + c->names_at);
}

static inline const char *monarch_pool(const struct monarch_catalog *c, uint64_t offset) {
    return (const char *)c + c->pool_at + offset;
}
#endif

/* Look-ups of entries. monarch_path_hash returns the `hash` of an entry with this path. Unless
 * their comments say otherwise, the other functions return the number of the entry, or -1 if there
 * is none. */
uint64_t monarch_path_hash(unsigned source, const char *path, size_t len);
int64_t monarch_find(const struct monarch_catalog *c, unsigned source, const char *path,
                     size_t len);
/* The two steps of monarch_find, for callers that do other work between them. monarch_prepare_find
 * prefetches what monarch_find_prepared reads, and returns the `hash` to pass to it. likely: the
 * result of monarch_guess, or -1 without a guess. */
uint64_t monarch_prepare_find(const struct monarch_catalog *c, unsigned source, const char *path,
                              size_t len);
int64_t monarch_find_prepared(const struct monarch_catalog *c, unsigned source, const char *path,
                              size_t len, uint64_t hash, int64_t likely);
/* Guesses from the hash alone which entry has the path. Call this between the two steps of
 * monarch_find. Returns the entry's number or -1, and prefetches what monarch_find_prepared reads.
 * If there is no entry or it has no copy, *word is 0. Otherwise *word is the entry's word, in which
 * only the tier and the copy's number are valid. */
int64_t monarch_guess(const struct monarch_catalog *c, uint64_t hash, uint64_t *word);
/* Finds an entry by the hash of its path, for callers that do not have the path itself. */
int64_t monarch_find_hash(const struct monarch_catalog *c, unsigned source, uint64_t hash);
int64_t monarch_find_inode(const struct monarch_catalog *c, unsigned source, uint64_t ino);

/* Counts the files of all sources by state and reason, and sums their sizes. `files` and `bytes`
 * have 256 numbers for each of MONARCH_MAX_SOURCES sources. The index among the 256 is a word's
 * lowest byte: state and reason. */
void monarch_catalog_count(const struct monarch_catalog *c, uint64_t *files, uint64_t *bytes);
int64_t monarch_find_copy(const struct monarch_catalog *c, unsigned tier, uint64_t ino);
/* Finds the entry of a copy by the copy's stamp. is_dropped = 1: the copy was removed from its
 * tier; its entry is found even if it has a new copy by now. */
int64_t monarch_find_stamped(const struct monarch_catalog *c, unsigned tier, uint64_t ino,
                             int64_t sec, int64_t nsec, int is_dropped);
/* Finds the entry of a removed copy that is still open: the last entry whose copy had this inode
 * number. While a copy is open, the kernel does not reuse its inode number. */
int64_t monarch_find_dropped(const struct monarch_catalog *c, unsigned tier, uint64_t ino);

/* The filter of changed files. monarch_mark_changed adds a file. monarch_is_changed returns 1 for
 * every changed file, and, by chance, for a few unchanged files. */
void monarch_mark_changed(struct monarch_clients *m, uint64_t dev, uint64_t ino);
int monarch_is_changed(const struct monarch_clients *m, uint64_t dev, uint64_t ino);
/* Like monarch_is_changed, but ignores the field `told`. Nonzero `told` announces changes that are
 * not in the filter yet, so monarch_is_changed then returns 1 for every file. The daemon itself
 * adds those changes to the filter, so it need not check `told`. */
int monarch_is_marked(const struct monarch_clients *m, uint64_t dev, uint64_t ino);
