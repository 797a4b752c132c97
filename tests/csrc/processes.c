/* Runs one case: a way to start, limit or disturb processes, or to share descriptors.
 *
 *     processes --list
 *     processes CASE HERE OUTSIDE [wait]
 *
 * HERE holds the files that places.py makes. The program prints what happened. The output must be
 * the same with and without the library. With `wait`, the program first reads a file, prints
 * "ready", and waits for a line on standard input. */
#include "processes.h"

#include <stdarg.h>
#include <sys/syscall.h>
#include <sys/wait.h>

#include <linux/capability.h>

const char *self, *here, *outside;

const char *joined(const char *directory, const char *name) {
    char *path = malloc(strlen(directory) + strlen(name) + 2);
    return strcat(strcat(strcpy(path, directory), "/"), name);
}

const char *in(const char *name) { return joined(here, name); }
const char *out(const char *name) { return joined(outside, name); }

void fail(const char *file, int line, const char *what) {
    fflush(stdout);
    fprintf(stderr, "%s:%d: check failed: %s (%s)\n", file, line, what, strerror(errno));
    _exit(99);
}

long say_as(const char *what, long result) {
    printf("%s = %ld %s\n", what, result, result < 0 ? strerrorname_np(errno) : "");
    return result;
}

int reading(const char *name) {
    int fd = open(in(name), O_RDONLY);
    CHECK(fd >= 0);
    return fd;
}

uint64_t digest_of(const void *data, size_t n, uint64_t start) {
    const unsigned char *p = data;
    for (uint64_t h = start ? start : 14695981039346656037ULL;; h = (h ^ *p++) * 1099511628211ULL)
        if (!n--)
            return h;
}

void tell_rest(const char *what, int fd) {
    char buf[8192];
    uint64_t digest = 0;
    long at = lseek(fd, 0, SEEK_CUR), bytes = 0;
    ssize_t n;
    while ((n = read(fd, buf, sizeof buf)) > 0) {
        digest = digest_of(buf, (size_t)n, digest);
        bytes += n;
    }
    printf("%s: at %ld, then %ld bytes %016lx%s\n", what, at, bytes, (unsigned long)digest,
           n < 0 ? strerrorname_np(errno) : "");
}

void tell_file(const char *what, int fd, const char *name) {
    struct stat by_fd, by_name;
    CHECK(fstat(fd, &by_fd) == 0 && stat(in(name), &by_name) == 0);
    printf("%s: is %s %d, %o %ld\n", what, name,
           by_fd.st_ino == by_name.st_ino && by_fd.st_dev == by_name.st_dev, by_fd.st_mode,
           (long)by_fd.st_size);
}

uint64_t open_descriptors(void) {
    uint64_t found = 0;
    int old = errno;
    for (int fd = 0; fd < 64; fd++)
        found |= (uint64_t)(fcntl(fd, F_GETFD) >= 0) << fd;
    errno = old;
    return found;
}

void reap(const char *what, pid_t child) {
    int status = -1;
    CHECK(child > 0 && waitpid(child, &status, 0) == child);
    if (WIFSIGNALED(status))
        printf("%s: signal %d\n", what, WTERMSIG(status));
    else if (status)
        printf("%s: status %d\n", what, WEXITSTATUS(status));
}

void in_child(const char *what, void (*run)(void *), void *argument) {
    fflush(stdout);
    pid_t child = fork();
    if (!child) {
        run(argument);
        fflush(stdout);
        _exit(0);
    }
    reap(what, child);
}

char *const *command(const char *name) {
    const char **words = calloc(5, sizeof *words);
    words[0] = self;
    words[1] = name;
    words[2] = here;
    words[3] = outside;
    return (char *const *)words;
}

void drop_rights(void) {
    struct __user_cap_header_struct header = {_LINUX_CAPABILITY_VERSION_3, 0};
    struct __user_cap_data_struct none[2] = {{0, 0, 0}, {0, 0, 0}};
    CHECK(syscall(SYS_capset, &header, none) == 0);
}

static int read_and_wait(void) {
    char line[8];
    int fd = reading("f");
    tell_rest("before", fd);
    close(fd);
    puts("ready");
    fflush(stdout);
    return read(0, line, sizeof line) > 0;
}

int main(int argc, char **argv) {
    const struct process_case *const tables[] = {of_start, of_place, of_checks, of_harsh};
    const char *wanted = argc > 1 ? argv[1] : "";
    self = argv[0];
    for (int t = 0; t < 4; t++)
        for (const struct process_case *c = tables[t]; c->name; c++) {
            if (strcmp(wanted, "--list") == 0)
                puts(c->name);
            if (argc < 4 || strcmp(wanted, c->name) != 0)
                continue;
            here = argv[2];
            outside = argv[3];
            umask(022);
            alarm(40); /* kills a case that hangs, so that only its test fails */
            if (argc > 4 && !read_and_wait())
                return 2;
            c->run();
            return 0;
        }
    return strcmp(wanted, "--list") != 0;
}
