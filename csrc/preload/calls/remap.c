/* Interposed calls that remove or change mappings.
 *
 * The library may be about to replace a mapping of a source's file by a mapping of the file's copy
 * (mappings.h). Each call first ensures that no mapping in the range is being replaced. Most calls
 * also ensure that none will be replaced later. If the program's call then fails, the only effect
 * is that these mappings stay on the source. */
#include <stdarg.h>
#include <sys/mman.h>

#include "preload/mappings/mappings.h"
#include "preload/process/calls.h"
#include "shared/sys.h"

PUBLIC int munmap(void *at, size_t n) {
    monarch_mappings_say(at, n, MONARCH_FORGET);
    return REAL(munmap)(at, n);
}

PUBLIC void *mremap(void *at, size_t n, size_t wanted, int flags, ...) {
    va_list args;
    va_start(args, flags);
    /* if the caller passes no fifth argument, the value of `to` is arbitrary and unused */
    void *to = va_arg(args, void *);
    va_end(args);
    monarch_mappings_say(at, n, MONARCH_FORGET);
    if (flags & MREMAP_FIXED)
        monarch_mappings_say(to, wanted, MONARCH_FORGET);
    return REAL(mremap)(at, n, wanted, flags, to);
}

/* All mappings that wait for their copies have the protection PROT_READ. So a call that sets
 * PROT_READ does not change these mappings. */
PUBLIC int mprotect(void *at, size_t n, int prot) {
    if (prot != PROT_READ)
        monarch_mappings_say(at, n, MONARCH_FORGET);
    return REAL(mprotect)(at, n, prot);
}

/* glibc has had pkey_mprotect and mlock2 since version 2.27. */
PUBLIC int pkey_mprotect(void *at, size_t n, int prot, int key) {
    if (prot != PROT_READ || key != -1)
        monarch_mappings_say(at, n, MONARCH_FORGET);
    if (REAL(pkey_mprotect))
        return REAL(pkey_mprotect)(at, n, prot, key);
    if (key == -1)
        return REAL(mprotect)(at, n, prot);
    return (int)monarch_result(sys6(SYS_pkey_mprotect, (long)at, (long)n, prot, key, 0, 0));
}

#ifndef MADV_COLD
#define MADV_COLD 20
#define MADV_PAGEOUT 21
#endif
#ifndef MADV_POPULATE_READ
#define MADV_POPULATE_READ 22
#endif

/* Call this before madvise. Advice about the order of the program's reads is stored. If a mapping
 * of the copy later replaces this mapping, the library repeats the advice for the new mapping.
 * Advice that takes effect at once need not be repeated. After any other advice, the mapping is
 * never replaced, because the library does not know the effect of the advice. */
static void advised(void *at, size_t n, int advice) {
    if (advice == MADV_WILLNEED || advice == MADV_DONTNEED || advice == MADV_COLD ||
        advice == MADV_PAGEOUT || advice == MADV_POPULATE_READ)
        return;
    int is_kept = advice == MADV_NORMAL || advice == MADV_RANDOM || advice == MADV_SEQUENTIAL;
    monarch_mappings_say(at, n, is_kept ? advice : MONARCH_FORGET);
}

PUBLIC int madvise(void *at, size_t n, int advice) {
    advised(at, n, advice);
    return REAL(madvise)(at, n, advice);
}

/* The values of `advice` are the same for posix_madvise and madvise. */
PUBLIC int posix_madvise(void *at, size_t n, int advice) {
    advised(at, n, advice);
    return REAL(posix_madvise)(at, n, advice);
}

/* Mappings in this range stay on the source: a mapping of the copy that replaced one of them would
 * not be locked in memory. */
PUBLIC int mlock(const void *at, size_t n) {
    monarch_mappings_say(at, n, MONARCH_FORGET);
    return REAL(mlock)(at, n);
}

PUBLIC int mlock2(const void *at, size_t n, unsigned flags) {
    monarch_mappings_say(at, n, MONARCH_FORGET);
    if (REAL(mlock2))
        return REAL(mlock2)(at, n, flags);
    return flags ? (int)monarch_result(sys6(SYS_mlock2, (long)at, (long)n, (long)flags, 0, 0, 0))
                 : REAL(mlock)(at, n);
}

PUBLIC int mlockall(int flags) {
    monarch_mappings_refuse(1);
    return REAL(mlockall)(flags);
}

PUBLIC int munlockall(void) {
    int r = REAL(munlockall)();
    monarch_mappings_refuse(0);
    return r;
}

PUBLIC int remap_file_pages(void *at, size_t n, int prot, size_t page, int flags) {
    monarch_mappings_say(at, n, MONARCH_FORGET);
    return REAL(remap_file_pages)(at, n, prot, page, flags);
}
