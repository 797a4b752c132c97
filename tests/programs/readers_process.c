/* C readers in several threads or processes: threads, fork, vfork, exec, inherited descriptors. */
#include "readers.h"

#include <fcntl.h>
#include <pthread.h>
#include <spawn.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

enum {
    THREADS = 8,
    ROUNDS = 3,
    /* The threads read all files of up to this size [bytes], and one file of 4 MiB + 1 byte. */
    LARGEST = 300000,
};

extern char **environ;

/* Waits for a child; the program ends if the child failed. */
static void reap(pid_t child, const struct file *file) {
    int status;
    if (child < 0 || waitpid(child, &status, 0) != child)
        die("a child for %s", file->name);
    if (status) {
        fprintf(stderr, "readers: the child for %s: wait status %d\n", file->name, status);
        exit(1);
    }
}

/* Starts a child as Python's subprocess does: between vfork and exec, the child calls dup2 and
 * close while it shares the parent's memory. */
void child_vfork(const struct file *file) {
    char *const command[] = {"cat", NULL};
    int ends[2], fd = checked(open(file->path, O_RDONLY), file);
    if (lseek(fd, file->size / 3, SEEK_SET) < 0 || pipe(ends))
        die("pipe");
    pid_t child = vfork();
    if (!child) {
        dup2(fd, 0);
        dup2(ends[1], 1);
        close(ends[0]);
        close(ends[1]);
        close(fd);
        execve("/bin/cat", command, environ);
        _exit(127);
    }
    close(ends[1]);
    drain_and_close(ends[0], file, "cat");
    reap(child, file);
    /* The child's close did not close the parent's descriptor, which is now at the file's end. */
    printf("%s %s offset=%lld\n", reader_name, file->name, (long long)lseek(fd, 0, SEEK_CUR));
    lseek(fd, 0, SEEK_SET);
    drain_and_close(fd, file, "after");
}

void child_fork(const struct file *file) {
    char head[100];
    int fd = checked(open(file->path, O_RDONLY), file);
    if (read(fd, head, sizeof head) < 0)
        die("read %s", file->name);
    fflush(stdout);
    pid_t child = fork();
    if (!child) {
        struct stat status;
        drain(fd, file, "inherited");
        if (fstat(fd, &status))
            _exit(2);
        tell_stat(file, "inherited", &status);
        drain_and_close(open(file->path, O_RDONLY), file, "opened");
        fflush(stdout);
        _exit(0);
    }
    reap(child, file);
    printf("%s %s offset=%lld\n", reader_name, file->name, (long long)lseek(fd, 0, SEEK_CUR));
    close(fd);
}

/* posix_spawn starts a child that reads the file from its standard input and then by name. */
void child_exec_inherit(const struct file *file) {
    char *const command[] = {"cat", "-", file->path, NULL};
    posix_spawn_file_actions_t actions;
    int ends[2], fd = checked(open64(file->path, 0), file);
    pid_t child;
    if (pipe(ends) || posix_spawn_file_actions_init(&actions) ||
        posix_spawn_file_actions_adddup2(&actions, fd, 0) ||
        posix_spawn_file_actions_adddup2(&actions, ends[1], 1) ||
        posix_spawn_file_actions_addclose(&actions, ends[0]) ||
        posix_spawn_file_actions_addclose(&actions, ends[1]) ||
        posix_spawn(&child, "/bin/cat", &actions, NULL, command, environ))
        die("posix_spawn of cat");
    posix_spawn_file_actions_destroy(&actions);
    close(ends[1]);
    drain_and_close(ends[0], file, "twice");
    reap(child, file);
    close(fd);
}

/* Closes descriptors with close_range, dup2 and closefrom instead of close, and then opens other
 * files, which get the same numbers. */
void close_by_range(void) {
    for (size_t i = 0; i + 1 < file_count; i++) {
        int first = checked(open(files[i].path, O_RDONLY), &files[i]);
        int second = checked(dup(first), &files[i]);
        if (i % 2 ? close_range((unsigned)first, ~0U, 0) : dup2(0, second) != second)
            die("close_range");
        if (i % 2 == 0) {
            drain_and_close(first, &files[i], "first");
            close(second);
        }
        drain_and_close(open(files[i + 1].path, 0), &files[i + 1], "reused");
    }
    int number = checked(open(files[0].path, O_RDONLY), &files[0]);
    closefrom(number);
    drain_and_close(open(files[file_count - 1].path, 0), &files[file_count - 1], "closefrom");
}

/* ---- threads ---- */

static uint64_t sums[4096]; /* the digest of each file, computed before the threads start */

struct worker {
    pthread_t thread;
    unsigned number;
    uint64_t bytes;
    unsigned wrong;
};

/* Returns the file's content, read in the way that `choice` selects. The caller frees it. */
static char *slurp(const struct file *file, unsigned choice, size_t *size) {
    char *data = malloc((size_t)file->size + 1);
    int fd = choice == 2 ? -1 : checked(open(file->path, choice ? 0 : O_RDONLY | O_CLOEXEC), file);
    FILE *stream = choice == 2 ? fopen64(file->path, "r") : NULL;
    size_t want = (size_t)file->size + 1;
    ssize_t count;
    *size = 0;
    if (!data || (choice == 2 && !stream))
        die("open %s in a thread", file->name);
    if (choice == 2)
        *size = fread(data, 1, want, stream);
    else if (choice == 3 && file->size) {
        void *mapped = mmap(NULL, (size_t)file->size, PROT_READ, MAP_SHARED, fd, 0);
        if (mapped == MAP_FAILED)
            die("mmap %s in a thread", file->name);
        memcpy(data, mapped, *size = (size_t)file->size);
        munmap(mapped, (size_t)file->size);
    } else
        while ((count = choice == 1 ? pread(fd, data + *size, want - *size, (off_t)*size)
                                    : read(fd, data + *size, want - *size)) > 0)
            *size += (size_t)count;
    if (stream ? fclose(stream) : close(fd))
        die("close %s in a thread", file->name);
    return data;
}

static int in_rounds(const struct file *file) {
    return file->size <= LARGEST || file->size == (4 << 20) + 1;
}

static void *work(void *argument) {
    struct worker *self = argument;
    for (unsigned round = 0; round < ROUNDS; round++)
        for (size_t step = 0; step < file_count; step++) {
            /* Threads with even numbers read the files forwards, threads with odd numbers
             * backwards. Each thread begins at a different file. */
            size_t turn = self->number % 2 ? file_count - 1 - step : step;
            size_t at = (turn + self->number * file_count / THREADS) % file_count;
            size_t size;
            if (!in_rounds(&files[at]))
                continue;
            char *data = slurp(&files[at], (self->number + round + (unsigned)step) % 4, &size);
            if (size != (size_t)files[at].size || digest(SUM_START, data, size) != sums[at])
                self->wrong++;
            self->bytes += size;
            free(data);
        }
    return NULL;
}

/* Many threads open, read and close the same files, so that a descriptor's number is used again
 * within microseconds. */
void read_in_threads(void) {
    struct worker workers[THREADS] = {0};
    unsigned wrong = 0;
    for (size_t i = 0; i < file_count; i++) {
        size_t size;
        char *data = slurp(&files[i], 0, &size);
        sums[i] = digest(SUM_START, data, size);
        tell(&files[i], "alone", size, sums[i]);
        free(data);
    }
    for (unsigned i = 0; i < THREADS; i++) {
        workers[i].number = i;
        if (pthread_create(&workers[i].thread, NULL, work, &workers[i]))
            die("pthread_create");
    }
    for (unsigned i = 0; i < THREADS; i++) {
        pthread_join(workers[i].thread, NULL);
        printf("%s thread %u bytes=%llu wrong=%u\n", reader_name, i,
               (unsigned long long)workers[i].bytes, workers[i].wrong);
        wrong += workers[i].wrong;
    }
    if (wrong) {
        fprintf(stderr, "readers: threads read %u files wrong\n", wrong);
        exit(1);
    }
}
