/* An allocator that is preloaded beside Monarch's library. Its first malloc, which runs before the
 * constructor of any library, opens a file and calls fstat and stat on it. */
#include <errno.h>
#include <fcntl.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

enum { ROOM = 256 << 20, HEAD = 16 };

static char *next, *end;
static int looked;

static void look(void) {
    struct stat by_fd, by_name;
    int fd = open("/etc/hostname", O_RDONLY | O_CLOEXEC), same = fd >= 0;
    same = same && fstat(fd, &by_fd) == 0 && stat("/etc/hostname", &by_name) == 0 &&
           by_fd.st_ino == by_name.st_ino;
    looked = same ? 2 : -1;
    close(fd);
}

void *malloc(size_t n) {
    if (!looked) {
        looked = 1;
        look();
    }
    size_t whole = (n + HEAD + 15) & ~(size_t)15;
    char *at = __atomic_load_n(&next, __ATOMIC_ACQUIRE);
    if (!at) {
        at = mmap(NULL, ROOM, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE,
                  -1, 0);
        if (at == MAP_FAILED)
            return NULL;
        end = at + ROOM;
        next = at;
    }
    at = __atomic_fetch_add(&next, whole, __ATOMIC_RELAXED);
    if (whole < n || at + whole > end) {
        errno = ENOMEM;
        return NULL;
    }
    memcpy(at, &n, sizeof n);
    return at + HEAD;
}

void *calloc(size_t count, size_t n) { return malloc(count * n); } /* fresh pages are zero */

void *realloc(void *old, size_t n) {
    size_t had = 0;
    void *fresh = malloc(n);
    if (old && fresh) {
        memcpy(&had, (char *)old - HEAD, sizeof had);
        memcpy(fresh, old, had < n ? had : n);
    }
    return fresh;
}

void free(void *old) { (void)old; }

__attribute__((destructor)) static void tell(void) {
    const char *text = looked == 2 ? "malloc opened its file\n" : "malloc opened nothing\n";
    if (write(2, text, strlen(text)) < 0)
        _exit(98);
}
