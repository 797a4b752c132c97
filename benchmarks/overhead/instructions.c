/* Makes one kind of call N times, for a tool that counts instructions.
 *
 *   instructions CALL N FILE
 *
 * Some kinds of calls need a helping call each time. For example, each close needs a new
 * descriptor. The program makes the helping calls with syscall(), which the preload library does
 * not intercept.
 */
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

static int fd;
static const char *path;
static char byte;
static struct stat st;

static int do_read(void) { return read(fd, &byte, 1) != 1; }
static int do_pread(void) { return pread(fd, &byte, 1, 0) != 1; }
static int do_fstat(void) { return fstat(fd, &st) != 0; }
static int do_stat(void) { return stat(path, &st) != 0; }
static int do_close(void) { return close((int)syscall(SYS_dup, fd)) != 0; }
static int do_open(void) { return syscall(SYS_close, open(path, O_RDONLY | O_CLOEXEC)) != 0; }

static const struct {
    const char *name;
    int (*run)(void);
} calls[] = {
    {"read", do_read}, {"pread", do_pread}, {"fstat", do_fstat},
    {"stat", do_stat}, {"close", do_close}, {"open", do_open},
};

int main(int argc, char **argv) {
    long n = argc == 4 ? atol(argv[2]) : 0, failed = 0;
    int (*run)(void) = NULL;
    for (size_t i = 0; argc == 4 && i < sizeof calls / sizeof *calls; i++)
        if (strcmp(calls[i].name, argv[1]) == 0)
            run = calls[i].run;
    if (!run || n < 1) {
        fputs("usage: instructions CALL N FILE\n", stderr);
        return 2;
    }
    path = argv[3];
    fd = open(path, O_RDONLY | O_CLOEXEC);
    for (long i = 0; i < n; i++)
        failed += run();
    if (failed)
        fprintf(stderr, "instructions: %ld calls of %s failed\n", failed, argv[1]);
    return failed != 0;
}
