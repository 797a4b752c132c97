/* Reads a dataset with calls that Python does not make, and prints what it has read.
 *
 *     readers NAME[,NAME...] DATASET      run these readers, in this order
 *     readers --list                      the names of all readers
 *
 * Between two readers, the program writes the line `next` and waits for a line on standard input.
 * It prints a line for each file and each way of reading: the reader, the relative path, the way,
 * and either the size and digest of the bytes or the file's attributes. The output depends only on
 * the dataset. If a call that must succeed fails, the exit status is 1, and the reason is on
 * standard error.
 */
#include "readers.h"

#include <dirent.h>
#include <errno.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { MAX_FILES = 4096 };

const char *root;
const char *reader_name;
struct file files[MAX_FILES];
size_t file_count;

static const struct reader {
    const char *name;
    void (*each)(const struct file *file);
    void (*whole)(void);
} readers[] = {
#define ROW(name, function) {#name, function, NULL},
    FILE_READERS(ROW)
#undef ROW
#define ROW(name, function) {#name, NULL, function},
        WHOLE_READERS(ROW)
#undef ROW
};
enum { READERS = sizeof readers / sizeof *readers };

/* ---- failing, and the transcript ---- */

void die(const char *format, ...) {
    va_list arguments;
    int error = errno;
    va_start(arguments, format);
    fprintf(stderr, "readers: %s: ", reader_name ? reader_name : "start");
    vfprintf(stderr, format, arguments);
    fprintf(stderr, ": %s\n", strerror(error));
    va_end(arguments);
    exit(1);
}

int checked(int fd, const struct file *file) {
    if (fd < 0)
        die("open %s", file->name);
    return fd;
}

/* The digest is a polynomial of all bytes, so it does not depend on how the bytes are divided among
 * the calls. Each step of the loop needs the result of the previous step, so the processor cannot
 * overlap the steps. To keep the number of steps small, each step handles eight bytes.
 */
uint64_t digest(uint64_t sum, const void *data, size_t size) {
    const unsigned char *byte = data;
    const uint64_t base = UINT64_C(0x100000001b3);
    uint64_t power[9] = {1};
    for (int i = 1; i < 9; i++)
        power[i] = power[i - 1] * base;
    for (; size >= 8; size -= 8, byte += 8) {
        sum *= power[8];
        for (int i = 0; i < 8; i++)
            sum += byte[i] * power[7 - i];
    }
    for (; size; size--)
        sum = sum * base + *byte++;
    return sum;
}

void tell(const struct file *file, const char *way, uint64_t size, uint64_t sum) {
    printf("%s %s %s size=%llu digest=%016llx\n", reader_name, file->name, way,
           (unsigned long long)size, (unsigned long long)sum);
}

void tell_stat(const struct file *file, const char *way, const struct stat *s) {
    printf("%s %s %s dev=%llu ino=%llu mode=%o nlink=%llu uid=%u gid=%u size=%lld blocks=%lld "
           "mtime=%lld.%09ld ctime=%lld.%09ld\n",
           reader_name, file->name, way, (unsigned long long)s->st_dev,
           (unsigned long long)s->st_ino, s->st_mode, (unsigned long long)s->st_nlink, s->st_uid,
           s->st_gid, (long long)s->st_size, (long long)s->st_blocks, (long long)s->st_mtim.tv_sec,
           s->st_mtim.tv_nsec, (long long)s->st_ctim.tv_sec, s->st_ctim.tv_nsec);
}

void drain(int fd, const struct file *file, const char *way) {
    static char buffer[CHUNK];
    uint64_t sum = SUM_START, size = 0;
    ssize_t count;
    while ((count = read(fd, buffer, sizeof buffer)) > 0) {
        sum = digest(sum, buffer, (size_t)count);
        size += (uint64_t)count;
    }
    if (count < 0)
        die("read %s", file->name);
    tell(file, way, size, sum);
}

void drain_and_close(int fd, const struct file *file, const char *way) {
    drain(checked(fd, file), file, way);
    if (close(fd))
        die("close %s", file->name);
}

/* ---- the files ---- */

static int by_path(const void *a, const void *b) {
    return strcmp(((const struct file *)a)->path, ((const struct file *)b)->path);
}

static void collect(const char *folder) {
    DIR *listing = opendir(folder);
    if (!listing)
        die("opendir %s", folder);
    for (struct dirent *entry; (entry = readdir(listing));) {
        struct stat status;
        char *path;
        if (!strcmp(entry->d_name, ".") || !strcmp(entry->d_name, ".."))
            continue;
        if (asprintf(&path, "%s/%s", folder, entry->d_name) < 0 || lstat(path, &status))
            die("lstat %s", entry->d_name);
        if (S_ISDIR(status.st_mode))
            collect(path);
        if (!S_ISREG(status.st_mode)) {
            free(path);
            continue;
        }
        if (file_count == MAX_FILES)
            die("more than %d files", MAX_FILES);
        files[file_count++] =
            (struct file){.path = path, .name = path + strlen(root) + 1, .size = status.st_size};
    }
    closedir(listing);
}

/* Keeps one in ONE_IN of the images and of the small files. Every reader opens each file several
 * times, so reading all of them would take too long. */
#ifndef ONE_IN
#define ONE_IN 3
#endif
static void thin_out(void) {
    size_t kept = 0, passed = 0;
    for (size_t i = 0; i < file_count; i++) {
        int many = !strncmp(files[i].name, "images/", 7) || !strncmp(files[i].name, "small/", 6);
        if (!many || passed++ % ONE_IN == 0)
            files[kept++] = files[i];
    }
    file_count = kept;
}

/* ---- the command line ---- */

static void run(const struct reader *reader) {
    reader_name = reader->name;
    if (reader->whole)
        reader->whole();
    else
        for (size_t i = 0; i < file_count; i++)
            reader->each(&files[i]);
}

static const struct reader *named(const char *name) {
    for (size_t i = 0; i < READERS; i++)
        if (!strcmp(name, readers[i].name))
            return &readers[i];
    return NULL;
}

/* Runs the readers of a comma-separated list, which strtok_r changes. Returns 2 if a name is
 * unknown, otherwise 0. */
static int run_named(char *names) {
    int is_later = 0;
    for (char *name, *rest = names; (name = strtok_r(NULL, ",", &rest)); is_later = 1) {
        const struct reader *reader = named(name);
        char line;
        if (!reader) {
            fprintf(stderr, "readers: no reader is called %s\n", name);
            return 2;
        }
        if (is_later) {
            puts("next");
            /* Read without a buffer: a buffered stream could also take the following line, which is
             * meant for the next reader. */
            if (read(0, &line, 1) != 1)
                die("standard input");
        }
        run(reader);
    }
    return 0;
}

int main(int argc, char **argv) {
    if (argc == 2 && !strcmp(argv[1], "--list")) {
        for (size_t i = 0; i < READERS; i++)
            puts(readers[i].name);
        return 0;
    }
    if (argc != 3) {
        fprintf(stderr, "usage: readers NAME[,NAME...] DATASET | readers --list\n");
        return 2;
    }
    /* Each line is written at once: forked children would write buffered lines a second time. */
    setvbuf(stdout, NULL, _IOLBF, 0);
    root = argv[2];
    collect(root);
    qsort(files, file_count, sizeof *files, by_path);
    thin_out();
    if (!file_count) {
        fprintf(stderr, "readers: no file below %s\n", root);
        return 1;
    }
    return run_named(argv[1]);
}
