/* slowsource: mounts a directory as a file system that is slow, counts operations, and can fail.
 *
 *     slowsource BACKING CONTROL MOUNTPOINT [-o option,...]
 *     slowsource --layout
 *
 * The program mounts a FUSE file system at MOUNTPOINT, and passes every call on to the directory
 * BACKING. Tests, benchmarks and the demo use it in place of a parallel file system. All readers
 * and writers share one bandwidth. Each kind of operation has a latency. All operations can be made
 * to fail. All operations and bytes are counted. The settings and counters are in the file CONTROL,
 * which the program maps, so that changes take effect at once. The file is a struct of 64-bit words
 * in native byte order; `--layout` prints the names and offsets of the words.
 *
 * Options besides libfuse's own:
 *
 *     keep_pages            the kernel keeps a file's cached pages from one open to the next
 *     direct                the kernel caches no pages
 *     attr_timeout=SECONDS  how long the kernel may trust names and attributes; 1 by default
 *     link=FILE             all mounts that name this file share one link, each at its own rate,
 *                           like several clients of one server
 *     flush                 each close of a descriptor sends a request and waits for the answer
 *     until_eof             the program unmounts and ends when standard input ends, for example
 *                           because the process at the other end of the pipe was killed
 *
 * The program uses FUSE's low-level interface. With the path-based interface, fstat() of an
 * unlinked open file would fail, and two hard links would appear as two files. With the low-level
 * interface, the program needs an O_PATH descriptor for every file that the kernel has cached, so
 * RLIMIT_NOFILE limits the number of these files. The program needs /proc. Like many file systems,
 * it refuses O_TMPFILE. File locks never reach this program, because the kernel handles them.
 *
 *     cc -O2 -o slowsource slowsource.c $(pkg-config --cflags --libs fuse3) -pthread
 */
#define _GNU_SOURCE
#define FUSE_USE_VERSION 31
#include <assert.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <fuse_lowlevel.h>
#include <linux/fuse.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/fsuid.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <sys/xattr.h>
#include <time.h>
#include <unistd.h>

/* libfuse prescribes the parameters; not every operation uses all of them. */
#pragma GCC diagnostic ignored "-Wunused-parameter"

#include "slowsource_control.h"
#include "slowsource_names.h"

/* The number of operations that can wait for their latency at the same time. Each waiting operation
 * occupies a thread. libfuse's own loop has at most ten threads, which are too few for the loaders
 * of a training job. */
#define THREADS 64
/* The largest read [bytes], as in many network file systems. libfuse 3.14 needs the same number in
 * init() and as a mount option; if one of them is missing, libfuse exits without a message. */
#define MAX_READ 131072
#define MAX_READ_OPTION "max_read=131072"

static struct options {
    int keep_pages, direct, until_eof, flush;
    double attr_timeout;
    char *link;
} options = {.attr_timeout = 1.0};

/* ---- files ---- */

/* The flags with which a file in BACKING is opened. O_NOFOLLOW is removed, because the kernel has
 * already followed the links. O_DIRECT is removed, because the buffers of this program are not
 * aligned. */
#define OPEN_FLAGS(fi) (((fi)->flags & ~(O_NOFOLLOW | O_DIRECT)) | O_CLOEXEC)

static void op_open(fuse_req_t req, fuse_ino_t ino, struct fuse_file_info *fi) {
    if (refused(req, k_open))
        return;
    int fd = open(proc_name(ino).s, OPEN_FLAGS(fi));
    if (failed(req, fd))
        return;
    fi->fh = (uint64_t)fd;
    fi->keep_cache = options.keep_pages;
    fi->direct_io = options.direct;
    /* ENOENT means that the process that opened the file was killed before this reply. Then the
     * kernel sends no release for the descriptor. */
    if (fuse_reply_open(req, fi) == -ENOENT)
        close(fd);
}

static void op_create(fuse_req_t req, fuse_ino_t dir, const char *name, mode_t mode,
                      struct fuse_file_info *fi) {
    struct fuse_entry_param e;
    if (refused(req, k_create))
        return;
    as_caller(req);
    int fd = openat(node(dir)->fd, name, OPEN_FLAGS(fi) | O_CREAT | O_NOFOLLOW, mode);
    int error = give_to_caller(req, fd, dir, name) == -1 ? errno : find(dir, name, &e);
    if (error) {
        if (fd != -1)
            close(fd);
        fuse_reply_err(req, error);
        return;
    }
    fi->fh = (uint64_t)fd;
    fi->keep_cache = options.keep_pages;
    fi->direct_io = options.direct;
    if (fuse_reply_create(req, &e, fi) == -ENOENT) {
        close(fd);
        forget(e.ino, 1);
    }
}

static void op_read(fuse_req_t req, fuse_ino_t ino, size_t size, off_t offset,
                    struct fuse_file_info *fi) {
    char bytes[MAX_READ];
    if (refused(req, k_read))
        return;
    ssize_t n = pread((int)fi->fh, bytes, size < MAX_READ ? size : MAX_READ, offset);
    if (failed(req, n))
        return;
    control->bytes_read += (uint64_t)n;
    wait_link((uint64_t)n);
    fuse_reply_buf(req, bytes, (size_t)n);
}

static void op_write(fuse_req_t req, fuse_ino_t ino, const char *bytes, size_t size, off_t offset,
                     struct fuse_file_info *fi) {
    if (refused(req, k_write))
        return;
    ssize_t n = pwrite((int)fi->fh, bytes, size, offset);
    if (failed(req, n))
        return;
    control->bytes_written += (uint64_t)n;
    wait_link((uint64_t)n);
    fuse_reply_write(req, (size_t)n);
}

/* Closes the descriptor even if the operation is made to fail, because the kernel ignores errors of
 * a release. */
static void op_release(fuse_req_t req, fuse_ino_t ino, struct fuse_file_info *fi) {
    close((int)fi->fh);
    if (!refused(req, k_release))
        fuse_reply_err(req, 0);
}

static void op_fsync(fuse_req_t req, fuse_ino_t ino, int data_only, struct fuse_file_info *fi) {
    if (refused(req, k_fsync))
        return;
    done(req, data_only ? fdatasync((int)fi->fh) : fsync((int)fi->fh));
}

/* Used only with the option `flush`, with which the kernel sends a flush request at each close of a
 * descriptor, and waits for the answer. The request is counted and delayed like an fsync, but
 * writes nothing to the disk. */
static void op_flush(fuse_req_t req, fuse_ino_t ino, struct fuse_file_info *fi) {
    if (!refused(req, k_fsync))
        fuse_reply_err(req, 0);
}

static void op_fallocate(fuse_req_t req, fuse_ino_t ino, int mode, off_t offset, off_t length,
                         struct fuse_file_info *fi) {
    if (!refused(req, k_other))
        done(req, fallocate((int)fi->fh, mode, offset, length));
}

static void op_lseek(fuse_req_t req, fuse_ino_t ino, off_t offset, int whence,
                     struct fuse_file_info *fi) {
    if (refused(req, k_other))
        return;
    off_t at = lseek((int)fi->fh, offset, whence);
    if (!failed(req, at))
        fuse_reply_lseek(req, at);
}

/* ---- directories ---- */

static DIR *stream(const struct fuse_file_info *fi) { return (DIR *)(uintptr_t)fi->fh; }

static void op_opendir(fuse_req_t req, fuse_ino_t ino, struct fuse_file_info *fi) {
    if (refused(req, k_other))
        return;
    int fd = openat(node(ino)->fd, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    DIR *dir = fd == -1 ? NULL : fdopendir(fd);
    if (!dir) {
        fuse_reply_err(req, errno);
        if (fd != -1)
            close(fd);
        return;
    }
    fi->fh = (uint64_t)(uintptr_t)dir;
    if (fuse_reply_open(req, fi) == -ENOENT)
        closedir(dir);
}

/* Seeks to `offset` in every call. The previous call may have read one name too many from the
 * stream: a name for which its answer had no room. */
static void op_readdir(fuse_req_t req, fuse_ino_t ino, size_t size, off_t offset,
                       struct fuse_file_info *fi) {
    char names[32768];
    size_t used = 0;
    struct dirent *d;
    if (refused(req, k_readdir))
        return;
    if (size > sizeof names)
        size = sizeof names;
    seekdir(stream(fi), (long)offset);
    while (errno = 0, (d = readdir(stream(fi)))) {
        struct stat st = {.st_ino = d->d_ino, .st_mode = (mode_t)d->d_type << 12};
        size_t n = fuse_add_direntry(req, names + used, size - used, d->d_name, &st, d->d_off);
        if (n > size - used)
            break;
        used += n;
    }
    if (!d && errno && !used)
        fuse_reply_err(req, errno);
    else
        fuse_reply_buf(req, names, used);
}

static void op_releasedir(fuse_req_t req, fuse_ino_t ino, struct fuse_file_info *fi) {
    closedir(stream(fi));
    if (!refused(req, k_release))
        fuse_reply_err(req, 0);
}

static void op_fsyncdir(fuse_req_t req, fuse_ino_t ino, int data_only, struct fuse_file_info *fi) {
    int fd = dirfd(stream(fi));
    if (!refused(req, k_fsync))
        done(req, data_only ? fdatasync(fd) : fsync(fd));
}

static void op_init(void *user, struct fuse_conn_info *conn) {
    conn->max_read = MAX_READ;
    conn->max_background = THREADS;
    control->ready = 1;
}

static struct fuse_lowlevel_ops operations = {
    .init = op_init,
    .lookup = op_lookup,
    .forget = op_forget,
    .forget_multi = op_forget_multi,
    .getattr = op_getattr,
    .setattr = op_setattr,
    .readlink = op_readlink,
    .mknod = op_mknod,
    .mkdir = op_mkdir,
    .unlink = op_unlink,
    .rmdir = op_rmdir,
    .symlink = op_symlink,
    .rename = op_rename,
    .link = op_link,
    .open = op_open,
    .read = op_read,
    .write = op_write,
    .release = op_release,
    .fsync = op_fsync,
    .opendir = op_opendir,
    .readdir = op_readdir,
    .releasedir = op_releasedir,
    .fsyncdir = op_fsyncdir,
    .statfs = op_statfs,
    .setxattr = op_setxattr,
    .getxattr = op_getxattr,
    .listxattr = op_listxattr,
    .removexattr = op_removexattr,
    .create = op_create,
    .fallocate = op_fallocate,
    .lseek = op_lseek,
};

/* ---- program ---- */

static void print_layout(void) {
    const size_t latency = offsetof(struct control, latency_ns);
    const size_t count = offsetof(struct control, count);
    printf("magic %zu\nversion %zu\nready %zu\nrate %zu\nfail %zu\n",
           offsetof(struct control, magic), offsetof(struct control, version),
           offsetof(struct control, ready), offsetof(struct control, rate),
           offsetof(struct control, fail));
#define X(name)                                                               \
    printf("latency.%s %zu\n", #name, latency + k_##name * sizeof(uint64_t)); \
    printf("count.%s %zu\n", #name, count + k_##name * sizeof(uint64_t));
    KINDS(X)
#undef X
    printf("bytes.read %zu\nbytes.written %zu\n", offsetof(struct control, bytes_read),
           offsetof(struct control, bytes_written));
}

static void die(const char *what) {
    fprintf(stderr, "slowsource: %s: %s\n", what, strerror(errno));
    exit(1);
}

/* Creates and maps the file CONTROL. Empties the file first, so that no settings of an earlier run
 * remain. */
static void map_control(const char *path) {
    int fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    if (fd == -1 || ftruncate(fd, 0) == -1 || ftruncate(fd, sizeof *control) == -1)
        die(path);
    control = mmap(NULL, sizeof *control, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (control == MAP_FAILED)
        die(path);
    close(fd);
    control->version = CONTROL_VERSION;
    control->magic = CONTROL_MAGIC;
}

/* Maps the file of a shared link. The first mount that names the file creates it. */
static void share_link(const char *path) {
    int fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    if (fd == -1 || ftruncate(fd, sizeof *link_free_ns) == -1)
        die(path);
    link_free_ns = mmap(NULL, sizeof *link_free_ns, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (link_free_ns == MAP_FAILED)
        die(path);
    close(fd);
}

/* Raises the limit on descriptors as far as allowed. Root may also raise the hard limit, which is
 * only 20,000 in some containers. */
static void raise_descriptor_limit(void) {
    struct rlimit most = {1048576, 1048576}, allowed;
    if (setrlimit(RLIMIT_NOFILE, &most) == 0 || getrlimit(RLIMIT_NOFILE, &allowed) == -1)
        return;
    allowed.rlim_cur = allowed.rlim_max;
    setrlimit(RLIMIT_NOFILE, &allowed);
}

static void *serve(void *session) {
    struct fuse_buf buf = {0};
    while (!fuse_session_exited(session)) {
        int n = fuse_session_receive_buf(session, &buf);
        if (n == -EINTR)
            continue;
        if (n <= 0)
            break;
        fuse_session_process_buf(session, &buf);
    }
    free(buf.mem);
    kill(getpid(), SIGTERM);
    return NULL;
}

static void *watch_stdin(void *unused) {
    char c;
    while (read(STDIN_FILENO, &c, 1) > 0) {
    }
    kill(getpid(), SIGTERM);
    return unused;
}

#if FUSE_VERSION >= FUSE_MAKE_VERSION(3, 14)
/* Sends an answer to the kernel. Adds the flag FUSE_PARALLEL_DIROPS to the first answer, which is
 * the answer to FUSE_INIT. With this flag, the kernel looks up many names of the same directory at
 * the same time, like the client of a parallel file system. libfuse 3.14 has an option for this
 * (FUSE_CAP_PARALLEL_DIROPS), but does not send the flag to the kernel. */
static ssize_t answer(int fd, struct iovec *parts, int count, void *user) {
    static atomic_flag is_initialised = ATOMIC_FLAG_INIT;
    if (!atomic_flag_test_and_set(&is_initialised) && count == 2 &&
        parts[1].iov_len >= sizeof(struct fuse_init_out))
        ((struct fuse_init_out *)parts[1].iov_base)->flags |= FUSE_PARALLEL_DIROPS;
    return writev(fd, parts, count);
}

static ssize_t request(int fd, void *buffer, size_t size, void *user) {
    return read(fd, buffer, size);
}

static void look_up_in_parallel(struct fuse_session *session) {
    static const struct fuse_custom_io device = {.writev = answer, .read = request};
    if (fuse_session_custom_io(session, &device, fuse_session_fd(session)) != 0)
        die("libfuse refuses our functions for its device");
}
#else
static void look_up_in_parallel(struct fuse_session *session) {}
#endif

/* Starts the threads, and waits for a signal that ends the program: SIGTERM, SIGINT or SIGHUP. The
 * threads send SIGTERM after an unmount and, with the option until_eof, at the end of standard
 * input. Requests in progress are dropped when the connection to the kernel ends. */
static void run(struct fuse_session *session) {
    sigset_t ends;
    int signal_number;
    sigemptyset(&ends);
    sigaddset(&ends, SIGTERM);
    sigaddset(&ends, SIGINT);
    sigaddset(&ends, SIGHUP);
    pthread_sigmask(SIG_BLOCK, &ends, NULL);
    for (int i = 0; i < THREADS + options.until_eof; i++) {
        pthread_t thread;
        errno = pthread_create(&thread, NULL, i < THREADS ? serve : watch_stdin, session);
        if (errno)
            die("cannot start a thread");
    }
    sigwait(&ends, &signal_number);
    fuse_session_unmount(session);
}

int main(int argc, char **argv) {
    static const struct fuse_opt known[] = {
        {"keep_pages", offsetof(struct options, keep_pages), 1},
        {"direct", offsetof(struct options, direct), 1},
        {"until_eof", offsetof(struct options, until_eof), 1},
        {"flush", offsetof(struct options, flush), 1},
        {"attr_timeout=%lf", offsetof(struct options, attr_timeout), 0},
        {"link=%s", offsetof(struct options, link), 0},
        FUSE_OPT_END,
    };
    if (argc == 2 && strcmp(argv[1], "--layout") == 0) {
        print_layout();
        return 0;
    }
    if (argc < 4) {
        fprintf(stderr, "usage: slowsource BACKING CONTROL MOUNTPOINT [-o option,...]\n"
                        "       slowsource --layout\n");
        return 2;
    }
    struct fuse_args args = FUSE_ARGS_INIT(0, NULL);
    fuse_opt_add_arg(&args, argv[0]);
    fuse_opt_add_arg(&args, "-ofsname=slowsource,default_permissions," MAX_READ_OPTION);
    for (int i = 4; i < argc; i++)
        fuse_opt_add_arg(&args, argv[i]);
    if (fuse_opt_parse(&args, &options, known, NULL) == -1)
        return 2;
    attr_timeout_s = options.attr_timeout;
    /* The descriptor limit, umask and timer slack must be set before the threads start. */
    raise_descriptor_limit();
    umask(0);
    prctl(PR_SET_TIMERSLACK, 1UL, 0UL, 0UL, 0UL);
    root.fd = open(argv[1], O_PATH | O_DIRECTORY | O_CLOEXEC);
    if (root.fd == -1)
        die(argv[1]);
    map_control(argv[2]);
    if (options.link)
        share_link(options.link);
    if (options.flush)
        operations.flush = op_flush;
    struct fuse_session *session = fuse_session_new(&args, &operations, sizeof operations, NULL);
    if (!session || fuse_session_mount(session, argv[3]) == -1)
        return 1; /* libfuse has printed the reason */
    look_up_in_parallel(session);
    run(session);
    return 0;
}
