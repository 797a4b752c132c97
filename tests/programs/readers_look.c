/* C readers of attributes and names. They use all variants of stat (old and new), and also locks
 * and listings. */
#include "readers.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <ftw.h>
#include <glob.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/sysmacros.h>
#include <unistd.h>

/* Programs that were built before glibc 2.33 call these functions for stat. Newer versions of glibc
 * have them only for old programs, so a reference must name the symbol's version. */
#if defined(__x86_64__)
#define STAT_VERSION 1
#define FIRST "@GLIBC_2.2.5"
#define FIRST_AT "@GLIBC_2.4"
#elif defined(__aarch64__)
#define STAT_VERSION 0
#define FIRST "@GLIBC_2.17"
#define FIRST_AT "@GLIBC_2.17"
#else
#error "say here which versions of glibc first had __xstat and __fxstatat on this machine"
#endif
#define OLD_SYMBOL(name, alias, version) __asm__(".symver " #alias ", " #name version)
OLD_SYMBOL(__xstat, old_xstat, FIRST);
OLD_SYMBOL(__lxstat, old_lxstat, FIRST);
OLD_SYMBOL(__fxstat, old_fxstat, FIRST);
OLD_SYMBOL(__fxstatat, old_fxstatat, FIRST_AT);
OLD_SYMBOL(__xstat64, old_xstat64, FIRST);
OLD_SYMBOL(__lxstat64, old_lxstat64, FIRST);
OLD_SYMBOL(__fxstat64, old_fxstat64, FIRST);
OLD_SYMBOL(__fxstatat64, old_fxstatat64, FIRST_AT);
extern int old_xstat(int version, const char *path, struct stat *status);
extern int old_lxstat(int version, const char *path, struct stat *status);
extern int old_fxstat(int version, int fd, struct stat *status);
extern int old_fxstatat(int version, int dir, const char *path, struct stat *status, int flags);
extern int old_xstat64(int version, const char *path, struct stat64 *status);
extern int old_lxstat64(int version, const char *path, struct stat64 *status);
extern int old_fxstat64(int version, int fd, struct stat64 *status);
extern int old_fxstatat64(int version, int dir, const char *path, struct stat64 *status, int flags);

/* On 64-bit machines, struct stat64 has the layout of struct stat. */
void tell_stat64(const struct file *file, const char *way, const struct stat64 *s) {
    struct stat same;
    _Static_assert(sizeof same == sizeof *s, "this machine has two layouts of struct stat");
    memcpy(&same, s, sizeof same);
    tell_stat(file, way, &same);
}

void look_stat(const struct file *file) {
    struct stat status;
    struct stat64 status64;
    int fd = checked(open(file->path, O_RDONLY), file);
    if (stat(file->path, &status))
        die("stat %s", file->name);
    tell_stat(file, "stat", &status);
    if (lstat(file->path, &status))
        die("lstat %s", file->name);
    tell_stat(file, "lstat", &status);
    if (fstat(fd, &status))
        die("fstat %s", file->name);
    tell_stat(file, "fstat", &status);
    if (stat64(file->path, &status64))
        die("stat64 %s", file->name);
    tell_stat64(file, "stat64", &status64);
    if (lstat64(file->path, &status64))
        die("lstat64 %s", file->name);
    tell_stat64(file, "lstat64", &status64);
    if (fstat64(fd, &status64))
        die("fstat64 %s", file->name);
    tell_stat64(file, "fstat64", &status64);
    close(fd);
}

void look_xstat(const struct file *file) {
    struct stat status;
    struct stat64 status64;
    int fd = checked(open(file->path, 0), file);
    if (old_xstat(STAT_VERSION, file->path, &status))
        die("__xstat %s", file->name);
    tell_stat(file, "__xstat", &status);
    if (old_lxstat(STAT_VERSION, file->path, &status))
        die("__lxstat %s", file->name);
    tell_stat(file, "__lxstat", &status);
    if (old_fxstat(STAT_VERSION, fd, &status))
        die("__fxstat %s", file->name);
    tell_stat(file, "__fxstat", &status);
    if (old_fxstatat(STAT_VERSION, fd, "", &status, AT_EMPTY_PATH))
        die("__fxstatat %s", file->name);
    tell_stat(file, "__fxstatat", &status);
    if (old_xstat64(STAT_VERSION, file->path, &status64))
        die("__xstat64 %s", file->name);
    tell_stat64(file, "__xstat64", &status64);
    if (old_lxstat64(STAT_VERSION, file->path, &status64))
        die("__lxstat64 %s", file->name);
    tell_stat64(file, "__lxstat64", &status64);
    if (old_fxstat64(STAT_VERSION, fd, &status64))
        die("__fxstat64 %s", file->name);
    tell_stat64(file, "__fxstat64", &status64);
    if (old_fxstatat64(STAT_VERSION, AT_FDCWD, file->path, &status64, 0))
        die("__fxstatat64 %s", file->name);
    tell_stat64(file, "__fxstatat64", &status64);
    close(fd);
}

void look_fstatat(const struct file *file) {
    struct stat status;
    struct stat64 status64;
    int directory = open(root, O_RDONLY | O_DIRECTORY), fd = checked(open(file->path, 0), file);
    if (directory < 0)
        die("open the dataset");
    if (fstatat(directory, file->name, &status, AT_SYMLINK_NOFOLLOW))
        die("fstatat %s", file->name);
    tell_stat(file, "fstatat", &status);
    if (fstatat(fd, "", &status, AT_EMPTY_PATH))
        die("fstatat with an empty path, %s", file->name);
    tell_stat(file, "fstatat_empty", &status);
    if (fstatat64(fd, "", &status64, AT_EMPTY_PATH))
        die("fstatat64 with an empty path, %s", file->name);
    tell_stat64(file, "fstatat64_empty", &status64);
    printf("%s %s access=%d%d\n", reader_name, file->name,
           faccessat(directory, file->name, R_OK, 0), access(file->path, X_OK));
    close(directory);
    close(fd);
}

static void tell_statx(const struct file *file, const char *way, const struct statx *s) {
    printf("%s %s %s dev=%u:%u ino=%llu mode=%o nlink=%u uid=%u gid=%u size=%llu blocks=%llu "
           "mtime=%lld.%09u ctime=%lld.%09u\n",
           reader_name, file->name, way, s->stx_dev_major, s->stx_dev_minor,
           (unsigned long long)s->stx_ino, s->stx_mode, s->stx_nlink, s->stx_uid, s->stx_gid,
           (unsigned long long)s->stx_size, (unsigned long long)s->stx_blocks,
           (long long)s->stx_mtime.tv_sec, s->stx_mtime.tv_nsec, (long long)s->stx_ctime.tv_sec,
           s->stx_ctime.tv_nsec);
}

void look_statx(const struct file *file) {
    struct statx status;
    int directory = open(root, O_RDONLY | O_DIRECTORY), fd = checked(open(file->path, 0), file);
    if (directory < 0)
        die("open the dataset");
    if (statx(AT_FDCWD, file->path, 0, STATX_BASIC_STATS, &status))
        die("statx %s", file->name);
    tell_statx(file, "statx", &status);
    if (statx(directory, file->name, AT_SYMLINK_NOFOLLOW, STATX_BASIC_STATS, &status))
        die("statx by directory, %s", file->name);
    tell_statx(file, "statx_directory", &status);
    if (statx(fd, "", AT_EMPTY_PATH, STATX_BASIC_STATS, &status))
        die("statx with an empty path, %s", file->name);
    tell_statx(file, "statx_empty", &status);
    close(directory);
    close(fd);
}

/* HDF5 takes locks with flock; SQLite and LMDB take record locks. These libraries also read from
 * the locked descriptors. */
void look_locks(const struct file *file) {
    struct flock reading = {.l_type = F_RDLCK, .l_whence = SEEK_SET};
    struct flock writing = {.l_type = F_WRLCK, .l_whence = SEEK_SET};
    int fd = checked(open(file->path, O_RDONLY), file);
    int other = checked(open(file->path, O_RDONLY), file);
    int shared = flock(fd, LOCK_SH | LOCK_NB), twice = flock(other, LOCK_SH | LOCK_NB);
    int unlocked = flock(fd, LOCK_UN), record = fcntl(fd, F_SETLK, &reading);
    int not_open_for_writing = fcntl(fd, F_SETLK, &writing) ? errno : 0;
    printf("%s %s flock %d %d %d record %d %d\n", reader_name, file->name, shared, twice, unlocked,
           record, not_open_for_writing);
    drain_and_close(fd, file, "locked");
    close(other);
}

static int each_entry(const char *path, const struct stat *status, int kind, struct FTW *place) {
    struct file entry = {.path = (char *)path, .name = (char *)path + strlen(root)};
    printf("%s kind=%d level=%d\n", reader_name, kind, place->level);
    tell_stat(&entry, "nftw", status);
    return 0;
}

static int not_hidden(const struct dirent *entry) { return entry->d_name[0] != '.'; }

/* nftw, glob and scandir open directories inside libc, so wrappers of open are not called. */
void list_all(void) {
    struct dirent **entries;
    char pattern[4096];
    glob_t found;
    int count = scandir(root, &entries, not_hidden, alphasort);
    if (count < 0)
        die("scandir");
    for (int i = 0; i < count; i++) {
        printf("%s scandir %s type=%d\n", reader_name, entries[i]->d_name, entries[i]->d_type);
        free(entries[i]);
    }
    free(entries);
    snprintf(pattern, sizeof pattern, "%s/*/*_00*", root);
    if (glob(pattern, 0, NULL, &found))
        die("glob %s", pattern);
    for (size_t i = 0; i < found.gl_pathc; i++)
        printf("%s glob %s\n", reader_name, found.gl_pathv[i] + strlen(root));
    globfree(&found);
    if (nftw(root, each_entry, 16, FTW_PHYS))
        die("nftw");
}
