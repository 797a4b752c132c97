/* Operations that change names, and operations that change attributes by name. */
#include <sys/time.h>
#include <sys/xattr.h>
#include <utime.h>

#include "change.h"

static void make(const char *path, const char *text) {
    int fd = open(path, O_WRONLY | O_CREAT | O_EXCL, 0644);
    SAY(fd >= 0);
    SAY(write(fd, text, strlen(text)));
    SAY(close(fd));
}

/* --- renaming --- */

static void op_rename_away(void) { SAY(rename(in("f"), in("h"))); }
static void op_rename_over(void) { SAY(rename(in("g"), in("f"))); }
static void op_rename_in(void) { SAY(rename(out("new"), in("f"))); }
static void op_rename_out(void) { SAY(rename(in("f"), out("gone"))); }
static void op_rename_symlink_over(void) { SAY(rename(in("to_f"), in("g"))); }

static void op_rename_directory(void) {
    SAY(rename(in("d"), in("moved")));
    SAY(mkdir(in("d"), 0755));
    make(in("d/x"), "another x");
}

static void op_rename_directory_over(void) {
    SAY(unlink(in("e/x")));
    SAY(rename(in("d"), in("e")));
}

static void op_rename_directory_out(void) { SAY(rename(in("d"), out("d"))); }

static void op_renameat(void) {
    int a = open(in("d"), O_RDONLY | O_DIRECTORY), b = open(in("e"), O_PATH | O_DIRECTORY);
    SAY(renameat(a, "x", b, "x"));
    SAY(renameat(a, "nothing", b, "x"));
}

static void op_exchange(void) {
    SAY(renameat2(AT_FDCWD, in("f"), AT_FDCWD, in("g"), RENAME_EXCHANGE));
}

static void op_exchange_directories(void) {
    SAY(renameat2(AT_FDCWD, in("d"), AT_FDCWD, in("e"), RENAME_EXCHANGE));
}

static void op_exchange_file_and_directory(void) {
    SAY(renameat2(AT_FDCWD, in("d"), AT_FDCWD, in("f"), RENAME_EXCHANGE));
}

static void op_noreplace(void) {
    SAY(renameat2(AT_FDCWD, in("f"), AT_FDCWD, in("g"), RENAME_NOREPLACE));
    SAY(renameat2(AT_FDCWD, in("f"), AT_FDCWD, in("h"), RENAME_NOREPLACE));
}

static void op_replace_directory_by_link(void) {
    SAY(rename(in("d"), in("was_d")));
    SAY(symlink("e", in("d")));
}

static void op_mkstemp(void) {
    char *name = (char *)in("tmpXXXXXX");
    int fd = mkstemp64(name);
    SAY(write(fd, "fresh", 5));
    SAY(close(fd));
    SAY(rename(name, in("f")));
}

static void op_mkostemps(void) {
    char *name = (char *)in("tmpXXXXXX.bin");
    int fd = mkostemps(name, 4, O_CLOEXEC);
    SAY(write(fd, "fresh", 5));
    SAY(fchmod(fd, 0644));
    SAY(rename(name, in("f")));
}

/* --- linking and removing --- */

static void op_link(void) { SAY(link(in("f"), in("h"))); }
static void op_linkat(void) { SAY(linkat(AT_FDCWD, in("to_f"), AT_FDCWD, in("h"), 0)); }
static void op_linkat_follow(void) {
    SAY(linkat(AT_FDCWD, in("to_f"), AT_FDCWD, in("h"), AT_SYMLINK_FOLLOW));
}
static void op_unlink(void) { SAY(unlink(in("f"))); }
static void op_unlink_hard(void) { SAY(unlink(in("hard"))); }
static void op_remove(void) { SAY(remove(in("f"))); }

static void op_unlinkat(void) {
    int dir = open(in("d"), O_RDONLY | O_DIRECTORY);
    SAY(unlinkat(dir, "x", 0));
    SAY(unlinkat(dir, "y", 0));
    SAY(unlinkat(AT_FDCWD, in("d"), AT_REMOVEDIR));
}

static void op_recreate(void) {
    SAY(unlink(in("f")));
    SAY(unlink(in("hard")));
    make(in("f"), "recreated");
}

static void op_link_over(void) {
    SAY(unlink(in("f")));
    SAY(link(in("g"), in("f")));
}

static void op_file_becomes_link(void) {
    SAY(unlink(in("f")));
    SAY(symlink("g", in("f")));
}

static void op_other_target(void) {
    SAY(unlink(in("to_f")));
    SAY(symlink("g", in("to_f")));
}

static void op_rmdir(void) {
    SAY(unlink(in("e/x")));
    SAY(rmdir(in("e")));
    SAY(symlink("d", in("e")));
}

static void op_o_tmpfile(void) {
    char path[64];
    int fd = open(here, O_TMPFILE | O_RDWR, 0640);
    SAY(fd >= 0);
    if (fd < 0)
        return;
    SAY(write(fd, "nameless", 8));
    snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
    SAY(unlink(in("g")));
    SAY(linkat(AT_FDCWD, path, AT_FDCWD, in("g"), AT_SYMLINK_FOLLOW));
}

/* --- attributes by name --- */

static const struct timespec some_times[2] = {{1500000000, 111}, {1500000001, 222}};
static const struct timeval some_timevals[2] = {{1500000000, 111}, {1500000001, 222}};
static const struct utimbuf some_seconds = {1500000000, 1500000001};

static void op_chmod(void) { SAY(chmod(in("f"), 0600)); }
static void op_chmod_symlink(void) { SAY(chmod(in("to_f"), 0600)); }
static void op_lchmod(void) { SAY(lchmod(in("f"), 0600)); }
static void op_fchmodat(void) {
    SAY(fchmodat(AT_FDCWD, in("f"), 0640, 0));
    SAY(fchmodat(AT_FDCWD, in("g"), 0640, AT_SYMLINK_NOFOLLOW));
}
static void op_chown(void) { SAY(chown(in("f"), getuid(), getgid())); }
static void op_chown_other(void) { SAY(chown(in("f"), 12345, 54321)); }
static void op_lchown(void) {
    SAY(lchown(in("f"), getuid(), getgid()));
    SAY(lchown(in("to_f"), 1, 1));
}
static void op_fchownat(void) {
    SAY(fchownat(AT_FDCWD, in("f"), 12345, -1, 0));
    SAY(fchownat(AT_FDCWD, in("f"), -1, -1, 0x8000));
}
static void op_utime(void) { SAY(utime(in("f"), &some_seconds)); }
static void op_utimes(void) { SAY(utimes(in("f"), some_timevals)); }
static void op_lutimes(void) {
    SAY(lutimes(in("f"), some_timevals));
    SAY(lutimes(in("to_f"), some_timevals));
}
static void op_futimesat(void) { SAY(futimesat(AT_FDCWD, in("f"), some_timevals)); }
static void op_utimensat(void) { SAY(utimensat(AT_FDCWD, in("f"), some_times, 0)); }
static void op_utimensat_nofollow(void) {
    SAY(utimensat(AT_FDCWD, in("g"), some_times, AT_SYMLINK_NOFOLLOW));
}
static void op_setxattr(void) {
    SAY(setxattr(in("f"), "user.a", "new", 3, XATTR_REPLACE));
    SAY(lsetxattr(in("g"), "user.b", "new", 3, 0));
}
static void op_removexattr(void) {
    SAY(removexattr(in("f"), "user.a"));
    SAY(lremovexattr(in("g"), "user.a"));
    SAY(lremovexattr(in("g"), "user.a"));
}

#define ROW(name) \
    { #name, op_##name }
const struct operation of_names[] = {
    ROW(rename_away),
    ROW(rename_over),
    ROW(rename_in),
    ROW(rename_out),
    ROW(rename_symlink_over),
    ROW(rename_directory),
    ROW(rename_directory_over),
    ROW(rename_directory_out),
    ROW(renameat),
    ROW(exchange),
    ROW(exchange_directories),
    ROW(exchange_file_and_directory),
    ROW(noreplace),
    ROW(replace_directory_by_link),
    ROW(mkstemp),
    ROW(mkostemps),
    ROW(link),
    ROW(linkat),
    ROW(linkat_follow),
    ROW(unlink),
    ROW(unlink_hard),
    ROW(remove),
    ROW(unlinkat),
    ROW(recreate),
    ROW(link_over),
    ROW(file_becomes_link),
    ROW(other_target),
    ROW(rmdir),
    ROW(o_tmpfile),
    ROW(chmod),
    ROW(chmod_symlink),
    ROW(lchmod),
    ROW(fchmodat),
    ROW(chown),
    ROW(chown_other),
    ROW(lchown),
    ROW(fchownat),
    ROW(utime),
    ROW(utimes),
    ROW(lutimes),
    ROW(futimesat),
    ROW(utimensat),
    ROW(utimensat_nofollow),
    ROW(setxattr),
    ROW(removexattr),
    {NULL, NULL},
};
