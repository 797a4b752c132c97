#include "preload/session/tell.h"

#include <errno.h>
#include <stddef.h>

#include "preload/process/apart.h"
#include "preload/process/log.h"
#include "preload/session/segments.h"
#include "shared/sys.h"

/* Maximum size [bytes] of the file `changes`. If the file has this size, the library instead tells
 * the daemon that every file may have changed. */
#define MOST_BYTES (16UL << 20)

struct told {
    struct monarch_change change;
    uint64_t mark; /* the value to store in the field `told` of struct monarch_clients */
    int has_no_number, is_done;
};
static_assert(sizeof(struct told) <= MONARCH_APART_BYTES,
              "monarch_run_apart must be able to copy struct told");

/* Opens a segment. Returns its descriptor, or -errno. Returns -EPERM if the segment has less than
 * `least` bytes, or if other users can access it. */
static int open_ours(const char *name, int flags, uint64_t least, struct told *t) {
    uint64_t size;
    int fd = monarch_open_segment(name, flags, &size);
    if (fd == -EMFILE)
        t->has_no_number = 1;
    if (fd < 0 || size >= least)
        return fd;
    sys_close(fd);
    return -EPERM;
}

static uint64_t word_at(int fd, uint64_t at) {
    uint64_t word = 0;
    return sys_pread(fd, &word, sizeof word, (long)at) == sizeof word ? word : 0;
}

#define HALF_AT(fd, field) ((uint32_t)word_at(fd, offsetof(struct monarch_control, field)))

/* Returns whether `control` is a descriptor of a serving daemon's segment `control`, and `dev` is
 * the device of one of the daemon's sources. */
static int is_of_source(int control, uint64_t dev) {
    if (word_at(control, 0) != MONARCH_MAGIC || HALF_AT(control, version) != MONARCH_VERSION ||
        HALF_AT(control, state) != MONARCH_SERVING)
        return 0;
    uint32_t sources = HALF_AT(control, sources);
    for (uint32_t i = 0; i < sources && i < MONARCH_MAX_SOURCES; i++)
        if (word_at(control, offsetof(struct monarch_control, source) +
                                 i * sizeof(struct monarch_source) +
                                 offsetof(struct monarch_source, dev)) == dev)
            return 1;
    return 0;
}

static int write_down(const struct told *t, int fd) {
    struct stat st;
    return sys_fstat(fd, &st) == 0 && (uint64_t)st.st_size < MOST_BYTES &&
           sys_write(fd, &t->change, sizeof t->change) == sizeof t->change;
}

static void tell(void *at) {
    struct told *t = at;
    t->has_no_number = 0;
    int control = open_ours("control", O_RDONLY, sizeof(struct monarch_control), t);
    int is_due = control >= 0 && is_of_source(control, t->change.dev);
    if (control >= 0)
        sys_close(control);
    int clients = is_due ? open_ours("clients", O_RDWR, sizeof(struct monarch_clients), t) : -1;
    if (clients < 0)
        return;
    int changes = open_ours("changes", O_RDWR | O_APPEND, sizeof t->change, t);
    if (t->has_no_number) {
        sys_close(clients);
        return;
    }
    if (changes < 0 || !write_down(t, changes))
        t->mark = MONARCH_CHANGE_UNKNOWN;
    if (changes >= 0)
        sys_close(changes);
    long n = sys_pwrite(clients, &t->mark, sizeof t->mark, offsetof(struct monarch_clients, told));
    t->is_done = n == sizeof t->mark;
    sys_close(clients);
}

int monarch_tell_change(const struct stat *st, int is_tree) {
    struct told t = {.change = {st->st_dev, st->st_ino, (uint64_t)is_tree}};
    t.mark = (monarch_now_ns() << 8 | ((uint64_t)sys6(SYS_gettid, 0, 0, 0, 0, 0, 0) & 255)) << 1;
    tell(&t);
    if (t.has_no_number)
        monarch_run_apart(tell, &t, sizeof t);
    if (t.is_done)
        monarch_log("recorded a change without mapping the session's segments", NULL, NULL);
    return t.is_done;
}
