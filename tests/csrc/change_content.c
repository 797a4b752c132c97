/* Operations that change the content of a file, which they access by its name. They open the file
 * for writing in every possible way, truncate it, or map it. */
#include <spawn.h>
#include <sys/mman.h>
#include <sys/sendfile.h>
#include <sys/uio.h>
#include <sys/wait.h>

#include "change.h"

extern char **environ;
int __open_2(const char *path, int flags);
int __openat_2(int dir, const char *path, int flags);

static void write_and_close(int fd) {
    if (SAY(fd) < 0)
        return;
    SAY(write(fd, "changed!", 8));
    SAY(close(fd));
}

static void op_wronly(void) { write_and_close(open(in("f"), O_WRONLY)); }
static void op_rdwr(void) { write_and_close(open(in("f"), O_RDWR | O_CLOEXEC)); }
static void op_append(void) { write_and_close(open(in("f"), O_WRONLY | O_APPEND)); }
static void op_trunc(void) { write_and_close(open(in("f"), O_WRONLY | O_TRUNC)); }
static void op_creat_flag(void) { write_and_close(open(in("f"), O_WRONLY | O_CREAT, 0600)); }
static void op_creat_trunc(void) {
    write_and_close(open(in("f"), O_WRONLY | O_CREAT | O_TRUNC, 0600));
}
static void op_rdonly_trunc(void) { SAY(close(open(in("f"), O_RDONLY | O_TRUNC))); }
static void op_excl_fails(void) { SAY(open(in("f"), O_WRONLY | O_CREAT | O_EXCL, 0600)); }
static void op_open64(void) { write_and_close(open64(in("f"), O_WRONLY)); }
static void op_open_2(void) { write_and_close(__open_2(in("f"), O_WRONLY | O_TRUNC)); }
static void op_creat(void) { write_and_close(creat(in("f"), 0600)); }
static void op_creat64(void) { write_and_close(creat64(in("f"), 0600)); }

static void op_openat(void) {
    int dir = open(here, O_RDONLY | O_DIRECTORY);
    write_and_close(openat(dir, "f", O_WRONLY));
    write_and_close(openat64(dir, "g", O_WRONLY | O_TRUNC));
    write_and_close(__openat_2(dir, "d/x", O_RDWR));
}

static void op_through_symlink(void) { write_and_close(open(in("to_f"), O_WRONLY)); }
static void op_trunc_symlink(void) { write_and_close(open(in("to_f"), O_WRONLY | O_TRUNC)); }
static void op_nofollow_symlink(void) { SAY(open(in("to_f"), O_WRONLY | O_NOFOLLOW)); }
static void op_through_hard_link(void) { write_and_close(open(in("hard"), O_WRONLY | O_TRUNC)); }
static void op_from_outside(void) { write_and_close(open(out("into"), O_WRONLY | O_TRUNC)); }

static void op_relative(void) {
    SAY(chdir(in("d")));
    write_and_close(open("../f", O_WRONLY | O_TRUNC));
    write_and_close(open(".//x", O_WRONLY));
}

/* --- streams --- */

static void write_stream(FILE *f) {
    SAY(f != NULL);
    SAY(fputs("stream", f));
    SAY(fclose(f));
}

static void op_fopen_w(void) { write_stream(fopen(in("f"), "w")); }
static void op_fopen_a(void) { write_stream(fopen64(in("f"), "ab")); }
static void op_fopen_r_plus(void) { write_stream(fopen(in("f"), "rb+e")); }
static void op_fopen_w_plus(void) { write_stream(fopen64(in("to_f"), "w+")); }

static void op_freopen(void) {
    write_stream(freopen(in("f"), "r+", fopen(in("g"), "r")));
    write_stream(freopen64(in("d/x"), "w", fopen(in("g"), "r")));
}

/* Without a path, freopen opens the stream's own file again. */
static void op_freopen_itself(void) { write_stream(freopen(NULL, "r+", fopen(in("f"), "r"))); }
static void op_freopen_itself_w(void) { write_stream(freopen(NULL, "w", fopen(in("f"), "r"))); }

/* --- other ways of moving bytes --- */

static void op_pwritev(void) {
    struct iovec parts[2] = {{"one", 3}, {"two", 3}};
    int fd = open(in("f"), O_WRONLY);
    SAY(pwritev(fd, parts, 2, 100));
    SAY(close(fd));
}

static void op_copy_file_range(void) {
    int from = reading("g"), to = open(in("f"), O_WRONLY);
    off_t at = 10;
    SAY(copy_file_range(from, NULL, to, &at, 3000, 0));
    SAY(close(to));
}

/* Copies within one file. The kernel refuses the first copy, because its ranges overlap. */
static void op_copy_within(void) {
    int from = reading("f"), to = open(in("f"), O_WRONLY);
    off_t at = 10, to_at = 100, behind = 100000;
    SAY(copy_file_range(from, &at, to, &to_at, 3000, 0));
    SAY(copy_file_range(from, NULL, to, &behind, 3000, 0));
    SAY(lseek(from, 0, SEEK_CUR));
    SAY(close(to));
}

static void op_sendfile(void) {
    int from = reading("g"), to = open(in("f"), O_WRONLY);
    SAY(sendfile(to, from, NULL, 3000));
    SAY(close(to));
}

static void op_mmap(void) {
    int fd = open(in("f"), O_RDWR);
    char *map = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    SAY(map != MAP_FAILED);
    SAY(close(fd)); /* now only the mapping keeps the file open */
    memcpy(map + 7, "by a mapping", 12);
    SAY(msync(map, 4096, MS_SYNC));
}

static void op_ftruncate(void) {
    int fd = open(in("f"), O_RDWR);
    SAY(ftruncate(fd, 10));
    SAY(posix_fallocate(fd, 5000, 5000));
    SAY(close(fd));
}

static void op_truncate(void) {
    SAY(truncate(in("f"), 100));
    SAY(truncate64(in("g"), 100000));
    SAY(truncate(in("d"), 1));
    SAY(truncate(in("nothing"), 1));
}

static void op_truncate_symlink(void) { SAY(truncate(in("to_f"), 0)); }

/* --- other processes --- */

static void op_forked(void) {
    int fd = open(in("f"), O_WRONLY);
    if (fork() == 0)
        _exit(write(fd, "by a child", 10) != 10);
    int status = -1;
    wait(&status);
    SAY(status);
}

static void run(char **argv) {
    pid_t child;
    int status = -1;
    SAY(posix_spawnp(&child, argv[0], NULL, NULL, argv, environ));
    waitpid(child, &status, 0);
    SAY(status);
}

static void op_cp(void) { run((char *[]){"cp", (char *)in("g"), (char *)in("f"), NULL}); }

static void op_shell(void) {
    char command[4200];
    snprintf(command, sizeof command, "echo more >> '%s'; : > '%s'", in("f"), in("g"));
    SAY(system(command));
}

static void op_spawn_addopen(void) {
    posix_spawn_file_actions_t actions;
    char *argv[] = {"echo", "by spawn", NULL};
    pid_t child;
    int status = -1;
    posix_spawn_file_actions_init(&actions);
    posix_spawn_file_actions_addopen(&actions, 1, in("f"), O_WRONLY | O_TRUNC, 0);
    SAY(posix_spawnp(&child, argv[0], &actions, NULL, argv, environ));
    waitpid(child, &status, 0);
    SAY(status);
}

#define ROW(name) \
    { #name, op_##name }
const struct operation by_name[] = {
    ROW(wronly),          ROW(rdwr),         ROW(append),
    ROW(trunc),           ROW(creat_flag),   ROW(creat_trunc),
    ROW(rdonly_trunc),    ROW(excl_fails),   ROW(open64),
    ROW(open_2),          ROW(creat),        ROW(creat64),
    ROW(openat),          ROW(relative),     ROW(through_symlink),
    ROW(trunc_symlink),   ROW(from_outside), ROW(nofollow_symlink),
    ROW(fopen_w),         ROW(fopen_a),      ROW(through_hard_link),
    ROW(fopen_r_plus),    ROW(fopen_w_plus), ROW(freopen),
    ROW(freopen_itself),  ROW(pwritev),      ROW(freopen_itself_w),
    ROW(copy_file_range), ROW(sendfile),     ROW(mmap),
    ROW(ftruncate),       ROW(truncate),     ROW(truncate_symlink),
    ROW(forked),          ROW(cp),           ROW(shell),
    ROW(spawn_addopen),   ROW(copy_within),  {NULL, NULL},
};
