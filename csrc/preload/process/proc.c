#include "preload/process/proc.h"

#include <dirent.h>
#include <errno.h>

#include "preload/process/text.h"
#include "shared/path.h"
#include "shared/sys.h"

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

/* Calls act(number, data) for each entry of the open directory `list` whose name is a number, and
 * closes the directory. Returns whether all entries were listed. of_descriptors: 1 if the numbers
 * are descriptors. In that case, `act` is not called for the descriptor `list` itself. If `list`
 * is not among the entries, the directory shows the descriptors of another thread's table, and the
 * result is 0. */
static int for_numbers(int list, int of_descriptors, void (*act)(int number, void *data),
                       void *data) {
    char names[1024] __attribute__((aligned(8)));
    long n = -1;
    int is_met = !of_descriptors;
    while (list >= 0 && (n = sys6(SYS_getdents64, list, (long)names, sizeof names, 0, 0, 0)) > 0)
        for (long at = 0; at < n;) {
            const struct dirent *e = (const void *)(names + at);
            int number = 0;
            at += e->d_reclen;
            for (const char *digit = e->d_name; *digit >= '0' && *digit <= '9'; digit++)
                number = number * 10 + (*digit - '0');
            if (of_descriptors && number == list)
                is_met = 1;
            else if (e->d_name[0] != '.')
                act(number, data);
        }
    if (list >= 0)
        sys_close(list);
    return n == 0 && is_met;
}

static int open_list(const char *path) {
    return sys_openat(AT_FDCWD, path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
}

/* Lists /proc/thread-self/fd, because a thread may have a table of descriptors of its own
 * (unshare, clone). /proc/self/fd always shows the main thread's table. */
int monarch_for_descriptors(void (*act)(int fd, void *data), void *data) {
    int list = open_list("/proc/thread-self/fd"); /* since Linux 3.17 */
    return for_numbers(list == -ENOENT ? open_list("/proc/self/fd") : list, 1, act, data);
}

#define KCMP_FILES 2

struct compared {
    int self, differs;
};

static void compare_table(int tid, void *data) {
    struct compared *c = data;
    c->differs |= sys6(SYS_kcmp, c->self, tid, KCMP_FILES, 0, 0, 0) > 0;
}

int monarch_have_one_table(void) {
    struct compared c = {.self = (int)sys6(SYS_gettid, 0, 0, 0, 0, 0, 0)};
    return for_numbers(open_list("/proc/self/task"), 0, compare_table, &c) && !c.differs;
}

/* --- system calls in which threads wait ------------------------------------------------------- */

struct sleeper {
    /* Two texts that /proc/self/task/TID/syscall must contain. `first`: the number of the system
     * call and its first argument, for example "8 0x5 ". `fourth`: the fourth argument, for
     * example "0x1234 ". */
    char first[40], fourth[24];
    int found;
};

/* Reads the beginning of the file into `text`: at most `room` - 1 bytes, followed by a NUL. */
static void read_text(const char *path, char *text, unsigned long room) {
    int fd = sys_openat(AT_FDCWD, path, O_RDONLY | O_CLOEXEC);
    long n = fd < 0 ? 0 : sys_read(fd, text, room - 1);
    text[n > 0 ? n : 0] = 0;
    if (fd >= 0)
        sys_close(fd);
}

static int begins_with(const char *text, const char *what) {
    return strncmp(text, what, strlen(what)) == 0;
}

/* Returns whether `line`, from the file /proc/self/task/TID/syscall, shows that the thread TID is
 * in the call that `s` describes. If the thread is in a call, the line is like "8 0x5 0x1000 0x1
 * 0x1234 0x0 0x0 0x7ffc... 0x7f3c...". Otherwise the line is a single word or empty. */
static int is_in_call(const struct sleeper *s, const char *line) {
    const char *at = begins_with(line, s->first) ? line + strlen(s->first) : NULL;
    for (int skipped = 0; at && skipped < 2; skipped++)
        at = strchr(at, ' ') ? strchr(at, ' ') + 1 : NULL;
    return at && begins_with(at, s->fourth);
}

static void look_at_thread(int tid, void *data) {
    struct sleeper *s = data;
    char path[64], text[256];
    char *name = put(put_number(put(path, "/proc/self/task/"), (uint64_t)tid, 10, 1), "/");
    if (s->found)
        return;
    put(name, "syscall");
    read_text(path, text, sizeof text);
    if (!is_in_call(s, text))
        return;
    /* The state D means that the thread sleeps uninterruptibly inside the kernel. A thread that a
     * tracer or a seccomp filter has stopped before the call has another state. */
    put(name, "stat");
    read_text(path, text, sizeof text);
    const char *state = strrchr(text, ')');
    s->found = state && begins_with(state, ") D ");
}

int monarch_sleeps_in(long call, uint64_t first, uint64_t fourth) {
    struct sleeper s = {.found = 0};
    char *at = put_number(s.first, (uint64_t)call, 10, 1);
    put(put_number(put(at, " 0x"), first, 16, 1), " ");
    put(put_number(put(s.fourth, "0x"), fourth, 16, 1), " ");
    for_numbers(open_list("/proc/self/task"), 0, look_at_thread, &s);
    return s.found;
}

uint64_t monarch_offset_of(int fd) {
    static const char name[] = "pos:\t";
    char path[64], text[64];
    uint64_t at = 0;
    put_number(put(path, "/proc/thread-self/fdinfo/"), (uint64_t)fd, 10, 1);
    read_text(path, text, sizeof text);
    const char *digit = begins_with(text, name) ? text + sizeof name - 1 : "";
    for (; *digit >= '0' && *digit <= '9'; digit++)
        at = at * 10 + (uint64_t)(*digit - '0');
    return at;
}

int monarch_name_of(int fd, char *out) {
    char link[32];
    if (fd < 0)
        return 0;
    put_number(put(link, "/proc/self/fd/"), (uint64_t)fd, 10, 1);
    long len = sys_readlink(link, out, MONARCH_PATH_MAX - 1);
    if (len <= 0 || out[0] != '/')
        return 0;
    out[len] = 0;
    return 1;
}
