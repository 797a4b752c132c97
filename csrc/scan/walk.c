/* Lists directories, and reads the attributes of the files in them. */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "publish/writer.h"
#include "scan/scan.h"
#include "shared/claims.h"
#include "shared/sys.h"

/* A thread may begin to list a directory while it still lists another one (look_at_own). At most
 * this many further directories are begun in this manner. */
#define DEEPEST 4

static void pace(struct monarch_scan *s) { monarch_keep_pace(&s->pace, UINT64_MAX); }

static int is_on_source(struct monarch_scan *s, const char *path) {
    struct stat st;
    return fstatat(s->root, path, &st, AT_SYMLINK_NOFOLLOW) == 0 && st.st_dev == s->dev;
}

static _Thread_local uint64_t looks; /* how many names this thread has examined */

uint64_t monarch_looks(void) { return looks; }

/* Looks for the file in the catalog, which may already contain it: for example, a program may have
 * handed over its descriptor. Returns whether the entry's inode number is `ino`, the number that
 * the directory shows now. If so, *e has the file's attributes, and the scan need not read them. */
static int is_known(struct monarch_scan *s, const char *path, uint64_t ino,
                    struct monarch_entry *e) {
    struct monarch_writer *w = s->writer;
    if (!w || !monarch_lock_soon(w))
        return 0;
    const struct monarch_catalog *c = w->catalog;
    int64_t id = monarch_find(c, s->source, path, strlen(path));
    if (id >= 0)
        *e = monarch_entries(c)[id];
    pthread_mutex_unlock(&w->lock);
    e->word = 0;
    return id >= 0 && e->kind == MONARCH_FILE && e->ino == ino;
}

static void visit(struct monarch_scan *s, struct monarch_batch **batch, const char *path,
                  uint32_t place, uint64_t ino, int is_settled) {
    struct monarch_entry e;
    char target[MONARCH_PATH_MAX];
    uint64_t renames = monarch_renames_before(s);
    if (is_settled && is_known(s, path, ino, &e)) {
        e.place = place;
        monarch_report(s, batch, &e, path, "", renames);
        return;
    }
    pace(s);
    looks++;
    int is_read =
        s->clients && monarch_is_being_read(s->clients, monarch_unmet(ino), ino, monarch_now_ns());
    int r = monarch_statx_entry(s->root, s->source, path, is_read ? AT_STATX_DONT_SYNC : 0, &e,
                                target, sizeof target);
    if (r != 0) {
        if (r != -ENOENT)
            monarch_count_scan_error(s, -r);
        return;
    }
    /* If another file system is mounted on this directory, the mounted file system does not belong
     * to the source and is not scanned. */
    if (e.kind == MONARCH_DIR && !is_on_source(s, path)) {
        e.kind = MONARCH_OTHER;
        e.ino = ino;
    }
    e.place = place;
    monarch_report(s, batch, &e, path, target, renames);
    if (e.kind == MONARCH_DIR && s->is_deep)
        monarch_add_task(s, monarch_new_task(s, path, 0));
}

/* Call this after all names of a directory have been read. Reports the directory again, with the
 * number of its names and its current attributes. If these attributes differ from those read before
 * the names, the directory has changed in between. Its names may then be a mix of old and new ones,
 * so it gets no listing (meet_again in publish/writer.c). Does nothing unless the whole source is
 * scanned, because listings are made only once (monarch_catalog_list). */
static void close_listing(struct monarch_scan *s, struct monarch_batch **batch, const char *path,
                          int fd, uint32_t names) {
    struct monarch_entry e;
    char target[1];
    if (!s->is_whole)
        return;
    pace(s);
    uint64_t renames = monarch_renames_before(s);
    if (monarch_stat_entry(fd, s->source, "", &e, target, sizeof target) != 0)
        return;
    e.sum = names + 1ULL;
    monarch_report(s, batch, &e, path, target, renames);
}

void monarch_look_at_names(struct monarch_scan *s, struct monarch_batch **batch, struct task *t) {
    char child[MONARCH_PATH_MAX];
    size_t len = strlen(t->path);
    const char *at = t->path + len + 1;
    memcpy(child, t->path, len);
    if (len)
        child[len++] = '/';
    for (uint32_t i = 0; i < t->names && !__atomic_load_n(&s->stopping, __ATOMIC_RELAXED); i++) {
        uint64_t ino;
        memcpy(&ino, at, sizeof ino);
        at += sizeof ino;
        size_t n = strlen(at) + 1;
        if (len + n <= sizeof child) {
            memcpy(child + len, at, n);
            visit(s, batch, child, t->place + i, ino, t->is_settled);
            monarch_hand_over_in_time(s, batch);
        }
        at += n;
    }
}

/* Examines names that this thread has listed and kept for itself. While no names may be examined
 * (monarch_scan_allow), the thread lists wanted directories. If it only waited, all threads could
 * be waiting here, and nobody would list the wanted directories. */
static void look_at_own(struct monarch_scan *s, struct monarch_batch **batch, struct task *t) {
    static _Thread_local int depth;
    pthread_mutex_lock(&s->lock);
    while (!monarch_may_look(s, t) && !s->stopping) {
        struct task *wanted =
            s->wanted.first && depth < DEEPEST ? monarch_take_first_task(&s->wanted) : NULL;
        pthread_mutex_unlock(&s->lock);
        monarch_hand_over_batch(s, batch);
        depth++;
        if (wanted)
            monarch_walk_directory(s, batch, wanted);
        depth--;
        free(wanted);
        pthread_mutex_lock(&s->lock);
        if (!wanted && !monarch_may_look(s, t) && !s->stopping)
            pthread_cond_wait(&s->may_go_on, &s->lock);
    }
    monarch_count_looks(s, t);
    pthread_mutex_unlock(&s->lock);
    monarch_look_at_names(s, batch, t);
}

static void share_out(struct monarch_scan *s, struct monarch_batch **batch, struct task *t) {
    if (!monarch_others_have_enough(s, t)) {
        monarch_add_task(s, t);
        return;
    }
    look_at_own(s, batch, t);
    free(t);
}

static int is_dot(const char *name) {
    return name[0] == '.' && (!name[1] || (name[1] == '.' && !name[2]));
}

static struct task *new_portion(struct monarch_scan *s, const struct task *directory, size_t room) {
    struct task *t = monarch_new_task(s, directory->path, room);
    if (t) {
        t->is_wanted = directory->is_wanted;
        t->is_settled = directory->is_settled;
    }
    return t;
}

/* Reads the names of a directory and distributes them in portions to the scan's threads. Only the
 * last portion is stored in *rest instead. Returns the number of names, or -1 if not all could be
 * read. */
static int64_t list_names(struct monarch_scan *s, struct monarch_batch **batch,
                          const struct task *directory, DIR *d, struct task **rest) {
    const char *path = directory->path;
    const size_t room = PORTION * (sizeof(uint64_t) + NAME_MAX + 1);
    uint32_t names = 0;
    struct task *t = NULL;
    errno = 0;
    for (struct dirent *entry; (entry = readdir(d)); errno = 0) {
        if (__atomic_load_n(&s->stopping, __ATOMIC_RELAXED)) {
            errno = ECANCELED;
            break;
        }
        if (is_dot(entry->d_name)) {
            if (!*path && entry->d_name[1])
                __atomic_store_n(&s->up_ino, entry->d_ino, __ATOMIC_RELAXED);
            continue;
        }
        size_t n = strlen(entry->d_name) + 1;
        if (t &&
            (t->names == PORTION || t->text + sizeof(uint64_t) + n > strlen(path) + 1 + room)) {
            share_out(s, batch, t);
            t = NULL;
        }
        if (!t && !(t = new_portion(s, directory, room)))
            break;
        t->place = t->names ? t->place : names;
        uint64_t ino = entry->d_ino;
        memcpy(t->path + t->text, &ino, sizeof ino);
        memcpy(t->path + t->text + sizeof ino, entry->d_name, n);
        t->text += sizeof ino + n;
        t->names++;
        names++;
    }
    *rest = t;
    return errno ? -1 : (int64_t)names;
}

/* Reports the directory that the walk begins with. Returns whether it lies on the source's file
 * system. */
static int report_first(struct monarch_scan *s, struct monarch_batch **batch, const char *path,
                        int fd) {
    struct monarch_entry e;
    struct stat st;
    char target[1];
    uint64_t renames = monarch_renames_before(s);
    if (fstat(fd, &st) != 0 || st.st_dev != s->dev)
        return 0;
    if (monarch_stat_entry(fd, s->source, "", &e, target, sizeof target) == 0)
        monarch_report(s, batch, &e, path, "", renames);
    return 1;
}

#define OPEN_DIRECTORY (O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC)

/* Opens a directory that a client or user has named, one component of its path after the other.
 * Each component must be a directory of the source, not a link or "..". Directories that the walk
 * finds below it need no such check. */
static int open_by_parts(int root, const char *path) {
    char part[NAME_MAX + 1];
    int fd = openat(root, ".", OPEN_DIRECTORY);
    for (size_t n; fd >= 0 && *path; path += n + (path[n] == '/')) {
        n = strcspn(path, "/");
        int next = -1, above = fd;
        errno = n < sizeof part ? ENOTDIR : ENAMETOOLONG;
        if (n && n < sizeof part) {
            memcpy(part, path, n);
            part[n] = 0;
            next = is_dot(part) ? -1 : openat(above, part, OPEN_DIRECTORY);
        }
        int error = errno;
        close(above);
        errno = error;
        fd = next;
    }
    return fd;
}

static int open_directory(const struct monarch_scan *s, const struct task *t) {
    if (t->is_first)
        return open_by_parts(s->root, t->path);
    return openat(s->root, *t->path ? t->path : ".", OPEN_DIRECTORY);
}

/* A directory counts as unchanged since `since_ns` only if its last change was more than this long
 * [ns] before `since_ns`. A server's timestamps may be coarse, and its clock may be wrong. */
#define YOUNG_NS 2000000000LL

static int is_settled(const struct monarch_scan *s, int fd) {
    struct stat st;
    int64_t limit = s->since_ns - YOUNG_NS;
    return s->writer && fstat(fd, &st) == 0 &&
           monarch_time_ns(st.st_mtim.tv_sec, st.st_mtim.tv_nsec) < limit &&
           monarch_time_ns(st.st_ctim.tv_sec, st.st_ctim.tv_nsec) < limit;
}

void monarch_walk_directory(struct monarch_scan *s, struct monarch_batch **batch, struct task *t) {
    const char *path = t->path;
    struct task *rest = NULL;
    pace(s);
    int fd = open_directory(s, t);
    DIR *d = fd >= 0 ? fdopendir(fd) : NULL;
    if (!d) {
        if (errno != ENOENT) /* ENOENT: the directory was removed after its name was found */
            monarch_count_scan_error(s, errno);
        if (fd >= 0)
            close(fd);
        return;
    }
    t->is_settled = is_settled(s, fd);
    if (!t->is_first || report_first(s, batch, path, fd)) {
        int64_t names = list_names(s, batch, t, d, &rest);
        if (names < 0 && errno != ECANCELED)
            monarch_count_scan_error(s, errno);
        if (names >= 0)
            close_listing(s, batch, path, fd, (uint32_t)names);
    }
    closedir(d);
    if (rest)
        look_at_own(s, batch, rest);
    free(rest);
}
