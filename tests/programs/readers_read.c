/* C readers that read a file through one descriptor or stream, with the various functions that open
 * files and the various functions that read. */
#include "readers.h"

#include <fcntl.h>
#include <stdlib.h>
#include <sys/uio.h>
#include <unistd.h>

/* Programs compiled with -D_FORTIFY_SOURCE call these functions instead of open and openat. */
extern int __open_2(const char *path, int flags);
extern int __open64_2(const char *path, int flags);
extern int __openat_2(int directory, const char *path, int flags);
extern int __openat64_2(int directory, const char *path, int flags);

static void drain_stream(FILE *stream, const struct file *file, const char *way) {
    static char buffer[CHUNK];
    uint64_t sum = SUM_START, size = 0;
    size_t count;
    if (!stream)
        die("%s %s", way, file->name);
    while ((count = fread(buffer, 1, sizeof buffer, stream)) > 0) {
        sum = digest(sum, buffer, count);
        size += count;
    }
    if (ferror(stream))
        die("fread %s", file->name);
    tell(file, way, size, sum);
}

void read_fopen(const struct file *file) {
    FILE *stream = fopen(file->path, "r");
    drain_stream(stream, file, "fopen");
    rewind(stream);
    drain_stream(stream, file, "rewind");
    fclose(stream);
    stream = fopen(file->path, "rbe");
    if (!stream || fseeko(stream, file->size / 2, SEEK_SET))
        die("fseeko %s", file->name);
    drain_stream(stream, file, "fseeko");
    printf("%s %s ftello=%lld\n", reader_name, file->name, (long long)ftello(stream));
    fclose(stream);
}

void read_fopen64(const struct file *file) {
    FILE *stream = fopen64(file->path, "rb");
    drain_stream(stream, file, "fopen64");
    if (fseeko64(stream, -(off64_t)(file->size / 3), SEEK_END))
        die("fseeko64 %s", file->name);
    drain_stream(stream, file, "fseeko64");
    fclose(stream);
}

void read_freopen(const struct file *file) {
    FILE *stream = fopen("/dev/null", "r");
    if (!stream)
        die("/dev/null");
    stream = freopen(file->path, "r", stream);
    drain_stream(stream, file, "freopen");
    stream = freopen64(file->path, "r", stream);
    drain_stream(stream, file, "freopen64");
    fclose(stream);
}

void read_fdopen(const struct file *file) {
    int fd = checked(open(file->path, O_RDONLY), file);
    if (lseek(fd, file->size / 4, SEEK_SET) < 0)
        die("lseek %s", file->name);
    FILE *stream = fdopen(fd, "r");
    drain_stream(stream, file, "fdopen");
    printf("%s %s offset=%lld\n", reader_name, file->name, (long long)lseek(fd, 0, SEEK_CUR));
    fclose(stream);
}

void read_lines(const struct file *file) {
    FILE *stream = fopen(file->path, "r");
    char *line = NULL;
    size_t room = 0;
    uint64_t sum = SUM_START, size = 0;
    if (!stream)
        die("fopen %s", file->name);
    for (ssize_t count; (count = getline(&line, &room, stream)) >= 0;) {
        sum = digest(sum, line, (size_t)count);
        size += (uint64_t)count;
    }
    tell(file, "getline", size, sum);
    free(line);
    fclose(stream);
}

void read_open(const struct file *file) {
    /* The flags are 0 (O_RDONLY without any other flag), as in TensorFlow, HDF5 and Arrow. */
    drain_and_close(open(file->path, 0), file, "open");
    drain_and_close(open64(file->path, 0), file, "open64");
    drain_and_close(open64(file->path, O_RDONLY | O_CLOEXEC | O_LARGEFILE), file, "open64_flags");
}

void read_open_2(const struct file *file) {
    drain_and_close(__open_2(file->path, O_RDONLY), file, "__open_2");
    drain_and_close(__open64_2(file->path, O_RDONLY), file, "__open64_2");
    drain_and_close(__openat_2(AT_FDCWD, file->path, O_RDONLY), file, "__openat_2");
    drain_and_close(__openat64_2(AT_FDCWD, file->path, O_RDONLY), file, "__openat64_2");
}

void read_openat(const struct file *file) {
    int directory = open(root, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    int path_only = open(root, O_PATH);
    if (directory < 0 || path_only < 0)
        die("open the dataset");
    drain_and_close(openat(directory, file->name, O_RDONLY), file, "openat");
    drain_and_close(openat64(directory, file->name, 0), file, "openat64");
    drain_and_close(__openat_2(directory, file->name, O_RDONLY), file, "__openat_2");
    drain_and_close(openat(path_only, file->name, O_RDONLY), file, "openat_path");
    drain_and_close(openat(-1, file->path, O_RDONLY), file, "openat_absolute");
    close(directory);
    close(path_only);
}

void read_pread(const struct file *file) {
    static char buffer[CHUNK];
    int fd = checked(open(file->path, 0), file);
    uint64_t sum = SUM_START, sum64 = SUM_START;
    off_t at = 0;
    for (ssize_t count; (count = pread(fd, buffer, sizeof buffer, at)); at += count) {
        if (count < 0)
            die("pread %s", file->name);
        sum = digest(sum, buffer, (size_t)count);
        if (pread64(fd, buffer, (size_t)count, at) != count)
            die("pread64 %s", file->name);
        sum64 = digest(sum64, buffer, (size_t)count);
    }
    tell(file, "pread", (uint64_t)at, sum);
    tell(file, "pread64", (uint64_t)at, sum64);
    close(fd);
}

/* Fills `parts` with three pieces of `buffer`, the middle one empty. */
static void split(char *buffer, struct iovec parts[3]) {
    parts[0] = (struct iovec){buffer, 11};
    parts[1] = (struct iovec){buffer + 11, 0};
    parts[2] = (struct iovec){buffer + 11, CHUNK - 11};
}

void read_vectors(const struct file *file) {
    static char buffer[CHUNK];
    const char *ways[] = {"readv", "preadv", "preadv64", "preadv2", "preadv2_offset", "preadv64v2"};
    for (size_t way = 0; way < sizeof ways / sizeof *ways; way++) {
        struct iovec parts[3];
        int fd = checked(open(file->path, O_RDONLY), file);
        uint64_t sum = SUM_START;
        off_t at = 0;
        for (ssize_t count = 1; count; at += count) {
            split(buffer, parts);
            count = way == 0   ? readv(fd, parts, 3)
                    : way == 1 ? preadv(fd, parts, 3, at)
                    : way == 2 ? preadv64(fd, parts, 3, at)
                    : way == 3 ? preadv2(fd, parts, 3, at, 0)
                    : way == 4 ? preadv2(fd, parts, 3, -1, 0) /* at the descriptor's offset */
                               : preadv64v2(fd, parts, 3, at, 0);
            if (count < 0)
                die("%s %s", ways[way], file->name);
            sum = digest(sum, buffer, (size_t)count);
        }
        tell(file, ways[way], (uint64_t)at, sum);
        printf("%s %s offset=%lld\n", reader_name, file->name, (long long)lseek(fd, 0, SEEK_CUR));
        close(fd);
    }
}
