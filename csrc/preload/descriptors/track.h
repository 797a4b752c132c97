/* Tracks the process's descriptors of source files that had no copy when they were opened.
 *
 * A table has one word for each descriptor number. The word is 0 if the descriptor is not tracked.
 * A call that the library does not see may close or replace a descriptor. So the library checks at
 * every use whether the word still describes the open file. */
#pragma once

#include "preload/session/session.h"

/* Only descriptors with numbers below this one are tracked. Reads of all other descriptors of
 * source files go to the source. */
#define MONARCH_TRACKED 65536

/* The fields of a descriptor's word:
 *
 *   bits 0 to 3    flags
 *   bits 4 to 8    number of the session
 *   bits 9 to 31   number of the open, which makes the words of two opens differ
 *   bits 32 to 57  number of the file's entry + 1
 *   bits 61 to 63  more flags
 *
 * Promotion means that the descriptor is made to refer to the copy (promote.h). */
#define TRACK_OFFSET 1ULL /* the descriptor's own offset was used: never promoted to the copy */
#define TRACK_SHARED 2ULL /* the descriptor was duplicated, or may have locks: never promoted */
/* A thread has pinned the descriptor. Any other thread that wants to change the descriptor or its
 * word waits until the descriptor is unpinned or refers to the copy. */
#define TRACK_PINNED 4ULL
/* A thread is about to call lseek for the descriptor. Other threads must not close or replace the
 * descriptor until the lseek is inside the kernel. The kernel then holds a reference to the open
 * file. */
#define TRACK_SEEKING 8ULL
/* The program's reads go to the source. After the program has read the whole file, the library
 * hands the descriptor over to the daemon, which makes the copy from the page cache
 * (handover.h). */
#define TRACK_DIRECT (1ULL << 62)
/* The descriptor was handed over to the daemon. */
#define TRACK_HANDED (1ULL << 63)
/* A fork has shared the open file with another process. */
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
/* Returns the number of the file's entry. With TRACK_DIRECT, the file may have no entry. The result
 * is then the number that monarch_unmet computes from the file's inode number. */
static inline uint64_t monarch_track_entry(uint64_t w) { return (w >> 32 & 0x3FFFFFF) - 1; }
/* Creates a page that the kernel fills with zeros in every forked child. By this page, a process
 * detects a fork that the library did not see. libc's daemon(3) and forkpty(3) make such forks.
 * Call this before the first descriptor is tracked. */
void monarch_track_mark(void);
/* Returns whether the table describes this process's descriptors. Returns 0 in a child of vfork: it
 * runs in its parent's memory, so the table describes the parent's descriptors. */
int monarch_track_is_mine(void);
/* Returns the pid of the process whose descriptors the table describes, or 0 if no descriptor was
 * tracked yet. A child of vfork gets its parent's pid, because no system call is made. */
uint32_t monarch_track_process(void);

/* Tracks `fd`, a descriptor of the source's file. entry: number of the file's entry. flags:
 * TRACK_DIRECT or 0. */
void monarch_track(struct session *s, int fd, uint64_t entry, uint64_t flags);
void monarch_track_again(int fd, int fresh); /* tracks a duplicate of `fd` */
/* Sets `flag` in the word of `fd`. Call this before the program's call that makes the flag
 * necessary. If a promotion of the descriptor has begun, first waits for its end. */
void monarch_track_flag_slow(int fd, uint64_t flag);
/* Replaces the descriptor's word by `to` if the word still equals `seen` and is not pinned. Returns
 * whether the word was replaced. A pinned word is not replaced, because the thread that has pinned
 * it expects to find it unchanged. */
int monarch_track_change(int fd, uint64_t seen, uint64_t to);
static inline void monarch_track_flag(int fd, uint64_t flag) {
    uint64_t w = monarch_tracked(fd);
    if (__builtin_expect(w && ((w & flag) != flag || (w & TRACK_PINNED)), 0))
        monarch_track_flag_slow(fd, flag);
}
/* Pins the descriptor, and blocks all signals until it is unpinned. Until then, other threads do
 * not change the word, unless the descriptor already refers to the copy. Without the block, a
 * signal handler might wait for the thread that it has interrupted. Returns 0 without pinning in
 * four cases: the table describes another process's descriptors; the descriptor is not tracked; the
 * descriptor is never promoted; or `expected` is not 0 and differs from the descriptor's word. */
struct monarch_pin {
    uint64_t word, signals;
};
int monarch_track_pin(int fd, uint64_t expected, struct monarch_pin *pin);
void monarch_track_unpin(int fd, const struct monarch_pin *pin, uint64_t word);

/* Calls lseek(fd, by, SEEK_CUR) if `fd` still refers to the open file that the word `tracked`
 * describes. Waits while other threads read from that open file. Threads that want to close or
 * replace the descriptor wait only until the lseek is inside the kernel. Returns the new offset, or
 * -1 if the offset was not moved, usually because the descriptor now refers to another open
 * file. */
long monarch_track_seek(int fd, uint64_t tracked, long by);

/* Stops tracking the descriptor. Call this before the descriptor is closed. If another thread has
 * begun a promotion, first waits for its end, which takes little time. */
void monarch_untrack_slow(int fd);
static inline void monarch_untrack(int fd) {
    if (__builtin_expect(monarch_tracked(fd) != 0, 0))
        monarch_untrack_slow(fd);
}
/* Removes the descriptor's word if the word still equals `seen`. Does not wait. */
void monarch_untrack_seen(int fd, uint64_t seen);
/* Stops tracking all descriptors of the session with this number. Call this before a new session
 * gets the same number. */
void monarch_untrack_session(unsigned number);
/* Call this in the child of a fork. Makes the inherited table describe the child's descriptors. */
void monarch_track_adopt(void);
/* Call this before a fork. Marks all tracked descriptors as shared, because the child will share
 * their offsets. */
void monarch_track_share_all(void);
void monarch_untrack_range(unsigned first, unsigned last);
