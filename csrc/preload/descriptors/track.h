/* Which of the process's descriptors are of source files whose copy was not there when they were
 * opened. A hint that is looked at again at every use: descriptors are closed and given away by
 * calls that we do not see. */
#ifndef MONARCH_TRACK_H
#define MONARCH_TRACK_H

#include "preload/session/session.h"

#define MONARCH_TRACKED 65536 /* descriptors; higher ones read the source */

/* One word each: flags | session << 4 | number of the open << 9 | entry + 1 << 32, 26 bits |
 * more flags. */
#define TRACK_OFFSET 1ULL /* used with its own offset: never replaced */
#define TRACK_SHARED 2ULL /* duplicated, or locks may hang on it: never replaced */
/* A thread relies on what it is: whoever changes that waits, until it is done or the number is a
 * copy's, which only the thread that holds it for a promotion makes of it. */
#define TRACK_HELD 4ULL
/* A thread is about to seek: the number must stay that file's until the kernel has the open file in
 * its hands. */
#define TRACK_SEEKING 8ULL
/* Its reads are the source's, and as soon as the whole file was read the descriptor is handed over
 * to the daemon (handover.h); */
#define TRACK_DIRECT (1ULL << 62)
/* that was done. */
#define TRACK_HANDED (1ULL << 63)
/* Another process has the open file as well. */
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
/* Of a descriptor that is direct it may be monarch_unmet: that of no entry. */
static inline uint64_t monarch_track_entry(uint64_t w) { return (w >> 32 & 0x3FFFFFF) - 1; }
/* Before anything is noted of a descriptor: makes the page by which a child of a fork that we do
 * not see (daemon, forkpty) knows that it is one. */
void monarch_track_mark(void);
/* Whether the process's descriptors are the ones meant: not so in a child of vfork, which runs in
 * its parent's memory. */
int monarch_track_is_mine(void);
/* The number of the process whose descriptors are meant, without a system call: a child of vfork
 * gets its parent's. 0 before anything was noted. */
uint32_t monarch_track_process(void);

/* `flags`: TRACK_DIRECT or 0. */
void monarch_track(struct session *s, int fd, uint64_t entry, uint64_t flags);
void monarch_track_again(int fd, int fresh); /* `fresh` is a duplicate of `fd` */
/* Before what the flag stands for is done: waits for a promotion that is under way. */
void monarch_track_flag_slow(int fd, uint64_t flag);
/* Replaces the word `seen` if it is still there. Never replaces a held word: its holder would not
 * find it again, and nobody else ends a hold. */
int monarch_track_change(int fd, uint64_t seen, uint64_t to);
static inline void monarch_track_flag(int fd, uint64_t flag) {
    uint64_t w = monarch_tracked(fd);
    if (__builtin_expect(w && ((w & flag) != flag || (w & TRACK_HELD)), 0))
        monarch_track_flag_slow(fd, flag);
}
/* Nobody else changes what is known of the descriptor until it is released; signals are blocked, so
 * that no handler waits for its own thread. 0: it is not tracked, not as `expected` if that is not
 * 0, or not by this process. */
struct monarch_held {
    uint64_t word, signals;
};
int monarch_track_hold(int fd, uint64_t expected, struct monarch_held *held);
void monarch_track_release(int fd, const struct monarch_held *held, uint64_t word);

/* lseek(fd, by, SEEK_CUR) of the open file that `tracked` tells of, which waits for other threads'
 * reads of it; whoever closes or replaces the number meanwhile does not. The new offset; -1: it was
 * not moved, mostly because the number is another open file's by now. */
long monarch_track_seek(int fd, uint64_t tracked, long by);

/* Before a close. Waits for a promotion of this descriptor in another thread, which ends soon. */
void monarch_untrack_slow(int fd);
static inline void monarch_untrack(int fd) {
    if (__builtin_expect(monarch_tracked(fd) != 0, 0))
        monarch_untrack_slow(fd);
}
/* The same of what `seen` tells of, if that is all that is known: without a wait, and another
 * thread's later word stays. */
void monarch_untrack_seen(int fd, uint64_t seen);
/* Forgets those of the session of this number, before another has it. */
void monarch_untrack_session(unsigned number);
/* In the child of a fork. */
void monarch_track_adopt(void);
/* Before a fork: the child will share the offsets of all that is open. */
void monarch_track_share_all(void);
void monarch_untrack_range(unsigned first, unsigned last);

#endif
