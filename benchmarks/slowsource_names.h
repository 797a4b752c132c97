/* slowsource: the files that the kernel has cached, and operations on names and attributes.
 * slowsource.c includes this file, and also the headers that this file needs. */

/* One file of BACKING that the kernel has cached. The address of the struct is the node number that
 * FUSE uses. `fd` is an O_PATH descriptor, which keeps the file's inode in BACKING in use. So no
 * new file can get the same (dev, ino). */
struct inode {
    struct inode *next;
    uint64_t lookups;
    dev_t dev;
    ino_t ino;
    int fd;
};

#define BUCKETS 65536

static struct inode root = {.fd = -1};
static struct inode *buckets[BUCKETS];
static pthread_mutex_t inodes_lock = PTHREAD_MUTEX_INITIALIZER;
static double attr_timeout_s;

/* Replies to a request with the success or failure of a system call. If the call has failed, its
 * result is -1, and errno contains the error. */
static void done(fuse_req_t req, long result) { fuse_reply_err(req, result == -1 ? errno : 0); }

/* If `result` is -1, replies to the request with errno and returns 1. Otherwise returns 0. */
static int failed(fuse_req_t req, long result) {
    return result == -1 ? (fuse_reply_err(req, errno), 1) : 0;
}

static struct inode *node(fuse_ino_t ino) {
    return ino == FUSE_ROOT_ID ? &root : (struct inode *)(uintptr_t)ino;
}

/* Returns a path in /proc that refers to the inode's descriptor. Calls such as open, chmod and
 * getxattr accept this path. They do not accept the descriptor itself, because it is an O_PATH
 * descriptor. */
struct proc_name {
    char s[32];
};
static struct proc_name proc_name(fuse_ino_t ino) {
    struct proc_name p;
    snprintf(p.s, sizeof p.s, "/proc/self/fd/%d", node(ino)->fd);
    return p;
}

/* Returns the struct inode of a file, and creates it if there is none. Returns NULL if there is no
 * memory. The caller must not use or close `fd` afterwards. */
static struct inode *remember(const struct stat *st, int fd) {
    struct inode **bucket = &buckets[(st->st_ino ^ st->st_dev * 31) % BUCKETS], *i;
    pthread_mutex_lock(&inodes_lock);
    for (i = *bucket; i && (i->ino != st->st_ino || i->dev != st->st_dev); i = i->next) {
    }
    if (i) {
        i->lookups++;
        close(fd);
    } else if ((i = malloc(sizeof *i))) {
        *i = (struct inode){*bucket, 1, st->st_dev, st->st_ino, fd};
        *bucket = i;
    } else {
        close(fd);
    }
    pthread_mutex_unlock(&inodes_lock);
    return i;
}

static void forget(fuse_ino_t ino, uint64_t lookups) {
    struct inode *i = node(ino);
    if (i == &root)
        return;
    pthread_mutex_lock(&inodes_lock);
    int last = (i->lookups -= lookups) == 0;
    if (last) {
        struct inode **p = &buckets[(i->ino ^ i->dev * 31) % BUCKETS];
        while (*p != i)
            p = &(*p)->next;
        *p = i->next;
    }
    pthread_mutex_unlock(&inodes_lock);
    if (last) {
        close(i->fd);
        free(i);
    }
}

static int find(fuse_ino_t parent, const char *name, struct fuse_entry_param *e) {
    *e = (struct fuse_entry_param){.attr_timeout = attr_timeout_s, .entry_timeout = attr_timeout_s};
    int fd = openat(node(parent)->fd, name, O_PATH | O_NOFOLLOW | O_CLOEXEC);
    if (fd == -1)
        return errno;
    if (fstat(fd, &e->attr) == -1) {
        int error = errno;
        close(fd);
        return error;
    }
    e->ino = (fuse_ino_t)(uintptr_t)remember(&e->attr, fd);
    return e->ino ? 0 : ENOMEM;
}

/* Replies with the directory entry of `name`, or with errno if `result` is -1. */
static void entry(fuse_req_t req, long result, fuse_ino_t parent, const char *name) {
    struct fuse_entry_param e;
    int error = result == -1 ? errno : find(parent, name, &e);
    if (error)
        fuse_reply_err(req, error);
    else
        fuse_reply_entry(req, &e);
}

/* The caller is the process that sent the request. as_caller is called before each system call that
 * creates a file, and give_to_caller after it. If this program runs as root, the two functions give
 * the new file the owner and the group of the caller. In a set-group-id directory, the kernel gives
 * the file the group of the directory instead. as_caller does not set the owner with setfsuid:
 * setfsuid would make the system call fail in a directory that the caller may write to only through
 * a supplementary group. */
static void as_caller(fuse_req_t req) {
    if (geteuid() == 0)
        setfsgid(fuse_req_ctx(req)->gid);
}
static long give_to_caller(fuse_req_t req, long result, fuse_ino_t parent, const char *name) {
    if (geteuid() != 0)
        return result;
    int error = errno;
    setfsgid(getegid());
    errno = error;
    if (result == -1)
        return -1;
    return fchownat(node(parent)->fd, name, fuse_req_ctx(req)->uid, (gid_t)-1,
                    AT_SYMLINK_NOFOLLOW) == -1
               ? -1
               : result;
}

/* ---- names and attributes ---- */

static void op_lookup(fuse_req_t req, fuse_ino_t parent, const char *name) {
    if (!refused(req, k_getattr))
        entry(req, 0, parent, name);
}

static void op_forget(fuse_req_t req, fuse_ino_t ino, uint64_t lookups) {
    forget(ino, lookups);
    fuse_reply_none(req);
}

static void op_forget_multi(fuse_req_t req, size_t n, struct fuse_forget_data *f) {
    for (size_t i = 0; i < n; i++)
        forget(f[i].ino, f[i].nlookup);
    fuse_reply_none(req);
}

static void reply_attr(fuse_req_t req, fuse_ino_t ino) {
    struct stat st;
    if (!failed(req, fstat(node(ino)->fd, &st)))
        fuse_reply_attr(req, &st, attr_timeout_s);
}

static void op_getattr(fuse_req_t req, fuse_ino_t ino, struct fuse_file_info *fi) {
    if (!refused(req, k_getattr))
        reply_attr(req, ino);
}

static struct timespec time_to_set(int set, int now, struct timespec t) {
    if (now)
        return (struct timespec){0, UTIME_NOW};
    return set ? t : (struct timespec){0, UTIME_OMIT};
}

/* Sets the attributes that `set` names. Sets the owner first, because chown clears set-user-id
 * bits, which the request may set. */
static int set_attributes(fuse_ino_t ino, const struct stat *a, int set,
                          struct fuse_file_info *fi) {
    const struct proc_name name = proc_name(ino);
    if (set & (FUSE_SET_ATTR_UID | FUSE_SET_ATTR_GID)) {
        uid_t uid = set & FUSE_SET_ATTR_UID ? a->st_uid : (uid_t)-1;
        gid_t gid = set & FUSE_SET_ATTR_GID ? a->st_gid : (gid_t)-1;
        if (fchownat(node(ino)->fd, "", uid, gid, AT_EMPTY_PATH) == -1)
            return -1;
    }
    if (set & FUSE_SET_ATTR_MODE && chmod(name.s, a->st_mode) == -1)
        return -1;
    if (set & FUSE_SET_ATTR_SIZE) {
        int error = fi ? ftruncate((int)fi->fh, a->st_size) : truncate(name.s, a->st_size);
        if (error == -1)
            return -1;
    }
    int set_a = set & FUSE_SET_ATTR_ATIME, set_m = set & FUSE_SET_ATTR_MTIME;
    int now_a = set & FUSE_SET_ATTR_ATIME_NOW, now_m = set & FUSE_SET_ATTR_MTIME_NOW;
    if (!(set_a || set_m || now_a || now_m))
        return 0;
    struct timespec t[2] = {time_to_set(set_a, now_a, a->st_atim),
                            time_to_set(set_m, now_m, a->st_mtim)};
    return utimensat(AT_FDCWD, name.s, t, 0);
}

static void op_setattr(fuse_req_t req, fuse_ino_t ino, struct stat *a, int set,
                       struct fuse_file_info *fi) {
    if (refused(req, k_other))
        return;
    if (!failed(req, set_attributes(ino, a, set, fi)))
        reply_attr(req, ino);
}

static void op_readlink(fuse_req_t req, fuse_ino_t ino) {
    char target[PATH_MAX + 1];
    if (refused(req, k_other))
        return;
    ssize_t n = readlinkat(node(ino)->fd, "", target, sizeof target - 1);
    if (failed(req, n))
        return;
    target[n] = '\0';
    fuse_reply_readlink(req, target);
}

static void op_mknod(fuse_req_t req, fuse_ino_t dir, const char *name, mode_t mode, dev_t dev) {
    if (refused(req, k_other))
        return;
    as_caller(req);
    long r = mknodat(node(dir)->fd, name, mode, dev);
    entry(req, give_to_caller(req, r, dir, name), dir, name);
}

static void op_mkdir(fuse_req_t req, fuse_ino_t dir, const char *name, mode_t mode) {
    if (refused(req, k_other))
        return;
    as_caller(req);
    long r = mkdirat(node(dir)->fd, name, mode);
    entry(req, give_to_caller(req, r, dir, name), dir, name);
}

static void op_symlink(fuse_req_t req, const char *target, fuse_ino_t dir, const char *name) {
    if (refused(req, k_other))
        return;
    as_caller(req);
    long r = symlinkat(target, node(dir)->fd, name);
    entry(req, give_to_caller(req, r, dir, name), dir, name);
}

static void op_link(fuse_req_t req, fuse_ino_t ino, fuse_ino_t dir, const char *name) {
    if (refused(req, k_other))
        return;
    long r = linkat(AT_FDCWD, proc_name(ino).s, node(dir)->fd, name, AT_SYMLINK_FOLLOW);
    entry(req, r, dir, name);
}

static void op_unlink(fuse_req_t req, fuse_ino_t dir, const char *name) {
    if (!refused(req, k_other))
        done(req, unlinkat(node(dir)->fd, name, 0));
}

static void op_rmdir(fuse_req_t req, fuse_ino_t dir, const char *name) {
    if (!refused(req, k_other))
        done(req, unlinkat(node(dir)->fd, name, AT_REMOVEDIR));
}

/* Calls renameat2 by its number, because the oldest C libraries that this program supports have no
 * function renameat2. */
static void op_rename(fuse_req_t req, fuse_ino_t from, const char *name, fuse_ino_t to,
                      const char *new_name, unsigned flags) {
    if (refused(req, k_other))
        return;
    done(req, syscall(SYS_renameat2, node(from)->fd, name, node(to)->fd, new_name, flags));
}

static void op_statfs(fuse_req_t req, fuse_ino_t ino) {
    struct statvfs st;
    if (refused(req, k_other))
        return;
    if (!failed(req, fstatvfs(node(ino)->fd, &st)))
        fuse_reply_statfs(req, &st);
}

/* ---- extended attributes ---- */

/* Replies with the n bytes of `value`. If `size` is 0, the request asks only for the number of
 * bytes, and the reply is n. */
static void reply_value(fuse_req_t req, ssize_t n, const char *value, size_t size) {
    if (n == -1)
        fuse_reply_err(req, errno);
    else if (size == 0)
        fuse_reply_xattr(req, (size_t)n);
    else
        fuse_reply_buf(req, value, (size_t)n);
}

static void op_getxattr(fuse_req_t req, fuse_ino_t ino, const char *name, size_t size) {
    char value[XATTR_SIZE_MAX];
    if (refused(req, k_other))
        return;
    if (size > sizeof value)
        size = sizeof value;
    reply_value(req, getxattr(proc_name(ino).s, name, value, size), value, size);
}

static void op_listxattr(fuse_req_t req, fuse_ino_t ino, size_t size) {
    char names[XATTR_LIST_MAX];
    if (refused(req, k_other))
        return;
    if (size > sizeof names)
        size = sizeof names;
    reply_value(req, listxattr(proc_name(ino).s, names, size), names, size);
}

static void op_setxattr(fuse_req_t req, fuse_ino_t ino, const char *name, const char *value,
                        size_t size, int flags) {
    if (!refused(req, k_other))
        done(req, setxattr(proc_name(ino).s, name, value, size, flags));
}

static void op_removexattr(fuse_req_t req, fuse_ino_t ino, const char *name) {
    if (!refused(req, k_other))
        done(req, removexattr(proc_name(ino).s, name));
}
