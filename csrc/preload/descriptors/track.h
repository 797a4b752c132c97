/* Tracks the process's descriptors of source files that had no copy when they were opened.
 *
 * The table is a hint and is checked at every use: descriptors are closed and given away by calls
 * that we do not see. */
#pragma once

#include "preload/session/session.h"

#define MONARCH_TRACKED 65536 /* descriptors that can be tracked; higher ones read the source */

/* A descriptor's word: flags | session << 4 | number of the open << 9 | entry + 1 << 32, 26 bits |
 * more flags. */
#define TRACK_OFFSET 1ULL /* used with its own offset: never promoted to the copy */
#define TRACK_SHARED 2ULL /* duplicated, or may have locks: never promoted either */
/* A thread has pinned the descriptor, because it relies on the descriptor's staying as it is.
 * Another thread that is about to change the descriptor waits until it is unpinned or has become a
 * copy's. Only the thread that has pinned it can make it a copy's. */
#define TRACK_PINNED 4ULL
/* A thread is about to seek. The descriptor must not be closed or replaced until the kernel holds a
 * reference to the open file for that call. */
#define TRACK_SEEKING 8ULL
/* Reads go to the source. As soon as the whole file was read, the descriptor is handed over to the
 * daemon (handover.h). */
#define TRACK_DIRECT (1ULL << 62)
/* The descriptor was handed over. */
#define TRACK_HANDED (1ULL << 63)
/* Another process shares the open file. */
#define TRACK_FORKED (1ULL << 61)
#define TRACK_FLAGS (15ULL | TRACK_DIRECT | TRACK_HANDED | TRACK_FORKED)

extern uint64_t monarch_track_table[MONARCH_TRACKED] __attribute__((visibility("hidden")));

static inline uint64_t monarch_tracked(int fd) {
    return (unsigned)fd < MONARCH_TRACKED
               ? __atomic_load_n(&monarch_track_table[fd], __ATOMIC_ACQUIRE)
               : 0;
}
static inline struct session *monarch_track_session(uint64_t w) {
    return monarch_session_at(w >> 4 & 31);
}
/* Returns the entry's number. For a direct descriptor, that may be a number of monarch_unmet, which
 * no entry has. */
static inline uint64_t monarch_track_entry(uint64_t w) { return (w >> 32 & 0x3FFFFFF) - 1; }
/* Called before anything is noted of a descriptor: creates the page by which a process finds that
 * it is the child of a fork that we did not see (daemon, forkpty). */
void monarch_track_mark(void);
/* Whether the table is about this process's descriptors. In a child of vfork, which runs in its
 * parent's memory, it is about the parent's. */
int monarch_track_is_mine(void);
/* Returns the pid of the process that the table is about, or 0 before anything was noted. It makes
 * no system call, so a child of vfork gets its parent's pid. */
uint32_t monarch_track_process(void);

/* Tracks a descriptor of the entry's file at the source. `flags`: TRACK_DIRECT or 0. */
void monarch_track(struct session *s, int fd, uint64_t entry, uint64_t flags);
void monarch_track_again(int fd, int fresh); /* tracks a duplicate of `fd` */
/* Called before the program does what the flag stands for: sets the flag, after a promotion that is
 * under way has ended. */
void monarch_track_flag_slow(int fd, uint64_t flag);
/* Replaces the descriptor's word by `to` if it still is `seen`. Returns whether it has replaced the
 * word. A pinned word is never replaced: the thread that has pinned it would not find its word
 * again, and nobody else unpins it. */
int monarch_track_change(int fd, uint64_t seen, uint64_t to);
static inline void monarch_track_flag(int fd, uint64_t flag) {
    uint64_t w = monarch_tracked(fd);
    if (__builtin_expect(w && ((w & flag) != flag || (w & TRACK_PINNED)), 0))
        monarch_track_flag_slow(fd, flag);
}
/* Pins the descriptor: until it is unpinned, nobody else changes its word, and signals are blocked,
 * so that no handler waits for its own thread. Returns 0 if the descriptor is not tracked, if it is
 * one that is never promoted, if its word is not `expected` (unless `expected` is 0), or if the
 * table is another process's. */
struct monarch_pin {
    uint64_t word, signals;
};
int monarch_track_pin(int fd, uint64_t expected, struct monarch_pin *pin);
void monarch_track_unpin(int fd, const struct monarch_pin *pin, uint64_t word);

/* Does lseek(fd, by, SEEK_CUR) on the open file to which the word `tracked` refers. The call waits
 * for other threads' reads of that open file, but a thread that closes or replaces the descriptor
 * meanwhile does not wait for the call. Returns the new offset, or -1 if the offset was not moved,
 * usually because the descriptor refers to another open file by now. */
long monarch_track_seek(int fd, uint64_t tracked, long by);

/* Called before a close: forgets the descriptor, after a promotion in another thread has ended,
 * which takes little time. */
void monarch_untrack_slow(int fd);
static inline void monarch_untrack(int fd) {
    if (__builtin_expect(monarch_tracked(fd) != 0, 0))
        monarch_untrack_slow(fd);
}
/* Removes the descriptor's word if it still is `seen`. It does not wait, and a later word of
 * another thread stays. */
void monarch_untrack_seen(int fd, uint64_t seen);
/* Forgets the descriptors of the session with this number, before another session gets the
 * number. */
void monarch_untrack_session(unsigned number);
/* Called in the child of a fork: makes the table this process's own. */
void monarch_track_adopt(void);
/* Called before a fork: marks all descriptors as shared, because the child will share their
 * offsets. */
void monarch_track_share_all(void);
void monarch_untrack_range(unsigned first, unsigned last);
