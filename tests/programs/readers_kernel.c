/* C readers that do not get their bytes through read, but through mappings and copies inside the
 * kernel. One more reader calls posix_fadvise before it reads. */
#include "readers.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/sendfile.h>
#include <unistd.h>

/* ---- mappings ---- */

static void map_and_tell(const struct file *file, int protection, int flags, const char *way) {
    int fd = checked(open64(file->path, O_RDONLY), file);
    size_t size = (size_t)file->size;
    unsigned char *data = mmap(NULL, size, protection, flags, fd, 0);
    /* Close the descriptor before the mapping is read, as DALI does. The mapping stays valid. */
    close(fd);
    if (data == MAP_FAILED) {
        printf("%s %s %s errno=%d\n", reader_name, file->name, way, errno);
        return;
    }
    tell(file, way, size, digest(SUM_START, data, size));
    if (protection & PROT_WRITE) {
        data[0] ^= 0xff;
        data[size - 1] ^= 0x0f;
        tell(file, "written", size, digest(SUM_START, data, size));
    }
    munmap(data, size);
}

void read_mmap_private(const struct file *file) {
    map_and_tell(file, PROT_READ, MAP_PRIVATE, "private");
    map_and_tell(file, PROT_READ, MAP_PRIVATE | MAP_POPULATE, "populate");
    map_and_tell(file, PROT_READ | PROT_WRITE, MAP_PRIVATE, "copy_on_write");
    drain_and_close(open(file->path, O_RDONLY), file, "after");
}

void read_mmap_shared(const struct file *file) {
    map_and_tell(file, PROT_READ, MAP_SHARED, "shared");
    /* If the size is 0, mmap fails with EINVAL before it checks the access. */
    if (file->size)
        map_and_tell(file, PROT_READ | PROT_WRITE, MAP_SHARED, "shared_write_refused");
    int fd = checked(open(file->path, O_RDONLY), file);
    off_t offset = file->size / 2 / 4096 * 4096;
    size_t size = (size_t)(file->size - offset);
    void *data = size ? mmap64(NULL, size, PROT_READ, MAP_SHARED, fd, offset) : MAP_FAILED;
    if (data != MAP_FAILED) {
        tell(file, "mmap64_offset", size, digest(SUM_START, data, size));
        munmap(data, size);
    }
    close(fd);
}

void read_fadvise(const struct file *file) {
    int fd = checked(open(file->path, O_RDONLY), file);
    int advice[] = {POSIX_FADV_SEQUENTIAL, POSIX_FADV_WILLNEED, POSIX_FADV_RANDOM,
                    POSIX_FADV_DONTNEED};
    for (size_t i = 0; i < sizeof advice / sizeof *advice; i++)
        printf("%s %s advice=%d %d\n", reader_name, file->name, advice[i],
               posix_fadvise(fd, 0, file->size, advice[i]));
    printf("%s %s readahead=%zd\n", reader_name, file->name, readahead(fd, 0, 4096));
    drain_and_close(fd, file, "fadvise");
}

/* ---- copies ---- */

static int scratch_file(void) {
    char name[] = "/tmp/readers.XXXXXX";
    int fd = mkstemp(name);
    if (fd < 0 || unlink(name))
        die("a scratch file in /tmp");
    return fd;
}

static void tell_copy(int source, int target, const struct file *file, const char *way) {
    printf("%s %s offset=%lld\n", reader_name, file->name, (long long)lseek(source, 0, SEEK_CUR));
    close(source);
    lseek(target, 0, SEEK_SET);
    drain_and_close(target, file, way);
}

void read_sendfile(const struct file *file) {
    int source = checked(open(file->path, 0), file), target = scratch_file();
    ssize_t count;
    while ((count = sendfile(target, source, NULL, CHUNK)) > 0)
        ;
    if (count < 0)
        die("sendfile %s", file->name);
    tell_copy(source, target, file, "sendfile");
    source = checked(open(file->path, 0), file), target = scratch_file();
    off64_t at = file->size / 2;
    while ((count = sendfile64(target, source, &at, 1 << 20)) > 0)
        ;
    if (count < 0)
        die("sendfile64 %s", file->name);
    tell_copy(source, target, file, "sendfile64");
}

void read_copy_range(const struct file *file) {
    int source = checked(open(file->path, O_RDONLY), file), target = scratch_file();
    ssize_t count;
    while ((count = copy_file_range(source, NULL, target, NULL, 1 << 20, 0)) > 0)
        ;
    /* The kernel may refuse to copy between file systems. Then the reader uses sendfile. */
    if (count < 0 && errno != EXDEV && errno != EINVAL && errno != EOPNOTSUPP && errno != ENOSYS)
        die("copy_file_range %s", file->name);
    if (count < 0)
        while ((count = sendfile(target, source, NULL, CHUNK)) > 0)
            ;
    tell_copy(source, target, file, "copy_file_range");
}

/* splice moves pages from the file into a pipe without copying them to the program's memory. */
void read_splice(const struct file *file) {
    static char buffer[65536];
    int pipe_ends[2], fd = checked(open(file->path, O_RDONLY), file);
    uint64_t sum = SUM_START, size = 0;
    ssize_t count, got;
    if (pipe(pipe_ends))
        die("pipe");
    while ((count = splice(fd, NULL, pipe_ends[1], NULL, sizeof buffer, 0)) > 0)
        for (; count > 0; count -= got, size += (uint64_t)got) {
            size_t want = (size_t)count < sizeof buffer ? (size_t)count : sizeof buffer;
            if ((got = read(pipe_ends[0], buffer, want)) <= 0)
                die("read the pipe");
            sum = digest(sum, buffer, (size_t)got);
        }
    if (count < 0)
        die("splice %s", file->name);
    tell(file, "splice", size, sum);
    close(pipe_ends[0]);
    close(pipe_ends[1]);
    close(fd);
}
