#define _GNU_SOURCE
#include "proc.h"

#include <dirent.h>
#include <errno.h>

#include "sys.h"

int monarch_reader_open(struct monarch_reader *r, const char *path) {
    r->have = r->at = 0;
    r->fd = sys_openat(AT_FDCWD, path, O_RDONLY | O_CLOEXEC);
    return r->fd >= 0;
}

void monarch_reader_close(const struct monarch_reader *r) { sys_close(r->fd); }

char monarch_reader_next(struct monarch_reader *r) {
    if (r->at == r->have) {
        do
            r->have = sys_read(r->fd, r->buf, sizeof r->buf);
        while (r->have == -EINTR);
        r->at = 0;
        if (r->have <= 0) {
            r->have = 0;
            return 0;
        }
    }
    return r->buf[r->at++];
}

void monarch_for_descriptors(void (*act)(int fd, void *data), void *data) {
    char names[1024] __attribute__((aligned(8)));
    long n;
    int list = sys_openat(AT_FDCWD, "/proc/self/fd", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    while (list >= 0 && (n = sys6(SYS_getdents64, list, (long)names, sizeof names, 0, 0, 0)) > 0)
        for (long at = 0; at < n;) {
            const struct dirent *e = (const void *)(names + at);
            int fd = 0;
            at += e->d_reclen;
            for (const char *digit = e->d_name; *digit >= '0' && *digit <= '9'; digit++)
                fd = fd * 10 + (*digit - '0');
            if (e->d_name[0] != '.' && fd != list)
                act(fd, data);
        }
    if (list >= 0)
        sys_close(list);
}
