/* For the stress programs: files whose bytes are computed from the file's number, and checks that
 * end the program at the first error. No function here allocates memory, because forked children of
 * a process with many threads also call these functions. */
#ifndef STRESS_H
#define STRESS_H

#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "shared/catalog.h"

#define DIRECTORIES 40
#define PATH_BYTES 512
#define LARGEST (3 << 19) /* more bytes than the engine copies at once */

__attribute__((noreturn, format(printf, 1, 2))) static inline void die(const char *format, ...) {
    char line[1024] = "stress: ";
    int error = errno, n = 8;
    va_list args;
    va_start(args, format);
    n += vsnprintf(line + n, sizeof line - 80, format, args);
    va_end(args);
    n = n > (int)sizeof line - 80 ? (int)sizeof line - 80 : n;
    n += snprintf(line + n, sizeof line - (size_t)n, " (errno %d)\n", error);
    if (write(2, line, (size_t)n) < 0)
        _exit(3);
    _exit(1);
}

#define CHECK(ok)                                                    \
    do {                                                             \
        if (!(ok))                                                   \
            die("%s:%d: check failed: %s", __FILE__, __LINE__, #ok); \
    } while (0)

static inline uint64_t random_of(uint64_t *state) {
    *state += 0x9E3779B97F4A7C15ULL;
    return monarch_mix(*state);
}

static inline uint64_t below(uint64_t *state, uint64_t n) { return random_of(state) % n; }

/* --- what is in a file ------------------------------------------------------------------------ */

static inline uint64_t size_of(unsigned k) {
    if (k % 500 == 7)
        return LARGEST + k % 1000;
    if (k % 41 == 5)
        return 100000 + k % 1000;
    return k % 50 == 3 ? 0 : 1 + k * 61 % 2000;
}

static inline uint64_t word_at(unsigned k, unsigned version, uint64_t i) {
    return monarch_mix(monarch_mix(((uint64_t)version << 32 | k) + 1) + i);
}

static inline void make_bytes(unsigned k, unsigned version, uint64_t at, char *out, uint64_t n) {
    for (uint64_t i = at; i < at + n;) {
        uint64_t word = word_at(k, version, i / 8), left = at + n - i, in_word = 8 - i % 8;
        uint64_t count = left < in_word ? left : in_word;
        memcpy(out + (i - at), (const char *)&word + i % 8, count);
        i += count;
    }
}

/* Checks that `got` contains the `n` bytes of file `k` from offset `at` on. Compares with memcmp,
 * because the sanitizer checks the complete range of a memcmp in one step. If a loop compared the
 * bytes, the sanitizer's checks would take most of the program's time. */
static inline void check_bytes(unsigned k, unsigned version, uint64_t at, const char *got,
                               uint64_t n) {
    char right[1024];
    for (uint64_t done = 0; done < n;) {
        uint64_t count = n - done < sizeof right ? n - done : sizeof right;
        make_bytes(k, version, at + done, right, count);
        if (memcmp(got + done, right, count) != 0)
            die("file %u of version %u: another byte behind %llu", k, version,
                (unsigned long long)(at + done));
        done += count;
    }
}

static inline const char *name_of(unsigned k, char *out) {
    snprintf(out, PATH_BYTES, "d%02u/f%05u", k % DIRECTORIES, k);
    return out;
}

static inline void write_all(int fd, unsigned k, unsigned version) {
    char buffer[8192];
    for (uint64_t at = 0, size = size_of(k); at < size;) {
        uint64_t n = size - at < sizeof buffer ? size - at : sizeof buffer;
        make_bytes(k, version, at, buffer, n);
        CHECK(write(fd, buffer, n) == (ssize_t)n);
        at += n;
    }
}

/* Makes directories dNN, a link lNN to each, and the files [first, first + count). A file gets its
 * name only when it is complete, because other programs may read it at any time. */
static inline void make_files(const char *root, unsigned first, unsigned count) {
    char path[PATH_BYTES], young[PATH_BYTES], name[PATH_BYTES];
    for (unsigned d = 0; d < DIRECTORIES; d++) {
        snprintf(path, sizeof path, "%s/d%02u", root, d);
        CHECK(mkdir(path, 0755) == 0 || errno == EEXIST);
        snprintf(path, sizeof path, "%s/l%02u", root, d);
        snprintf(name, sizeof name, "d%02u", d);
        CHECK(symlink(name, path) == 0 || errno == EEXIST);
    }
    snprintf(young, sizeof young, "%s.young", root);
    for (unsigned k = first; k < first + count; k++) {
        int fd = open(young, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0644);
        CHECK(fd >= 0);
        write_all(fd, k, 0);
        CHECK(close(fd) == 0);
        CHECK(snprintf(path, sizeof path, "%s/%s", root, name_of(k, name)) < (int)sizeof path);
        CHECK(rename(young, path) == 0);
    }
}

#endif
