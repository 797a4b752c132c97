/* Reads files in every way until its standard input ends, checks every byte and times every call.
 *
 *   reader STATE SEED THREADS PAUSE_US SEED:SIZE:FILE...
 *
 * All files are in one directory, which contains nothing else; word_of() of known_bytes.h defines
 * their content. Each thread reads all files one after the other, lap after lap, each file in a way
 * chosen at random. STATE is a file that contains a struct state, which other processes may read
 * while this program runs. The exit status is 0 even if bytes were wrong or calls failed.
 */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <libgen.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "known_bytes.h"

#define MOST_THREADS 16
#define HELD 4
#define PART (300 << 10)

/* The call that a thread is making. reading.py relies on the layouts of struct call and struct
 * state. */
struct call {
    uint64_t began_ns; /* 0: the thread is in no call */
    char name[16];
};

struct state {
    uint64_t operations;
    uint64_t wrong;      /* number of wrong bytes, sizes and names */
    uint64_t errors;     /* calls that failed */
    uint64_t last;       /* the last thing that was wrong or failed: way << 32 | errno */
    uint64_t longest_ns; /* the longest time of any call */
    uint64_t leaked;     /* number of descriptors at the end that were not there at the start */
    uint64_t laps[MOST_THREADS];
    struct call calls[MOST_THREADS];
};

struct file {
    uint64_t seed, size;
    const char *path;
};

struct thread {
    pthread_t id;
    int number, way;
    uint64_t random;
    int held[HELD];
    const struct file *held_file[HELD];
    char data[PART];
};

static struct state *state;
static struct file *files;
static int file_count, pause_us;
static volatile int is_over;

static void add(uint64_t *to, uint64_t n) { __atomic_fetch_add(to, n, __ATOMIC_RELAXED); }

static uint64_t draw(struct thread *me, uint64_t below) {
    me->random = me->random * 6364136223846793005ULL + 1442695040888963407ULL;
    return (me->random >> 33) % below;
}

static void note(struct thread *me, uint64_t *what, uint64_t n, int error) {
    if (n == 0)
        return;
    add(what, n);
    state->last = (uint64_t)me->way << 32 | (uint64_t)error;
}

static uint64_t begin_call(struct thread *me, const char *call) {
    struct call *mine = &state->calls[me->number];
    uint64_t start = now_ns();
    memset(mine->name, 0, sizeof mine->name);
    for (size_t i = 0; i < sizeof mine->name && call[i] != '('; i++)
        mine->name[i] = call[i];
    __atomic_store_n(&mine->began_ns, start, __ATOMIC_RELEASE);
    return start;
}

static void end_call(struct thread *me, uint64_t start) {
    __atomic_store_n(&state->calls[me->number].began_ns, 0, __ATOMIC_RELEASE);
    raise_to(&state->longest_ns, now_ns() - start);
}

/* Makes a call, times it and returns its result. During the call, other processes can see its name
 * and the time of its beginning (struct call). */
#define TIMED(call)                              \
    __extension__({                              \
        uint64_t start_ = begin_call(me, #call); \
        __typeof__(call) result_ = (call);       \
        int errno_ = errno;                      \
        end_call(me, start_);                    \
        errno = errno_;                          \
        result_;                                 \
    })

/* Like TIMED, for a call that returns a negative number on failure. Counts the failures. */
#define CALL(call)                              \
    __extension__({                             \
        long done_ = (long)TIMED(call);         \
        if (done_ < 0)                          \
            note(me, &state->errors, 1, errno); \
        done_;                                  \
    })

static void is_same(struct thread *me, int same) { note(me, &state->wrong, !same, 0); }

/* Checks a read of `n` bytes at `at`: it must return all bytes from there to the end of the file,
 * but at most `n`, and the bytes must be right. */
static void check(struct thread *me, const struct file *f, const char *data, uint64_t at,
                  uint64_t n, long got) {
    uint64_t there = at < f->size ? f->size - at : 0;
    if (got < 0)
        return;
    is_same(me, (uint64_t)got == (there < n ? there : n));
    note(me, &state->wrong, count_wrong(f->seed, data, at, (uint64_t)got), 0);
}

static int open_file(struct thread *me, const struct file *f) {
    return (int)CALL(open(f->path, O_RDONLY | O_CLOEXEC));
}

static uint64_t part(struct thread *me) { return draw(me, 3) ? PART : 1 + draw(me, 5000); }

/* --- the ways to read --- */

static void read_on(struct thread *me, const struct file *f, int fd, uint64_t at) {
    while (at <= f->size) {
        uint64_t n = PART - draw(me, 3) * 1000;
        long got = CALL(read(fd, me->data, n));
        check(me, f, me->data, at, n, got);
        if (got <= 0)
            return;
        at += (uint64_t)got;
    }
}

static void by_read(struct thread *me, const struct file *f) {
    int fd = open_file(me, f);
    if (fd < 0)
        return;
    read_on(me, f, fd, 0);
    CALL(close(fd));
}

static void pread_part(struct thread *me, const struct file *f, int fd) {
    uint64_t at = draw(me, f->size + 1), n = part(me);
    check(me, f, me->data, at, n, CALL(pread(fd, me->data, n, (off_t)at)));
}

static void by_pread(struct thread *me, const struct file *f) {
    int fd = open_file(me, f);
    if (fd < 0)
        return;
    for (int i = 0; i < 4; i++)
        pread_part(me, f, fd);
    CALL(close(fd));
}

static void by_mmap(struct thread *me, const struct file *f) {
    int fd = open_file(me, f);
    if (fd < 0)
        return;
    if (f->size > 0) {
        char *map =
            TIMED(mmap(NULL, f->size, PROT_READ, draw(me, 2) ? MAP_SHARED : MAP_PRIVATE, fd, 0));
        note(me, &state->errors, map == MAP_FAILED, errno);
        if (map != MAP_FAILED) {
            note(me, &state->wrong, TIMED(count_wrong(f->seed, map, 0, f->size)), 0);
            CALL(munmap(map, f->size));
        }
    }
    CALL(close(fd));
}

static void by_stdio(struct thread *me, const struct file *f) {
    FILE *stream = TIMED(fopen(f->path, "rbe"));
    note(me, &state->errors, !stream, errno);
    if (!stream)
        return;
    uint64_t at = draw(me, f->size + 1), n = part(me);
    CALL(fseeko(stream, (off_t)at, SEEK_SET));
    check(me, f, me->data, at, n, (long)TIMED(fread(me->data, 1, n, stream)));
    note(me, &state->errors, ferror(stream) != 0, errno);
    CALL(fclose(stream));
}

static void by_stat(struct thread *me, const struct file *f) {
    struct stat path, link, open_file_s;
    int fd = open_file(me, f);
    if (fd < 0)
        return;
    if (CALL(stat(f->path, &path)) == 0 && CALL(lstat(f->path, &link)) == 0 &&
        CALL(fstat(fd, &open_file_s)) == 0) {
        is_same(me, (uint64_t)path.st_size == f->size && S_ISREG(path.st_mode));
        is_same(me, path.st_ino == link.st_ino && path.st_dev == link.st_dev);
        is_same(me, path.st_ino == open_file_s.st_ino && path.st_dev == open_file_s.st_dev);
        is_same(me, path.st_size == open_file_s.st_size);
    }
    CALL(close(fd));
}

static void by_readdir(struct thread *me, const struct file *f) {
    char path[4096];
    int names = 0;
    snprintf(path, sizeof path, "%s", f->path);
    DIR *directory = TIMED(opendir(dirname(path)));
    note(me, &state->errors, !directory, errno);
    if (!directory)
        return;
    errno = 0;
    for (struct dirent *entry; (entry = TIMED(readdir(directory))) != NULL;)
        names += entry->d_name[0] != '.';
    note(me, &state->errors, errno != 0, errno);
    is_same(me, names == file_count);
    CALL(closedir(directory));
}

static void by_dup(struct thread *me, const struct file *f) {
    int fd = open_file(me, f);
    if (fd < 0)
        return;
    uint64_t at = draw(me, f->size + 1);
    int again = (int)CALL(fcntl(fd, F_DUPFD_CLOEXEC, 0));
    if (again >= 0) {
        is_same(me, CALL(lseek(fd, (off_t)at, SEEK_SET)) == (long)at);
        CALL(close(fd));
        read_on(me, f, again, at);
    }
    CALL(close(again >= 0 ? again : fd));
}

/* A child reads at the file offset that it shares with its parent. It exits with the errno of its
 * read, or with WRONG if the bytes are wrong. */
static void by_fork(struct thread *me, const struct file *f) {
    enum { WRONG = 255 };
    int fd = open_file(me, f), status = 0;
    if (fd < 0)
        return;
    uint64_t at = draw(me, f->size + 1), n = part(me), there = f->size - at;
    CALL(lseek(fd, (off_t)at, SEEK_SET));
    pid_t child = (pid_t)TIMED(fork());
    if (child == 0) {
        long got = read(fd, me->data, n);
        if (got < 0)
            _exit(errno);
        int is_right = (uint64_t)got == (there < n ? there : n) &&
                       count_wrong(f->seed, me->data, at, (uint64_t)got) == 0;
        _exit(is_right ? 0 : WRONG);
    }
    note(me, &state->errors, child < 0, errno);
    if (child > 0 && CALL(waitpid(child, &status, 0)) == child) {
        int ended_by = WIFEXITED(status) ? WEXITSTATUS(status) : WRONG;
        is_same(me, ended_by != WRONG);
        if (ended_by != 0 && ended_by != WRONG) {
            note(me, &state->errors, 1, ended_by);
        } else {
            at += there < n ? there : n;
            is_same(me, CALL(lseek(fd, 0, SEEK_CUR)) == (long)at);
            read_on(me, f, fd, at);
        }
    }
    CALL(close(fd));
}

/* Reads from a descriptor that stays open while daemons start and end. */
static void by_held(struct thread *me, const struct file *f) {
    uint64_t i = draw(me, HELD);
    if (me->held[i] >= 0) {
        pread_part(me, me->held_file[i], me->held[i]);
        if (draw(me, 4))
            return;
        CALL(close(me->held[i]));
    }
    me->held[i] = open_file(me, f);
    me->held_file[i] = f;
}

static void (*const ways[])(struct thread *, const struct file *) = {
    by_read, by_pread, by_mmap, by_stdio, by_stat, by_readdir, by_dup, by_fork, by_held,
};
enum { WAYS = sizeof ways / sizeof *ways };

/* --- the threads --- */

static void *work(void *arg) {
    struct thread *me = arg;
    for (int i = me->number * 7; !is_over; i++) {
        const struct file *f = &files[i % file_count];
        me->way = (int)draw(me, WAYS);
        ways[me->way](me, f);
        add(&state->operations, 1);
        if (i % file_count == file_count - 1)
            add(&state->laps[me->number], 1);
        usleep((useconds_t)pause_us);
    }
    for (int i = 0; i < HELD; i++)
        if (me->held[i] >= 0)
            CALL(close(me->held[i]));
    return NULL;
}

static int open_numbers(void) {
    int open_count = 0;
    for (int fd = 0; fd < 1024; fd++)
        open_count += fcntl(fd, F_GETFD) >= 0;
    return open_count;
}

int main(int argc, char **argv) {
    static struct thread threads[MOST_THREADS];
    if (argc < 6)
        return 2;
    int fd = open(argv[1], O_RDWR | O_CLOEXEC), count = atoi(argv[3]);
    state = mmap(NULL, sizeof *state, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    file_count = argc - 5;
    files = calloc((size_t)file_count, sizeof *files);
    if (fd < 0 || state == MAP_FAILED || !files || count < 1 || count > MOST_THREADS)
        return 2;
    close(fd);
    pause_us = atoi(argv[4]);
    for (int i = 0; i < file_count; i++) {
        char *end;
        files[i].seed = strtoull(argv[5 + i], &end, 10);
        files[i].size = strtoull(end + 1, &end, 10);
        files[i].path = end + 1;
    }
    int open_before = open_numbers();
    for (int i = 0; i < count; i++) {
        threads[i].number = i;
        threads[i].random = strtoull(argv[2], NULL, 10) * 1000 + (uint64_t)i;
        memset(threads[i].held, -1, sizeof threads[i].held);
        if (pthread_create(&threads[i].id, NULL, work, &threads[i]) != 0)
            return 2;
    }
    for (char c; read(0, &c, 1) > 0;)
        ;
    is_over = 1;
    for (int i = 0; i < count; i++)
        pthread_join(threads[i].id, NULL);
    int open_after = open_numbers();
    state->leaked = open_after > open_before ? (uint64_t)(open_after - open_before) : 0;
    return 0;
}
