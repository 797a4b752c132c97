/* A stand-in for the table of mappings: it only records what the interposed calls report to the
 * table. */
#include "preload/mappings/mappings.h"
#include "shared/sys.h"

static struct said {
    uint64_t at, n;
    int what, was_mapped;
} said[8];
static int times, refusals[2];
static void say(const void *at, uint64_t n, int what) {
    unsigned char page;
    int is_mapped = sys6(SYS_mincore, (long)at, 1, (long)&page, 0, 0, 0) == 0;
    said[times++ % 8] = (struct said){(uint64_t)at, n, what, is_mapped};
}
static void refuse(int is) { refusals[is]++; }
#define monarch_mappings_say(at, n, what) say(at, n, what)
#define monarch_mappings_refuse(is) refuse(is)
#include "preload/calls/remap.c"

#include "made.h"

#define AT(at) ((void *)(at))

/* If `is` is 1, the library behaves as with an older libc, which lacks some functions. */
EXPORT void remap_lacks(int is) {
    monarch_real.pkey_mprotect = monarch_real.mlock2 = is ? AT(1) : NULL;
}
EXPORT void remap_forget(void) { times = refusals[0] = refusals[1] = 0; }
/* Writes to `out` what the interposed calls have reported to the table of mappings. Each record has
 * four numbers: address, length, what was reported (an advice, or -1 for FORGET), and whether the
 * address was mapped at that time. Returns the number of records. */
EXPORT int remap_said(int64_t *out) {
    for (int i = 0; i < times && i < 8; i++) {
        out[4 * i] = (int64_t)said[i].at;
        out[4 * i + 1] = (int64_t)said[i].n;
        out[4 * i + 2] = said[i].what;
        out[4 * i + 3] = said[i].was_mapped;
    }
    return times;
}
EXPORT int remap_refusals(int is) { return refusals[is]; }
/* The functions below return -errno if their system call fails. */
static int64_t of(int64_t r) { return r < 0 ? -errno : r; }
EXPORT int64_t remap_munmap(uint64_t at, uint64_t n) { return of(munmap(AT(at), n)); }
EXPORT int64_t remap_mremap(uint64_t at, uint64_t n, uint64_t more, int flags, uint64_t to) {
    return of((int64_t)mremap(AT(at), n, more, flags, AT(to)));
}
EXPORT int64_t remap_mprotect(uint64_t at, uint64_t n, int prot) {
    return of(mprotect(AT(at), n, prot));
}
EXPORT int64_t remap_pkey_mprotect(uint64_t at, uint64_t n, int prot, int key) {
    return of(pkey_mprotect(AT(at), n, prot, key));
}
EXPORT int64_t remap_madvise(uint64_t at, uint64_t n, int advice) {
    return of(madvise(AT(at), n, advice));
}
/* Unlike the other calls, posix_madvise returns an errno and does not set errno. */
EXPORT int64_t remap_posix_madvise(uint64_t at, uint64_t n, int advice) {
    return posix_madvise(AT(at), n, advice);
}
EXPORT int64_t remap_mlock(uint64_t at, uint64_t n) { return of(mlock(AT(at), n)); }
EXPORT int64_t remap_mlock2(uint64_t at, uint64_t n, unsigned flags) {
    return of(mlock2(AT(at), n, flags));
}
EXPORT int64_t remap_mlockall(int flags) { return of(mlockall(flags)); }
EXPORT int64_t remap_munlockall(void) { return of(munlockall()); }
EXPORT int64_t remap_remap_file_pages(uint64_t at, uint64_t n, int prot, uint64_t page, int flags) {
    return of(remap_file_pages(AT(at), n, prot, page, flags));
}
