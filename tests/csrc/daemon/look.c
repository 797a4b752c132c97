/* Tests scan/look.c: how the attributes of files and file systems are read. */
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <sys/vfs.h>
#include <unistd.h>

/* told: if set, the attributes that statx returns. stat_error: if set, the error with which statx
 * fails. stat_flags, stat_mask: the flags and the mask of the last call. */
static struct statx *told;
static int stat_error, stat_flags;
static unsigned stat_mask;
static int tell_stat(int dir, const char *path, int flags, unsigned mask, struct statx *x) {
    stat_flags = flags;
    stat_mask = mask;
    if (stat_error) {
        errno = stat_error;
        return -1;
    }
    if (!told)
        return statx(dir, path, flags, mask, x);
    *x = *told;
    return 0;
}
static int tell_nothing(int fd, struct statfs *s) {
    errno = EIO;
    return -1;
}
static int (*tell_filesystem)(int fd, struct statfs *s) = fstatfs;
#define statx(dir, path, flags, mask, x) tell_stat(dir, path, flags, mask, x)
#define fstatfs(fd, s) tell_filesystem(fd, s)
#include "scan/look.c"
#undef statx
#undef fstatfs

#include "checks.h"

static int here;
static void make(void) {
    here = open(".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    told = NULL;
    stat_error = 0;
}

/* A file's link in /proc leads to the file, and the file system is not asked. */
TEST(an_open_file_is_found_from_its_link) {
    make();
    int fds[] = {make_file("open", 10, 1), here, open("/dev/null", O_RDONLY | O_CLOEXEC)};
    struct monarch_open_file found;
    struct stat st;
    char path[32];
    CHECK(fstat(fds[0], &st) == 0);
    for (int i = 0; i < 3; i++) {
        snprintf(path, sizeof path, "/proc/self/fd/%d", fds[i]);
        SAME(monarch_find_open_file(path, &found), i == 0);
        SAME(stat_flags, AT_STATX_DONT_SYNC);
        if (!i)
            CHECK(found.dev == st.st_dev && found.ino == st.st_ino && found.links == 1);
    }
    unlink("open");
    snprintf(path, sizeof path, "/proc/self/fd/%d", fds[0]);
    CHECK(monarch_find_open_file(path, &found) && found.links == 0);
    close(fds[0]);
    close(fds[2]);
    SAME(monarch_find_open_file(path, &found), 0);
    close(here);
}

/* An entry has the attributes that stat returns, and the kind of its file. */
TEST(an_entry_is_what_stat_tells) {
    make();
    close(make_file("file", 12345, 1));
    CHECK(symlink("file", "link") == 0 && mkdir("dir", 0751) == 0 && mkfifo("pipe", 0640) == 0);
    CHECK(link("file", "other") == 0);
    const char *paths[] = {"file", "link", "dir", "pipe", ""};
    const int kinds[] = {MONARCH_FILE, MONARCH_LINK, MONARCH_DIR, MONARCH_OTHER, MONARCH_DIR};
    for (int i = 0; i < 5; i++) {
        struct monarch_entry e;
        struct stat st;
        char target[16] = "unset";
        memset(&e, 0xff, sizeof e);
        CHECK(fstatat(here, paths[i], &st, AT_SYMLINK_NOFOLLOW | AT_EMPTY_PATH) == 0);
        SAME(monarch_stat_entry(here, 3, paths[i], &e, target, sizeof target), 0);
        CHECK(e.kind == kinds[i] && e.source == 3 && e.place == MONARCH_NO_PLACE && e.word == 0);
        CHECK(e.ino == st.st_ino && e.size == (uint64_t)st.st_size && e.mode == st.st_mode);
        CHECK(e.blocks == (uint64_t)st.st_blocks && e.nlink == st.st_nlink);
        CHECK(e.uid == st.st_uid && e.gid == st.st_gid && e.blksize * 512 == st.st_blksize);
        SAME(e.mtime_ns, st.st_mtim.tv_sec * 1000000000LL + st.st_mtim.tv_nsec);
        SAME(e.ctime_ns, st.st_ctim.tv_sec * 1000000000LL + st.st_ctim.tv_nsec);
        SAME(e.atime_ns, st.st_atim.tv_sec * 1000000000LL + st.st_atim.tv_nsec);
        CHECK(strcmp(target, i == 1 ? "file" : "unset") == 0);
    }
    close(here);
}

/* A link's target must fit into the caller's buffer together with its NUL. */
TEST(a_target_fits_or_is_too_long) {
    make();
    CHECK(symlink("target", "link") == 0);
    struct monarch_entry e;
    char target[16];
    for (uint64_t room = 1; room < 10; room++) {
        memset(target, 'x', sizeof target);
        SAME(monarch_stat_entry(here, 0, "link", &e, target, room), room > 6 ? 0 : -ENAMETOOLONG);
        if (room > 6)
            SAME(strcmp(target, "target"), 0);
        SAME(target[room], 'x');
    }
    close(here);
}

/* The caller's flags reach the kernel, and a link is never followed. If statx fails, the look
 * returns the errno as a negative number. */
TEST(a_look_has_the_flags_of_its_caller) {
    make();
    struct monarch_entry e;
    char target[1];
    SAME(monarch_statx_entry(here, 0, "none", AT_STATX_DONT_SYNC, &e, target, 1), -ENOENT);
    CHECK(stat_flags == (AT_SYMLINK_NOFOLLOW | AT_EMPTY_PATH | AT_STATX_DONT_SYNC));
    CHECK((stat_mask & (STATX_BASIC_STATS | STATX_BTIME)) == (STATX_BASIC_STATS | STATX_BTIME));
    CHECK(e.word == 0 && e.kind == 0 && e.place == MONARCH_NO_PLACE);
    SAME(monarch_stat_entry(here, 0, "none", &e, target, 1), -ENOENT);
    SAME(stat_flags, AT_SYMLINK_NOFOLLOW | AT_EMPTY_PATH);
    stat_error = EIO;
    SAME(monarch_stat_entry(here, 0, "", &e, target, 1), -EIO);
    close(here);
}

/* A file whose times or block size do not fit into the catalog is left to the source. A time of
 * birth that the file system does not report is not examined. */
TEST(what_the_catalog_cannot_hold_is_left_to_the_source) {
    const int64_t most = 9000000000LL;
    const struct {
        int64_t m, c, a, b;
        uint32_t blksize;
        int has_b, is_left;
    } cases[] = {{1, 2, 3, 4, 4096, 1, 0},
                 {most, most, most, most, 512, 1, 0},
                 {-most, -most, -most, -most, 512, 1, 0},
                 {most + 1, 0, 0, 0, 4096, 1, 1},
                 {0, most + 1, 0, 0, 4096, 1, 1},
                 {0, 0, most + 1, 0, 4096, 1, 1},
                 {0, 0, 0, most + 1, 4096, 1, 1},
                 {0, 0, 0, most + 1, 4096, 0, 0},
                 {-most - 1, 0, 0, 0, 4096, 1, 1},
                 {0, 0, 0, 0, 65535 * 512, 1, 0},
                 {0, 0, 0, 0, 65536 * 512, 1, 1},
                 {0, 0, 0, 0, 4097, 1, 1}};
    make();
    for (unsigned i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct statx x = {.stx_mode = S_IFREG, .stx_blksize = cases[i].blksize};
        x.stx_mask = cases[i].has_b ? STATX_BTIME : 0;
        x.stx_mtime.tv_sec = cases[i].m;
        x.stx_ctime.tv_sec = cases[i].c;
        x.stx_atime.tv_sec = cases[i].a;
        x.stx_btime.tv_sec = cases[i].b;
        x.stx_btime.tv_nsec = 7;
        struct monarch_entry e;
        told = &x;
        SAME(monarch_stat_entry(here, 0, "file", &e, NULL, 0), 0);
        SAME(e.word,
             cases[i].is_left ? monarch_word(MONARCH_BYPASS, MONARCH_UNSUPPORTED, 0, 0) : 0);
        if (!cases[i].is_left)
            SAME(e.btime_ns, cases[i].has_b ? cases[i].b * 1000000000 + 7 : 0);
    }
    close(here);
}

/* An entry has the flag MONARCH_ATTRIBUTES only if the file has an attribute that its file system
 * supports. */
TEST(only_attributes_that_are_supported_count) {
    make();
    for (unsigned bits = 0; bits < 4; bits++) {
        struct statx x = {.stx_mode = S_IFREG, .stx_attributes = 4 * (bits & 1)};
        x.stx_attributes_mask = 4 * (bits >> 1);
        struct monarch_entry e;
        told = &x;
        SAME(monarch_stat_entry(here, 0, "file", &e, NULL, 0), 0);
        SAME(e.flags, bits == 3 ? MONARCH_ATTRIBUTES : 0);
    }
    close(here);
}

/* monarch_read_filesystem gets the fields of statfs, and the attributes that statx can report
 * for files of the file system. If one of the two calls fails, only its own fields are missing. */
TEST(a_file_system_is_what_statfs_tells) {
    make();
    for (int way = 0; way < 3; way++) {
        struct monarch_filesystem f = {0};
        struct statfs s;
        struct statx x, two;
        tell_filesystem = way == 1 ? tell_nothing : fstatfs;
        stat_error = way == 2 ? EIO : 0;
        CHECK(fstatfs(here, &s) == 0);
        CHECK(statx(here, "", AT_EMPTY_PATH, STATX_BASIC_STATS, &x) == 0);
        CHECK(statx(here, "", AT_EMPTY_PATH, STATX_BASIC_STATS | STATX_BTIME, &two) == 0);
        monarch_read_filesystem(here, &f);
        SAME(f.statx_mask[0], way == 2 ? 0 : x.stx_mask);
        SAME(f.statx_mask[1], way == 2 ? 0 : two.stx_mask);
        SAME(f.attributes_mask, way == 2 ? 0 : x.stx_attributes_mask);
        SAME(f.mount, way == 2 ? 0 : x.stx_mnt_id);
        int is_told = way != 1;
        SAME(f.type, is_told ? s.f_type : 0);
        SAME(f.bsize, is_told ? s.f_bsize : 0);
        SAME(f.frsize, is_told ? s.f_frsize : 0);
        SAME(f.namelen, is_told ? s.f_namelen : 0);
        SAME(f.flags, is_told ? s.f_flags : 0);
        SAME(f.blocks, is_told ? s.f_blocks : 0);
        SAME(f.files, is_told ? s.f_files : 0);
        CHECK(f.bavail <= f.bfree && f.bfree <= f.blocks && f.ffree <= f.files);
        CHECK(memcmp(f.fsid, &s.f_fsid, sizeof f.fsid) == 0 || !is_told);
    }
    close(here);
}
