/* System calls without libc. On failure, these functions return -errno, or NULL if they return a
 * pointer. They do not change errno, are no cancellation points, and never call an interposed
 * function. */
#pragma once

#include <fcntl.h>
#include <stdint.h>
#include <sys/auxv.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <time.h>

#include "shared/clock.h"

/* Definitions for headers older than Linux 5.9 and glibc 2.34. */
#ifndef CLOSE_RANGE_CLOEXEC
#define CLOSE_RANGE_UNSHARE 2
#define CLOSE_RANGE_CLOEXEC 4
#endif
#ifndef SYS_close_range
#define SYS_close_range 436
#endif

#if defined(__x86_64__)
static inline long sys6(long n, long a, long b, long c, long d, long e, long f) {
    long ret;
    register long r10 __asm__("r10") = d, r8 __asm__("r8") = e, r9 __asm__("r9") = f;
    __asm__ volatile("syscall"
                     : "=a"(ret)
                     : "a"(n), "D"(a), "S"(b), "d"(c), "r"(r10), "r"(r8), "r"(r9)
                     : "rcx", "r11", "memory");
    return ret;
}
#elif defined(__aarch64__)
static inline long sys6(long n, long a, long b, long c, long d, long e, long f) {
    register long x8 __asm__("x8") = n, x0 __asm__("x0") = a, x1 __asm__("x1") = b,
                     x2 __asm__("x2") = c, x3 __asm__("x3") = d, x4 __asm__("x4") = e,
                     x5 __asm__("x5") = f;
    __asm__ volatile("svc 0"
                     : "+r"(x0)
                     : "r"(x8), "r"(x1), "r"(x2), "r"(x3), "r"(x4), "r"(x5)
                     : "memory");
    return x0;
}
#else
#error "Monarch runs on x86-64 and aarch64"
#endif

static inline int sys_openat(int dir, const char *path, int flags) {
    return (int)sys6(SYS_openat, dir, (long)path, flags, 0, 0, 0);
}
static inline int sys_close(int fd) { return (int)sys6(SYS_close, fd, 0, 0, 0, 0, 0); }
static inline int sys_fstat(int fd, struct stat *st) {
    return (int)sys6(SYS_fstat, fd, (long)st, 0, 0, 0, 0);
}
static inline int sys_fstatat(int dir, const char *path, struct stat *st, int flags) {
    return (int)sys6(SYS_newfstatat, dir, (long)path, (long)st, flags, 0, 0);
}
static inline long sys_getcwd(char *buf, unsigned long n) {
    return sys6(SYS_getcwd, (long)buf, (long)n, 0, 0, 0, 0);
}
static inline long sys_readlink(const char *path, char *buf, unsigned long n) {
    return sys6(SYS_readlinkat, AT_FDCWD, (long)path, (long)buf, (long)n, 0, 0);
}
/* Returns whether the result of mmap or mremap is an address rather than an error. */
static inline int is_address(long r) { return r >= 0 || r < -4095; }
static inline void *sys_map(int fd, unsigned long n, int prot) {
    long p = sys6(SYS_mmap, 0, (long)n, prot, MAP_SHARED, fd, 0);
    return p < 0 && p > -4096 ? 0 : (void *)p;
}
/* Maps private zeroed memory. */
static inline void *sys_new_pages(unsigned long n) {
    long p = sys6(SYS_mmap, 0, (long)n, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    return p < 0 && p > -4096 ? 0 : (void *)p;
}
/* Maps the file over the addresses [at, at + n), which this process has already mapped. fd = -1:
 * maps zeroed pages, which are allocated only when they are touched. */
static inline void *sys_map_over(void *at, int fd, unsigned long n, int prot) {
    int flags = fd < 0 ? MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE : MAP_SHARED;
    long p = sys6(SYS_mmap, (long)at, (long)n, prot, flags | MAP_FIXED, fd, 0);
    return p < 0 && p > -4096 ? 0 : (void *)p;
}
/* Maps like sys_map, at a multiple of `align` (a power of two). Reserves an address range first, so
 * that no other mapping is overwritten. If the reservation fails, maps at any address. */
static inline void *sys_map_aligned(int fd, unsigned long n, int prot, unsigned long align) {
    unsigned long room = n + align, page = getauxval(AT_PAGESZ);
    long p = sys6(SYS_mmap, 0, (long)room, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE,
                  -1, 0);
    if (p < 0 && p > -4096)
        return sys_map(fd, n, prot);
    unsigned long at = ((unsigned long)p + align - 1) & ~(align - 1);
    unsigned long end = (at + n + page - 1) & ~(page - 1), limit = (unsigned long)p + room;
    long r = sys6(SYS_mmap, (long)at, (long)n, prot, MAP_SHARED | MAP_FIXED, fd, 0);
    if (at > (unsigned long)p)
        sys6(SYS_munmap, p, (long)(at - (unsigned long)p), 0, 0, 0, 0);
    if (limit > end)
        sys6(SYS_munmap, (long)end, (long)(limit - end), 0, 0, 0, 0);
    if (r >= 0 || r <= -4096)
        return (void *)at;
    sys6(SYS_munmap, (long)at, (long)(end - at), 0, 0, 0, 0);
    return 0;
}
#ifdef __SANITIZE_THREAD__
/* Makes the range inaccessible instead of unmapping it. ThreadSanitizer does not see direct system
 * calls. If a later mapping got the same addresses, ThreadSanitizer would report accesses to the
 * two mappings as races. */
static inline void sys_unmap(const void *p, unsigned long n) {
    sys_map_over((void *)p, -1, n, PROT_NONE);
}
#else
static inline void sys_unmap(const void *p, unsigned long n) {
    sys6(SYS_munmap, (long)p, (long)n, 0, 0, 0, 0);
}
#endif
/* Returns a page of memory (of the machine's page size, at least 4096 bytes). In every forked
 * child, the kernel fills this page with zeros, whichever call made the child. So if a process has
 * written to the page and now finds zeros, it is such a child. Exception: a child of vfork shares
 * its parent's page, which stays as it is. Returns NULL before Linux 4.14. */
static inline void *sys_new_wiped_page(void) {
    const int wipe_on_fork = 18; /* MADV_WIPEONFORK: undefined in older headers */
    void *p = sys_new_pages(4096);
    if (!p || sys6(SYS_madvise, (long)p, 4096, wipe_on_fork, 0, 0, 0) == 0)
        return p;
    sys_unmap(p, 4096);
    return 0;
}
static inline long sys_write(int fd, const void *buf, unsigned long n) {
    return sys6(SYS_write, fd, (long)buf, (long)n, 0, 0, 0);
}
static inline long sys_read(int fd, void *buf, unsigned long n) {
    return sys6(SYS_read, fd, (long)buf, (long)n, 0, 0, 0);
}
static inline long sys_pread(int fd, void *buf, unsigned long n, long at) {
    return sys6(SYS_pread64, fd, (long)buf, (long)n, at, 0, 0);
}
static inline long sys_pwrite(int fd, const void *buf, unsigned long n, long at) {
    return sys6(SYS_pwrite64, fd, (long)buf, (long)n, at, 0, 0);
}
static inline long sys_lseek(int fd, long offset, int whence) {
    return sys6(SYS_lseek, fd, offset, whence, 0, 0, 0);
}
static inline int sys_fcntl(int fd, int command, long arg) {
    return (int)sys6(SYS_fcntl, fd, command, arg, 0, 0, 0);
}
/* The signal with which libc's setuid interrupts every thread. A thread that creates another thread
 * must not block this signal, or a deadlock is possible. The creating thread may wait for a lock
 * that setuid holds in another thread. Meanwhile, setuid waits until the creating thread handles
 * the signal. */
#define SIGSETXID 33
#define MOST_SIGNALS (~(1ULL << (SIGSETXID - 1)))
/* Changes the blocked signals as sigprocmask(2) does. Returns the set that was blocked before. */
static inline uint64_t sys_signals(int how, uint64_t set) {
    uint64_t old = 0;
    sys6(SYS_rt_sigprocmask, how, (long)&set, (long)&old, sizeof set, 0, 0);
    return old;
}
static inline int sys_getpid(void) { return (int)sys6(SYS_getpid, 0, 0, 0, 0, 0, 0); }
/* Sleeps for `ns`, which is less than a second. */
static inline void sys_nap(long ns) {
    struct timespec t = {0, ns};
    sys6(SYS_nanosleep, (long)&t, 0, 0, 0, 0, 0);
}

/* Waits a moment for another thread. Call this in a loop with n = 0, 1, 2, ..., for a wait of
 * microseconds. The first calls yield the processor. Later calls sleep, because a yield does not
 * let threads of lower real-time priority run. */
static inline void sys_relax(unsigned n) {
    struct timespec nap = {0, n < 96 ? 50000 : 1000000};
    if (n < 32)
        sys6(SYS_sched_yield, 0, 0, 0, 0, 0, 0);
    else
        sys6(SYS_nanosleep, (long)&nap, 0, 0, 0, 0, 0);
}
/* Sleeps while *word is `seen`, for at most `ns` (less than a second). */
static inline void sys_futex_wait(const uint32_t *word, uint32_t seen, long ns) {
    struct timespec limit = {0, ns};
    sys6(SYS_futex, (long)word, 0 /* FUTEX_WAIT */, seen, (long)&limit, 0, 0);
}
static inline void sys_futex_wake(uint32_t *word) {
    sys6(SYS_futex, (long)word, 1 /* FUTEX_WAKE */, 1, 0, 0, 0);
}
