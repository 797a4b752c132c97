/* Closes or replaces a descriptor while another thread calls mmap for it and waits in this call for
 * the copy.
 *
 *   map_under_way WHAT FILE OTHER
 *
 * A thread maps FILE. When this thread waits, or has mapped FILE, the main thread acts: if WHAT is
 * dup2, it makes the descriptor's number refer to OTHER; otherwise it closes the descriptor. The
 * program prints on standard error whether mmap waited, and on standard output the first mapped
 * bytes as hexadecimal digits.
 */
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#define SHOWN 64

static int fd;
static volatile int thread, is_done;
static void *mapped;

static void *map(void *nothing) {
    thread = (int)syscall(SYS_gettid);
    mapped = mmap(NULL, SHOWN, PROT_READ, MAP_PRIVATE, fd, 0);
    is_done = 1;
    return nothing;
}

/* Returns whether the thread sleeps in a futex call. If so, the library waits for a copy. */
static int waits(void) {
    char path[64];
    long number = -1;
    snprintf(path, sizeof path, "/proc/self/task/%d/syscall", thread);
    FILE *call = fopen(path, "re");
    int is_known = call && fscanf(call, "%ld", &number) == 1;
    if (call)
        fclose(call);
    return is_known && number == SYS_futex;
}

int main(int argc, char **argv) {
    pthread_t id;
    int other = argc == 4 ? open(argv[3], O_RDONLY) : -1, has_waited = 0;
    fd = argc == 4 ? open(argv[2], O_RDONLY) : -1;
    if (fd < 0 || other < 0 || pthread_create(&id, NULL, map, NULL) != 0)
        return 1;
    while (!is_done && !(has_waited = thread && waits()))
        usleep(1000);
    if (strcmp(argv[1], "dup2") == 0 ? dup2(other, fd) != fd : close(fd) != 0)
        return 2;
    fprintf(stderr, "%s\n", has_waited ? "waited" : "mapped at once");
    pthread_join(id, NULL);
    if (mapped == MAP_FAILED) {
        perror("mmap");
        return 3;
    }
    for (int i = 0; i < SHOWN; i++)
        printf("%02x", ((unsigned char *)mapped)[i]);
    return 0;
}
