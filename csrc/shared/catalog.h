/* What the daemon and the preload library share, laid out once: Python reads this header too.
 *
 * Four kinds of segment lie in a session's directory (DIR = <shm>/monarch-<uid>/<key>):
 *   DIR/control     written by the daemon: who serves, which sources and tiers there are
 *   DIR/catalog.N   written by the daemon: every known file; growth publishes N + 1
 *   DIR/fills       written by the daemon: which parts of unfinished copies can be read
 *   DIR/clients     written by the clients: what they want, what they changed, what they counted
 * All of them are allocated in full before they are published: a hole of a tmpfs mapping is a
 * SIGBUS in the reader's process once /dev/shm is full.
 */
#ifndef MONARCH_CATALOG_H
#define MONARCH_CATALOG_H

#ifndef MONARCH_CDEF
#include <assert.h>
#include <stddef.h>
#include <stdint.h>
#endif

#define MONARCH_MAGIC 0x686372616e6f4dULL /* "Monarch" */
#define MONARCH_VERSION 25
#define MONARCH_MAX_SOURCES 16
#define MONARCH_MAX_TIERS 16
#define MONARCH_MAX_GROUPS 65537 /* NGROUPS_MAX and the effective one */
#define MONARCH_SOURCE_PATH 1024 /* longest path of a source, with the NUL [bytes] */
#define MONARCH_TIER_PATH 240    /* longest path of a tier's copies, with '/' and NUL [bytes] */
#define MONARCH_COPY_NAME 13     /* a copy's number in hexadecimal, zero-padded [digits] */

/* Entries that have a want bit: 16 Mi files. Files beyond it are served by the source. */
#define MONARCH_MAX_FILES 16777216
/* What a slot of the index can name: entries of all kinds, and bytes of the pool. */
#define MONARCH_MAX_ENTRIES 33554431
#define MONARCH_MAX_POOL 34359738368
/* Bits of the changed filter, of which a file has two. 100,000 changed files make one in 7,000 of
 * the others look changed too, which costs it its copy and nothing else. */
#define MONARCH_FILTER_BITS 16777216
/* A bit of the coarse filter stands for this many of the filter. It is small enough (8 KiB) to stay
 * in a core's first cache, so that a file that nobody changed costs no miss in the large one. */
#define MONARCH_FILTER_COARSE 256
/* Catalogs are mapped at multiples of this, so that their pages may be huge ones [bytes]. */
#define MONARCH_HUGE_PAGE 2097152
#define MONARCH_SCAN_HINTS 64
#define MONARCH_SCAN_HINT_PATH 1004
#define MONARCH_STAT_SLOTS 64
#define MONARCH_LOOKS 16384    /* at directories; two that share a place look more often */
#define MONARCH_MAX_PEERS 4096 /* nodes of a session */
#define MONARCH_ASKED 2        /* of them, whom a fill asks before the source */
#define MONARCH_RANKS 128      /* of one node that are told apart, and 0 for everybody else */

/* Files that programs read at their source: two that share a place forget the first. */
#define MONARCH_CLAIMS 65536

/* A copy that is being filled can be read in units of this: small enough that a reader has its
 * first bytes soon, large enough that the source's latency is paid for [bytes]. */
#define MONARCH_UNIT 262144
#define MONARCH_FILL_SLOTS 256   /* copies that are being filled at a time */
#define MONARCH_FILL_UNITS 65536 /* in the map of one; a larger file has larger units */
#define MONARCH_DEMANDS 256      /* readers that wait at a time; others read the source */
#define MONARCH_SHARES 10000     /* `fill_after` counts in parts of this */

enum monarch_session_state { MONARCH_STARTING, MONARCH_SERVING, MONARCH_CLOSED };
/* OTHER: a socket, a pipe, a device, a mount point. It has a name in listings, and the source says
 * everything else of it. */
enum monarch_kind { MONARCH_FILE, MONARCH_DIR, MONARCH_LINK, MONARCH_OTHER };

/* An entry's word: state | reason << 4 | tier << 8 | copy << 12. One word, so that one load sees
 * a consistent answer. Copy numbers are never reused, not by a later daemon either. */
enum monarch_state {
    MONARCH_ABSENT,
    MONARCH_WANTED,
    MONARCH_FILLING,
    MONARCH_PRESENT,
    MONARCH_BYPASS
};
enum monarch_reason {
    MONARCH_NO_REASON,
    MONARCH_NO_ROOM,     /* fits into no tier */
    MONARCH_EXCLUDED,    /* by pattern or size */
    MONARCH_CHANGED,     /* written, renamed or removed during the session */
    MONARCH_FAILED,      /* the source or every tier returned an error */
    MONARCH_UNSUPPORTED, /* attributes that the catalog cannot hold */
};

/* Of an entry. OWN, OF_OTHERS: where nodes share, this node fills the file from the source, or from
 * another node; neither as long as that is not decided. */
enum monarch_flag {
    MONARCH_ATTRIBUTES = 1, /* of statx(2) (immutable, compressed, ...), which the catalog lacks */
    MONARCH_OWN = 2,
    MONARCH_OF_OTHERS = 4,
};

/* What statfs(2) says of a source, field by field. */
struct monarch_filesystem {
    int64_t type, bsize, frsize, namelen, flags;
    uint64_t blocks, bfree, bavail, files, ffree;
    int32_t fsid[2];
    /* What statx(2) says of all its files alike: the mount, the attributes that could be set, and
     * which fields are filled, without and with the birth time asked for. */
    uint64_t mount, attributes_mask;
    uint32_t statx_mask[2];
};

struct monarch_source {
    uint64_t dev, ino; /* of the root directory; another one there means another namespace */
    uint64_t up_ino;   /* that its listing gives to ".." */
    struct monarch_filesystem filesystem;
    uint32_t path_len, alias_len;
    char path[MONARCH_SOURCE_PATH];  /* resolved, no trailing slash */
    char alias[MONARCH_SOURCE_PATH]; /* as the configuration spells it, if that is another way */
};

struct monarch_tier {
    uint64_t dev, ino; /* of the directory of copies */
    uint32_t path_len, usable;
    char path[MONARCH_TIER_PATH]; /* ends with a slash */
};

struct monarch_control {
    uint64_t magic;
    uint32_t version;
    uint32_t state; /* enum monarch_session_state */
    uint32_t pid;
    uint32_t off; /* an administrator's switch file exists */
    uint64_t heartbeat;
    uint64_t generation; /* of the catalog; 0: none yet */
    uint32_t scanned;    /* every source has been scanned once */
    uint32_t sources, tiers;
    uint32_t owner; /* user id */
    uint64_t block_bytes;
    uint64_t mounts;       /* inode of the daemon's mount name space; 0: unknown */
    uint32_t fill_on_open; /* who opens a file wants its copy */
    uint32_t fill_after;   /* once this share of it was asked for, of MONARCH_SHARES */
    /* A file without a copy, no larger than this, is read by its program at the source; then the
     * daemon makes the copy through the program's descriptor [bytes]. 0: no file is. */
    uint64_t handed_bytes;
    uint32_t promote_mappings;
    /* Whether the catalog answers for names and attributes; else the source is asked each time,
     * also whether a file is still what its copy is. */
    uint32_t metadata_cached;
    uint32_t follow_opens;     /* atomic: the daemon wants to know what is opened */
    uint32_t follow_reads;     /* the daemon wants to know what is read to its end */
    uint32_t reads_everything; /* the daemon may read files whatever their modes say */
    /* Atomic: a bit for each source whose small files come sooner than a wait for a copy ends: they
     * lie on a local disk, or in the page cache. */
    uint32_t fast_sources;
    uint32_t
        judged_sources; /* atomic: a bit for each of which fills have shown whether it is one */
    /* Atomic: a bit for each source of whose files the kernel keeps no pages: what a program has
     * read, the daemon would have to read again. */
    uint32_t pageless_sources;
    uint32_t shares; /* nodes share the files: MONARCH_OWN, MONARCH_OF_OTHERS */
    uint64_t users;  /* inode of its name space of users */
    /* Attributes of files are told for as long as this after the directories were last compared
     * with the source [ns of CLOCK_MONOTONIC]. */
    uint64_t revalidate_ns;
    uint64_t compared_ns; /* atomic; 0: not yet */
    struct monarch_source source[MONARCH_MAX_SOURCES];
    struct monarch_tier tier[MONARCH_MAX_TIERS];
    char switch_file[2][MONARCH_TIER_PATH];
    uint32_t groups; /* of the daemon */
    uint32_t group[MONARCH_MAX_GROUPS];
};

/* Of the index by path. `place` names the entry and its path, `copy` the copy that is there, if
 * any: see monarch_slot_of and monarch_guess_of. */
struct monarch_slot {
    uint64_t place, copy; /* atomic; 0: none */
};

/* The first cache line is all that an open needs. */
struct monarch_entry {
    uint64_t hash; /* XXH3-64 of the relative path, mixed with the source's number */
    uint64_t path; /* offset in the pool; NUL-terminated */
    uint64_t word; /* atomic */
    uint64_t ino;
    uint64_t size;
    /* A link: offset of its target in the pool. A directory: its listing, see monarch_listing. */
    uint64_t copy_ino;
    /* XXH3-64 of the copy's block sums, once PRESENT. A directory: how many names the
     * scan found in it + 1, and from monarch_catalog_list on their listing; 0: not all are known,
     * or it changed meanwhile. */
    uint64_t sum;
    uint16_t path_len;
    uint8_t source;
    uint8_t kind;     /* enum monarch_kind */
    uint16_t blksize; /* of 512 bytes */
    uint16_t flags;

    int64_t mtime_ns;
    int64_t ctime_ns, atime_ns, btime_ns; /* btime 0: unknown */
    uint64_t blocks;                      /* of 512 bytes */
    uint32_t mode, uid, gid, nlink;
    uint32_t place;   /* among the names of its directory, as the source lists them */
    uint32_t version; /* atomic: odd while the attributes are being replaced */
};

struct monarch_catalog {
    uint64_t magic;
    uint64_t generation;
    uint64_t bytes;    /* of the whole segment */
    uint64_t capacity; /* entries */
    uint64_t count;    /* atomic: entries that readers may look at */
    uint64_t slots;    /* of each of the three indexes */
    uint64_t pool_bytes, pool_used;
    uint64_t index_at, inodes_at, copies_at, entries_at, names_at, pool_at; /* offsets */
    uint64_t inodes_used, copies_used; /* slots of these indexes; none is ever given back */
    uint64_t stamped;  /* number + 1 of the tier whose copies are stamped; 0: none */
    uint64_t evicting; /* a bit for each tier of which those are that this daemon has made */
    uint64_t salt; /* of the stamps: another in every daemon, whose entries have other numbers */
};

/* A path that a client opened and the catalog does not know. A hint: losing one costs speed. */
struct monarch_scan_hint {
    uint64_t ticket; /* atomic: number << 2 | 0 free, 1 being written, 2 ready */
    uint32_t source;
    uint32_t path_len;
    char path[MONARCH_SCAN_HINT_PATH];
    uint32_t is_part; /* less of it was read than is worth a copy */
};

/* A copy that is being filled. `done` has a bit for every unit that can be read from the copy; it
 * belongs to the copy that the slot's word names before and after it was read. */
struct monarch_fill {
    uint64_t unit_bytes;
    uint64_t failed; /* atomic: no more units will come */
    uint64_t whole;  /* atomic: all are there, and belong together: the source has not changed */
    uint64_t done[MONARCH_FILL_UNITS / 64];
};

struct monarch_fills {
    uint64_t magic;
    uint64_t units;     /* atomic: filled so far; a sign of life */
    uint64_t source_ns; /* atomic: when a source last gave something [ns of CLOCK_MONOTONIC] */
    uint64_t word[MONARCH_FILL_SLOTS]; /* atomic: the entry's, while it is FILLING; 0: free */
    struct monarch_fill fill[MONARCH_FILL_SLOTS];
};

struct monarch_stats {
    uint64_t hits, misses; /* opens of files that had a copy, and that had none */
    uint64_t bytes_from_tier, bytes_from_source; /* sizes of the files opened */
    uint64_t waits, wait_ns;                     /* reads that waited for a fill, and how long */
    uint64_t fallbacks;                          /* of those, reads that the source answered */
    uint64_t promotions;                         /* descriptors and mappings moved to the copy */
    uint64_t bytes_while_filling;                /* read from copies that were not complete */
    uint64_t metadata_hits;                      /* names and attributes told by the catalog */
    /* What programs read at the sources themselves, see monarch_count_source [bytes]. */
    uint64_t source_bytes_read_by_programs;
    uint64_t source_opens, source_open_ns; /* of their files there, and how long these took */
    uint64_t unused[3];                    /* to two cache lines */
};

/* Where the bytes of a fill come from; there are threads for each. Those that wait for a peer never
 * keep one that reads the source from it: else two nodes that fill from each other could both be
 * waiting. */
enum monarch_way { MONARCH_FROM_SOURCE, MONARCH_FROM_PEER, MONARCH_WAYS };

/* On which the copying threads of one way sleep. Whoever has made work for them adds 1 to the futex
 * and then, if any sleep, wakes one: it wakes the next if it leaves work to it. */
struct monarch_bell {
    uint32_t rings;    /* futex */
    uint32_t sleeping; /* atomic: threads that wait on it, or are about to */
};

/* Sizes of the files that the processes of one rank have opened, and of those among them that had
 * no copy and were to get one. */
struct monarch_rank {
    uint64_t opened_bytes, missed_bytes;
    uint64_t unused[6]; /* to a cache line */
};

/* A bit for each file, and above it one for each word of bits: the daemon finds the few that are
 * set among 16 Mi without reading them all. */
struct monarch_bits {
    uint64_t summary[MONARCH_MAX_FILES / 64 / 64]; /* atomic */
    uint64_t word[MONARCH_MAX_FILES / 64];         /* atomic */
};

/* A change by a process that has no room to map the segments, in the session's file `changes`. */
struct monarch_change {
    uint64_t dev, ino;
    uint64_t is_tree; /* of a directory with all that is below it */
};
/* In `told`, by who could not write one down: any file may have changed. */
#define MONARCH_CHANGE_UNKNOWN UINT64_MAX

/* A program has read a file, and hands its descriptor over: a datagram with the descriptor to one
 * of the session's sockets `handovers.0` ..., by the number of the file (the kernel holds 10 for
 * each). A hint, like the scan hints. Of a file that has an entry, it ends before `source`; else
 * with the path's NUL. */
#define MONARCH_HANDOVER_SOCKETS 16
struct monarch_handover {
    uint64_t id;      /* of the entry, or monarch_unmet */
    uint32_t is_read; /* all of it, just now */
    uint32_t source;
    uint32_t path_len;
    char path[MONARCH_SCAN_HINT_PATH];
};

struct monarch_clients {
    uint64_t magic;
    uint32_t doorbell; /* futex: rung when there is work for the daemon */
    uint32_t sleeping; /* the daemon waits on the doorbell */
    uint64_t changes;  /* marks made in the filter, counted after each */
    uint64_t renames;  /* renames of directories */
    uint64_t scan_hints;
    /* Rung when a unit is demanded, both: a client does not know whence the file comes. */
    struct monarch_bell engine[MONARCH_WAYS];
    /* The daemon's signs of life when a reader gave up on it, 0 if none did: as long as they are
     * the same, no process waits for it. */
    uint64_t silent_at;
    uint64_t stale; /* a client asked for attributes that were compared too long ago */
    /* Atomic. When a client last saw at the source that a directory is what its listing was made
     * of: number of the entry + 1, 25 bits | ticks of CLOCK_MONOTONIC, see metadata.c. */
    uint64_t look[MONARCH_LOOKS];
    /* Units that readers wait for: entry + 1 and the reader's rank in the upper half, unit and a
     * tag in the lower, which is a futex. The daemon sets it to 0 when the answer is there. A hint,
     * like the scan hints: the bitmaps are the truth, and nobody waits for a client that was
     * killed. */
    uint64_t demand[MONARCH_DEMANDS];
    /* By entry, see monarch_claim_of: a program reads the file at the source, so that nobody need
     * fill it ahead. */
    uint64_t claim[MONARCH_CLAIMS];
    struct monarch_stats stats[MONARCH_STAT_SLOTS];
    struct monarch_rank rank[MONARCH_RANKS];
    struct monarch_scan_hint scan_hint[MONARCH_SCAN_HINTS];
    struct monarch_bits wanted;
    struct monarch_bits opened; /* since the daemon looked, if it follows opens */
    struct monarch_bits read;   /* to their end, by who found no copy; if it follows reads */
    /* Atomic. Not 0: the daemon has still to take in what was written to `changes`, and until then
     * every file counts as changed. Each writer puts another number here, by which the daemon sees
     * that one more has come. */
    uint64_t told;
    uint64_t unused[7]; /* to a cache line: it is read at each open */
    uint64_t changed[MONARCH_FILTER_BITS / 64];
    uint64_t changed_coarse[MONARCH_FILTER_BITS / MONARCH_FILTER_COARSE / 64];
};

#ifndef MONARCH_CDEF
/* A file's time as entries have it [ns]. A file system may tell one that 64 bits do not hold. */
static inline int64_t monarch_time_ns(int64_t s, int64_t ns) {
    return (int64_t)((uint64_t)s * 1000000000 + (uint64_t)ns);
}

static_assert(sizeof(struct monarch_entry) == 128, "two cache lines; bump MONARCH_VERSION");
static_assert(sizeof(struct monarch_slot) == 16, "four to a cache line; bump MONARCH_VERSION");
static_assert(sizeof(struct monarch_stats) == 128, "bump MONARCH_VERSION");
static_assert(sizeof(struct monarch_scan_hint) == 1024, "bump MONARCH_VERSION");
static_assert(sizeof(struct monarch_rank) == 64, "bump MONARCH_VERSION");
static_assert(MONARCH_MAX_ENTRIES == (1 << 25) - 1 && MONARCH_RANKS == 1 << 7,
              "both are in the upper half of a demand");

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

/* Sets a file's bit. Returns whether anything was new to the daemon. The summary comes second, and
 * the daemon clears it first, so that it never hides a bit for long; it is mended where a client
 * was killed between the two. */
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

/* A finaliser that spreads inode numbers and source numbers over 64 bits. */
static inline uint64_t monarch_mix(uint64_t v) {
    v = (v ^ (v >> 32)) * 0xD6E8FEB86659FD93ULL;
    v = (v ^ (v >> 32)) * 0xD6E8FEB86659FD93ULL;
    return v ^ (v >> 32);
}

/* The units of a file: the largest are blocks. A file that has more of them than a map has bits is
 * not read before it is complete. */
static inline uint64_t monarch_unit_of(uint64_t size, uint64_t block) {
    uint64_t unit = block % MONARCH_UNIT ? block : MONARCH_UNIT;
    while (unit < block && (size + unit - 1) / unit > MONARCH_FILL_UNITS)
        unit = block % (unit * 2) ? block : unit * 2;
    return unit;
}

/* A demand: the tag makes one differ from an earlier one for the same unit. Never 0. */
static inline uint64_t monarch_demand(uint64_t entry, uint64_t unit, uint32_t tag, unsigned rank) {
    return (uint64_t)rank << 57 | (entry + 1) << 32 | unit << 12 | (tag & 0xFFF) | 1;
}
static inline uint64_t monarch_demand_entry(uint64_t demand) {
    return (demand >> 32 & MONARCH_MAX_ENTRIES) - 1;
}
static inline unsigned monarch_demand_rank(uint64_t demand) { return (unsigned)(demand >> 57); }
static inline uint64_t monarch_demand_unit(uint64_t demand) { return demand >> 12 & 0xFFFFF; }

/* A claim: number of the entry + 1 << 32 | whether its descriptor was handed over << 31 | whether
 * the daemon is to close that now << 30 | when, in ticks of some ms. It ends by itself after a
 * second, whatever became of the program; one whose descriptor was handed over ends when the daemon
 * has closed that. */
#define MONARCH_CLAIM_HANDED (1ULL << 31)
#define MONARCH_CLAIM_RECALLED (1ULL << 30)
#define MONARCH_CLAIM_TICK 20 /* 1 << so many ns */
#define MONARCH_CLAIM_TICKS 1000
static inline uint64_t monarch_claim_of(uint64_t id, uint64_t flag, uint64_t now_ns) {
    return (id + 1) << 32 | flag | (now_ns >> MONARCH_CLAIM_TICK & (MONARCH_CLAIM_RECALLED - 1));
}
static inline int monarch_claim_names(uint64_t claim, uint64_t id) { return claim >> 32 == id + 1; }
static inline int monarch_claim_holds(uint64_t claim, uint64_t now_ns) {
    uint64_t now = now_ns >> MONARCH_CLAIM_TICK;
    return claim && ((now - claim) & (MONARCH_CLAIM_RECALLED - 1)) < MONARCH_CLAIM_TICKS;
}
/* The number of a file that has no entry yet, by its inode; beyond those of all entries. Two files
 * may have the same. */
static inline uint64_t monarch_unmet(uint64_t ino) {
    return MONARCH_MAX_ENTRIES + 1 + ino % (MONARCH_MAX_ENTRIES - 1);
}
static inline int monarch_is_unmet(uint64_t id) { return id > MONARCH_MAX_ENTRIES; }

/* Of a file: 0 for none. */
static inline uint64_t *monarch_claim_at(struct monarch_clients *m, uint64_t id) {
    return &m->claim[id % MONARCH_CLAIMS];
}

/* The two bits of a file in the changed filter. */
static inline uint64_t monarch_filter_bit(uint64_t dev, uint64_t ino) {
    return monarch_mix(ino ^ monarch_mix(dev)) % MONARCH_FILTER_BITS;
}
static inline uint64_t monarch_filter_second(uint64_t dev, uint64_t ino) {
    return monarch_mix(ino ^ monarch_mix(dev)) / MONARCH_FILTER_BITS % MONARCH_FILTER_BITS;
}

/* Where a hash's probing starts: its upper bits choose, so that an index can have any length. */
static inline uint64_t monarch_first_slot(uint64_t hash, uint64_t slots) {
    return (uint64_t)(((unsigned __int128)hash * slots) >> 64);
}

/* The same in the index by path: the first slot of a cache line, so that most searches end in the
 * line that they began in. */
static inline uint64_t monarch_first_path_slot(uint64_t hash, uint64_t slots) {
    return monarch_first_slot(hash, slots) & ~3ULL;
}

/* A slot's place: the hash's last 8 bits | place of the path in the pool, in units of 16 bytes, 31
 * bits | number of the entry + 1, 25 bits. It names both places that a look-up reads next, so that
 * the two cache misses are one wait. */
#define MONARCH_TEXT_UNIT 16
static inline uint64_t monarch_slot_of(uint64_t hash, uint64_t text, uint64_t id) {
    return hash << 56 | text / MONARCH_TEXT_UNIT << 25 | (id + 1);
}
static inline uint64_t monarch_slot_id(uint64_t slot) { return (slot & 0x1FFFFFF) - 1; }
static inline uint64_t monarch_slot_text(uint64_t slot) {
    return (slot >> 25 & 0x7FFFFFFF) * MONARCH_TEXT_UNIT;
}

/* A slot's copy: the entry's word while it is PRESENT, with the next 8 bits of the hash instead of
 * state and reason; else 0. It says what to open before the entry is there to be read, and nothing
 * more: whoever opens it looks into the entry before he uses it. */
static inline uint64_t monarch_guess_of(uint64_t hash, uint64_t word) {
    return MONARCH_WORD_STATE(word) == MONARCH_PRESENT ? (word & ~255ULL) | (hash >> 8 & 255) : 0;
}

/* A slot of the index by inode: the hash's last 7 bits | number of the entry + 1. What it leads to
 * is compared. The one by copy has 32 bits of the hash: an entry may have another copy since. */
static inline uint32_t monarch_inode_slot(uint64_t hash, uint64_t id) {
    return (uint32_t)(hash << 25 | (id + 1));
}

/* Where copies come and go all the time they have no place in the index of copies, which is never
 * emptied. Such a copy tells its entry by its own time of modification: the seconds are the entry's
 * number, the nanoseconds this. */
static inline uint64_t monarch_stamp(uint64_t salt, uint64_t id) {
    return monarch_mix(salt ^ monarch_mix(id + 1)) % 1000000000;
}

/* A file whose place in its directory is not known: found by a client after the scan. */
#define MONARCH_NO_PLACE 0xFFFFFFFFU

/* A directory's listing: where its names begin among the catalog's `names`, and how many there are,
 * in the order in which the source lists them. 0 for a directory that has none: it is not complete,
 * or not what it was. */
static inline uint64_t monarch_listing(uint64_t first, uint64_t n) { return first << 32 | (n + 1); }
static inline uint64_t monarch_listing_first(uint64_t listing) { return listing >> 32; }
static inline uint64_t monarch_listing_length(uint64_t listing) {
    return (listing & 0xFFFFFFFF) - 1;
}

static inline uint64_t monarch_aligned(uint64_t n) { return (n + 127) / 128 * 128; }

/* Where everything lies in a catalog of this size: the one layout that there is. */
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

/* Numbers of entries, directory by directory. */
static inline const uint32_t *monarch_names(const struct monarch_catalog *c) {
    return (const uint32_t *)((const char *)c + c->names_at);
}

static inline const char *monarch_pool(const struct monarch_catalog *c, uint64_t offset) {
    return (const char *)c + c->pool_at + offset;
}
#endif

/* Looking up; all return the entry's number or -1. */
uint64_t monarch_path_hash(unsigned source, const char *path, size_t len);
int64_t monarch_find(const struct monarch_catalog *c, unsigned source, const char *path,
                     size_t len);
/* The same in two steps, with other work between them: the first asks for the memory that the
 * second reads, with the hash that it returns. */
uint64_t monarch_prepare_find(const struct monarch_catalog *c, unsigned source, const char *path,
                              size_t len);
int64_t monarch_find_prepared(const struct monarch_catalog *c, unsigned source, const char *path,
                              size_t len, uint64_t hash, int64_t likely);
/* In between, for `likely`, which is -1 without it: the entry that has likely this path, or -1, and
 * in *word its copy's, of which only tier and copy count; 0 if it has none. It asks for the memory
 * that monarch_find_prepared reads. */
int64_t monarch_guess(const struct monarch_catalog *c, uint64_t hash, uint64_t *word);
/* A file by its hash alone, for who has no path of it. */
int64_t monarch_find_hash(const struct monarch_catalog *c, unsigned source, uint64_t hash);
int64_t monarch_find_inode(const struct monarch_catalog *c, unsigned source, uint64_t ino);
int64_t monarch_find_copy(const struct monarch_catalog *c, unsigned tier, uint64_t ino);
/* The same by the stamp of the copy; is_dropped: it has no name any more. */
int64_t monarch_find_stamped(const struct monarch_catalog *c, unsigned tier, uint64_t ino,
                             int64_t sec, int64_t nsec, int is_dropped);
/* Of a copy that was dropped: whoever has it open keeps its inode's number from being given again,
 * so that the last copy which had it is meant. */
int64_t monarch_find_dropped(const struct monarch_catalog *c, unsigned tier, uint64_t ino);

/* The changed filter: says "changed" of everything that was, and of a few that were not. */
void monarch_mark_changed(struct monarch_clients *m, uint64_t dev, uint64_t ino);
int monarch_is_changed(const struct monarch_clients *m, uint64_t dev, uint64_t ino);
/* For the daemon, who has taken in what was told: whether it is marked. */
int monarch_is_marked(const struct monarch_clients *m, uint64_t dev, uint64_t ino);

#endif
