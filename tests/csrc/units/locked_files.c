/* For these tests, the process's locks are examined after each close of a descriptor, and each
 * reading of the clock advances the clock by a second. */
#include <stdint.h>

#include "shared/sys.h"

static int watch(int fd);
static uint64_t second(void);
static void take_round(void);
#define sys_close(fd) watch(fd)
#define monarch_now_ns() second()
#define sys_relax(n) take_round()
#include "preload/descriptors/locked_files.c"
#undef sys_close
#undef monarch_now_ns

#include "made.h"

/* Stores in `out` the type, start and length of the POSIX locks that the kernel reports for `fd`.
 * Returns how many there are. */
EXPORT int locked_ranges(int fd, int64_t *out) {
    static struct saved_locks h;
    h.count = 0;
    h.but = -1;
    sys_fstat(fd, &h.file);
    read_locks_of(fd, &h);
    for (unsigned i = 0; i < h.count; i++) {
        out[3 * i] = h.range[i].lock.l_type;
        out[3 * i + 1] = h.range[i].lock.l_start;
        out[3 * i + 2] = h.range[i].lock.l_len;
    }
    return (int)h.count;
}
EXPORT void locked_note(int fd) {
    struct stat st;
    sys_fstat(fd, &st);
    monarch_note_locks(st.st_dev, st.st_ino);
}
EXPORT int locked_has(uint64_t dev, uint64_t ino) { return monarch_has_locks(dev, ino); }
EXPORT void locked_note_file(uint64_t dev, uint64_t ino) { monarch_note_locks(dev, ino); }
EXPORT void locked_forget(void) { memset(locked, 0, sizeof locked); }

/* watcher: a descriptor of the file. After each close, `watch` asks through this descriptor whether
 * the file's first byte could be locked for writing. moments: number of closes. free_moments:
 * closes after which the byte could be locked. open_to_signals: closes after which a signal was not
 * blocked. unannounced: closes after which `under_way` did not show exactly one closing. */
static int watcher = -1;
static int moments, free_moments, open_to_signals, unannounced;
static int watch(int fd) {
    int r = sys_close(fd);
    if (watcher < 0)
        return r;
    struct flock lock = {.l_type = F_WRLCK, .l_whence = SEEK_SET, .l_len = 1};
    sys_fcntl(watcher, F_OFD_GETLK, (long)&lock);
    uint64_t blocked = 0;
    sys6(SYS_rt_sigprocmask, SIG_BLOCK, 0, (long)&blocked, sizeof blocked, 0, 0);
    moments++;
    free_moments += lock.l_type == F_UNLCK;
    open_to_signals += !(blocked >> (SIGUSR1 - 1) & 1);
    unannounced += count_of(under_way, (uint32_t)sys_getpid()) != 1;
    return r;
}
EXPORT void locked_close(int fd, int kept, int watched_by) {
    watcher = watched_by;
    moments = free_moments = open_to_signals = unannounced = 0;
    monarch_close_unseen(fd, kept);
    watcher = -1;
}
EXPORT int locked_moments(void) { return moments; }
EXPORT int locked_free_moments(void) { return free_moments; }
EXPORT int locked_open_to_signals(void) { return open_to_signals; }
EXPORT int locked_unannounced(void) { return unannounced; }

static uint64_t seconds;
static int rounds, ends_in_round;
static uint64_t second(void) { return ++seconds * 1000000000; }
static void take_round(void) {
    if (++rounds == ends_in_round)
        count(0);
}
/* From now on, makes it seem that `closings` closings of the process `pid` (0: this process) are
 * under way. One of them ends in round `round` of a wait; if `round` is 0, none ends. */
EXPORT void locked_under_way(uint32_t pid, uint32_t closings, int round) {
    under_way = (uint64_t)(pid ? pid : (uint32_t)sys_getpid()) << 32 | closings;
    rounds = 0;
    ends_in_round = round;
}
EXPORT int locked_count_of(void) { return (int)(uint32_t)under_way; }
/* Begins a closing (more = 1) or ends one (more = 0). Returns the number of closings that are then
 * under way. */
EXPORT int locked_count(int more) {
    if (more)
        begin_closing();
    else
        count(0);
    return (int)count_of(under_way, (uint32_t)sys_getpid());
}
/* Waits until no closing is under way, as a lock call does. Returns n, the number of rounds, or
 * -1 - n if the wait was given up. Stores in *closings how many closings have begun. */
EXPORT int locked_await(uint32_t *closings) {
    rounds = 0;
    return monarch_await_closings(closings) ? rounds : -1 - rounds;
}
EXPORT int locked_has_closed_since(uint32_t closings) { return monarch_has_closed_since(closings); }
