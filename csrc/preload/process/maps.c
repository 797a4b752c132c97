#include "preload/process/maps.h"

#include "preload/process/proc.h"

struct line {
    uint64_t begin, end, offset;
    struct monarch_mapped file;
    char perms[4];
};

/* Reads a number and the character after it. Returns 0 if that character is not `end`. */
static int number(struct monarch_reader *r, unsigned base, char end, uint64_t *out) {
    *out = 0;
    for (;;) {
        char c = monarch_reader_next(r);
        unsigned digit = c >= 'a' ? (unsigned)(c - 'a') + 10 : (unsigned)(c - '0');
        if (c == end)
            return 1;
        if (digit >= base)
            return 0;
        *out = *out * base + digit;
    }
}

static int read_line(struct monarch_reader *r, struct line *l) {
    char c;
    if (!number(r, 16, '-', &l->begin) || !number(r, 16, ' ', &l->end))
        return 0;
    for (int i = 0; i < 4; i++)
        l->perms[i] = monarch_reader_next(r);
    if (monarch_reader_next(r) != ' ' || !number(r, 16, ' ', &l->offset) ||
        !number(r, 16, ':', &l->file.major) || !number(r, 16, ' ', &l->file.minor))
        return 0;
    l->file.ino = 0;
    while ((c = monarch_reader_next(r)) >= '0' && c <= '9')
        l->file.ino = l->file.ino * 10 + (unsigned)(c - '0');
    while (c && c != '\n')
        c = monarch_reader_next(r);
    return c == '\n';
}

#define MAPS "/proc/self/maps"

int monarch_mapped_file(uint64_t at, struct monarch_mapped *out) {
    struct monarch_reader r;
    struct line l;
    int found = 0;
    if (!monarch_reader_open(&r, MAPS))
        return 0;
    while (!found && read_line(&r, &l) && l.begin <= at)
        found = at < l.end && l.file.ino != 0;
    monarch_reader_close(&r);
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
    struct monarch_reader r;
    struct line l;
    /* The lines that were read so far show the wanted mapping up to this address. One line may
     * show several mappings, because the kernel merges adjacent mappings. */
    uint64_t upto = begin;
    if (!monarch_reader_open(&r, MAPS))
        return 0;
    while (upto < end && read_line(&r, &l)) {
        if (l.end <= upto)
            continue;
        if (l.begin > upto || !is_same(&l, file, shared) ||
            l.offset + (upto - l.begin) != offset + (upto - begin))
            break;
        upto = l.end;
    }
    monarch_reader_close(&r);
    return upto >= end;
}
