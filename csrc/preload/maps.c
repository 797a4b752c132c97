#define _GNU_SOURCE
#include "maps.h"

#include "sys.h"

struct reader {
    int fd;
    long have, at;
    char buf[2048]; /* the thread that reads has a small stack */
};

struct line {
    uint64_t begin, end, offset;
    struct monarch_mapped file;
    char perms[4];
};

/* The next character; 0 at the end. Long lines need no room this way. */
static char next(struct reader *r) {
    if (r->at == r->have) {
        do
            r->have = sys_read(r->fd, r->buf, sizeof r->buf);
        while (r->have == -4 /* EINTR */);
        r->at = 0;
        if (r->have <= 0) {
            r->have = 0;
            return 0;
        }
    }
    return r->buf[r->at++];
}

/* A number and the one character behind it, which must be `end`. */
static int number(struct reader *r, unsigned base, char end, uint64_t *out) {
    *out = 0;
    for (;;) {
        char c = next(r);
        unsigned digit = c >= 'a' ? (unsigned)(c - 'a') + 10 : (unsigned)(c - '0');
        if (c == end)
            return 1;
        if (digit >= base)
            return 0;
        *out = *out * base + digit;
    }
}

static int read_line(struct reader *r, struct line *l) {
    char c;
    if (!number(r, 16, '-', &l->begin) || !number(r, 16, ' ', &l->end))
        return 0;
    for (int i = 0; i < 4; i++)
        l->perms[i] = next(r);
    if (next(r) != ' ' || !number(r, 16, ' ', &l->offset) || !number(r, 16, ':', &l->file.major) ||
        !number(r, 16, ' ', &l->file.minor))
        return 0;
    l->file.ino = 0;
    while ((c = next(r)) >= '0' && c <= '9')
        l->file.ino = l->file.ino * 10 + (unsigned)(c - '0');
    while (c && c != '\n')
        c = next(r);
    return c == '\n';
}

static int open_maps(struct reader *r) {
    r->have = r->at = 0;
    r->fd = sys_openat(AT_FDCWD, "/proc/self/maps", O_RDONLY | O_CLOEXEC);
    return r->fd >= 0;
}

int monarch_mapped_file(uint64_t at, struct monarch_mapped *out) {
    struct reader r;
    struct line l;
    int found = 0;
    if (!open_maps(&r))
        return 0;
    while (!found && read_line(&r, &l) && l.begin <= at)
        found = at < l.end && l.file.ino != 0;
    sys_close(r.fd);
    if (found)
        *out = l.file;
    return found;
}

static int is_same(const struct line *l, const struct monarch_mapped *file, int shared) {
    return l->perms[0] == 'r' && l->perms[1] == '-' && l->perms[2] == '-' &&
           l->perms[3] == (shared ? 's' : 'p') && l->file.ino == file->ino &&
           l->file.major == file->major && l->file.minor == file->minor;
}

int monarch_is_mapped(uint64_t begin, uint64_t end, const struct monarch_mapped *file,
                      uint64_t offset, int shared) {
    struct reader r;
    struct line l;
    uint64_t upto = begin; /* what is right so far; neighbours of one file may be one line */
    if (!open_maps(&r))
        return 0;
    while (upto < end && read_line(&r, &l)) {
        if (l.end <= upto)
            continue;
        if (l.begin > upto || !is_same(&l, file, shared) ||
            l.offset + (upto - l.begin) != offset + (upto - begin))
            break;
        upto = l.end;
    }
    sys_close(r.fd);
    return upto >= end;
}
