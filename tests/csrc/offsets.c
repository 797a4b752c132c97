/* Runs short programs of reads, seeks and other calls on descriptors, and prints the result of each
 * call.
 *
 *   programs FILE...    reads programs from standard input: one operation per line, and "end" after
 *                       each program
 *   records FILE SIZE PROCESSES THREADS CALL
 *                       All threads of all processes read records of SIZE bytes from one open file
 *                       description until the file ends. CALL is read or readv. Every second
 *                       process reads through a duplicate of the descriptor. Prints counts of the
 *                       records as JSON.
 *
 * In programs, slots 0 to 7 hold descriptors. Each program runs in a process of its own, so that
 * all programs begin with the same free descriptor numbers. The first eight bytes of a record
 * contain the record's offset in the file [units of 8 bytes]. */
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <unistd.h>

#define SLOTS 8
#define OPS 64
#define PARTS 1100 /* more than IOV_MAX */
#define ROOM (3UL << 30)

/* The buffer of all reads. It is mapped with MAP_NORESERVE, because a read may request more bytes
 * than the machine has memory. */
static char *room;
static char **files;

/* --- programs ----------------------------------------------------------------------------------
 */

struct op {
    char what;
    long n[PARTS];
    int count;
};

static struct op ops[OPS];
static int op_count, slot[SLOTS];

/* Prints without a buffer: after a fork, both processes would write text that is still in a buffer.
 */
__attribute__((format(printf, 1, 2))) static void say(const char *format, ...) {
    char line[200];
    va_list args;
    va_start(args, format);
    int n = vsnprintf(line, sizeof line, format, args);
    va_end(args);
    if (write(1, line, (size_t)n) != n)
        _exit(9);
}

static int hear(char *line, size_t room_for) {
    size_t n = 0;
    while (n + 1 < room_for && read(0, line + n, 1) == 1)
        if (line[n++] == '\n')
            break;
    line[n] = 0;
    return n > 0;
}

static uint64_t sum(const char *data, long n) {
    uint64_t h = 14695981039346656037ULL;
    for (long i = 0; i < n; i++)
        h = (h ^ (unsigned char)data[i]) * 1099511628211ULL;
    return n > 0 ? h : 0;
}

static void tell(int i, long r) {
    int error = r < 0 ? errno : 0;
    say("%d %c %ld %d\n", i, ops[i].what, r, error);
}

static void tell_data(int i, long r) {
    int error = r < 0 ? errno : 0;
    say("%d %c %ld %d %016llx\n", i, ops[i].what, r, error, (unsigned long long)sum(room, r));
}

static int parts_of(const struct op *op, int from, struct iovec *parts) {
    char *at = room;
    for (int i = from; i < op->count; i++) {
        parts[i - from] = (struct iovec){at, (size_t)op->n[i]};
        at += op->n[i];
    }
    return op->count - from;
}

static void put(int where, int fd) {
    if (fd >= 0 && slot[where] >= 0)
        close(slot[where]);
    if (fd >= 0)
        slot[where] = fd;
}

static void look(int i, int fd) {
    struct stat st;
    long r = fstat(fd, &st);
    tell(i, r < 0 ? r : (long)st.st_size);
}

static void run(int from, int to);

static int in_child(int from, int to) {
    pid_t child = fork();
    if (child == 0) {
        run(from, to);
        _exit(0);
    }
    int status = -1;
    waitpid(child, &status, 0);
    return status;
}

/* Performs operation i, and returns 0. But if the operation is 'k', a child process performs some
 * of the operations that follow it, and the function returns the number of these operations. */
static int do_op(int i, int to) {
    static struct iovec parts[PARTS];
    struct op *op = &ops[i];
    char line[16];
    long *n = op->n;
    int fd = op->count ? slot[n[0] % SLOTS] : -1, got, last;
    switch (op->what) {
    case 'o': /* slot, file, flags */
        got = open(files[n[1]], (int)n[2]);
        tell(i, got);
        put((int)n[0], got);
        break;
    case 'r':
        tell_data(i, read(fd, room, (size_t)n[1]));
        break;
    case 'p':
        tell_data(i, pread(fd, room, (size_t)n[1], n[2]));
        break;
    case 'v': /* slot, lengths */
        got = parts_of(op, 1, parts);
        tell_data(i, readv(fd, parts, got));
        break;
    case 'w': /* slot, offset, lengths */
        got = parts_of(op, 2, parts);
        tell_data(i, preadv(fd, parts, got, n[1]));
        break;
    case 'x': /* slot, offset, flags, lengths */
        got = parts_of(op, 3, parts);
        tell_data(i, preadv2(fd, parts, got, n[1], (int)n[2]));
        break;
    case 'l':
        tell(i, lseek(fd, n[1], (int)n[2]));
        break;
    case 'd': /* slot, slot of the duplicate */
        got = dup(fd);
        tell(i, got);
        put((int)n[1], got);
        break;
    case 'F':
        got = fcntl(fd, (int)n[2] ? F_DUPFD_CLOEXEC : F_DUPFD, 20);
        tell(i, got);
        put((int)n[1], got);
        break;
    case 'D':
        tell(i, dup2(fd, slot[n[1]]));
        break;
    case 'c':
        tell(i, close(fd));
        slot[n[0]] = -1;
        break;
    case 'f':
        look(i, fd);
        break;
    case 'k': /* its operand: how many of the following operations a child performs */
        last = i + 1 + (int)n[0] < to ? i + 1 + (int)n[0] : to;
        tell(i, in_child(i + 1, last));
        return last - i - 1;
    case 's': /* the test waits until all copies are complete */
        say("settle\n");
        if (!hear(line, sizeof line))
            _exit(8);
        break;
    default:
        _exit(7);
    }
    return 0;
}

static void run(int from, int to) {
    for (int i = from; i < to; i++)
        i += do_op(i, to);
}

static void run_program(void) {
    for (int i = 0; i < SLOTS; i++)
        slot[i] = -1;
    run(0, op_count);
    for (int i = 0; i < SLOTS; i++)
        if (slot[i] >= 0)
            say("offset %d %ld\n", i, (long)lseek(slot[i], 0, SEEK_CUR));
}

static void parse(const char *line) {
    struct op *op = &ops[op_count++];
    char *end;
    op->what = line[0];
    op->count = 0;
    for (const char *at = line + 1; *at && *at != '\n' && op->count < PARTS; at = end) {
        op->n[op->count++] = strtol(at, &end, 10);
        if (end == at)
            _exit(6);
    }
}

static void programs(void) {
    static char line[32768];
    op_count = 0;
    while (hear(line, sizeof line)) {
        if (strcmp(line, "end\n") != 0) {
            parse(line);
            continue;
        }
        int status = -1;
        pid_t child = fork();
        if (child == 0) {
            run_program();
            _exit(0);
        }
        waitpid(child, &status, 0);
        say("status %d\n", status);
        op_count = 0;
    }
}

/* --- records -----------------------------------------------------------------------------------
 */

static struct shared { uint64_t wrong, twice, calls, seen[]; } * shared;

static int fd_of_all, size_of_record, by_parts;
static uint64_t size_of_file;

static void add(uint64_t *n) { __atomic_fetch_add(n, 1, __ATOMIC_RELAXED); }

static uint64_t first_word(const char *data) {
    uint64_t w;
    memcpy(&w, data, sizeof w);
    return w;
}

static long take(int fd, char *data) {
    long half = size_of_record / 2;
    struct iovec parts[2] = {{data, (size_t)half}, {data + half, (size_t)(size_of_record - half)}};
    return by_parts ? readv(fd, parts, 2) : read(fd, data, (size_t)size_of_record);
}

/* Returns whether the data are exactly one record: they start at a multiple of the record size, end
 * with the record or with the file, and consist of consecutive numbers. */
static int is_right(const char *data, long n) {
    uint64_t at = first_word(data) * 8, rest = size_of_file - at;
    if (at % (uint64_t)size_of_record || at >= size_of_file ||
        (uint64_t)n != (rest < (uint64_t)size_of_record ? rest : (uint64_t)size_of_record))
        return 0;
    for (long i = 0; i + 8 <= n; i += 8)
        if (first_word(data + i) != at / 8 + (uint64_t)i / 8)
            return 0;
    return 1;
}

static void *take_records(void *arg) {
    int fd = *(int *)arg;
    char *data = malloc((size_t)size_of_record);
    long n = 0;
    while (data && (n = take(fd, data)) > 0) {
        add(&shared->calls);
        if (!is_right(data, n))
            add(&shared->wrong);
        else if (__atomic_fetch_add(&shared->seen[first_word(data) * 8 / (uint64_t)size_of_record],
                                    1, __ATOMIC_RELAXED))
            add(&shared->twice);
    }
    if (n < 0)
        add(&shared->wrong);
    free(data);
    return NULL;
}

static void take_in_threads(int threads, int number) {
    pthread_t thread[64];
    int fd = number % 2 ? dup(fd_of_all) : fd_of_all;
    for (int i = 0; i < threads; i++)
        if (pthread_create(&thread[i], NULL, take_records, &fd) != 0)
            _exit(5);
    for (int i = 0; i < threads; i++)
        pthread_join(thread[i], NULL);
}

static int records(char **words) {
    struct stat st;
    uint64_t lost = 0;
    int processes = atoi(words[2]), threads = atoi(words[3]), failed = 0, status;
    size_of_record = atoi(words[1]);
    by_parts = strcmp(words[4], "readv") == 0;
    fd_of_all = open(words[0], O_RDONLY);
    if (fd_of_all < 0 || fstat(fd_of_all, &st) != 0)
        return 1;
    size_of_file = (uint64_t)st.st_size;
    uint64_t count = (size_of_file + (uint64_t)size_of_record - 1) / (uint64_t)size_of_record;
    shared = mmap(NULL, sizeof *shared + count * 8, PROT_READ | PROT_WRITE,
                  MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (shared == MAP_FAILED)
        return 1;
    for (int i = 1; i < processes; i++)
        if (fork() == 0) {
            take_in_threads(threads, i);
            _exit(0);
        }
    take_in_threads(threads, 0);
    while (wait(&status) > 0)
        failed += status != 0;
    for (uint64_t i = 0; i < count; i++)
        lost += shared->seen[i] == 0;
    printf("{\"records\": %llu, \"calls\": %llu, \"wrong\": %llu, \"twice\": %llu, \"lost\": %llu, "
           "\"failed\": %d, \"offset\": %ld}\n",
           (unsigned long long)count, (unsigned long long)shared->calls,
           (unsigned long long)shared->wrong, (unsigned long long)shared->twice,
           (unsigned long long)lost, failed, (long)lseek(fd_of_all, 0, SEEK_CUR));
    return 0;
}

int main(int argc, char **argv) {
    if (argc == 7 && strcmp(argv[1], "records") == 0)
        return records(argv + 2);
    if (argc < 3 || strcmp(argv[1], "programs") != 0)
        return 2;
    room = mmap(NULL, ROOM, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1,
                0);
    if (room == MAP_FAILED)
        return 1;
    files = argv + 2;
    programs();
    return 0;
}
