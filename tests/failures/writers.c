/* Arguments: DIRECTORY COUNT. For each line on standard input, COUNT threads run at the same time.
 * Each thread opens a file of its own in DIRECTORY and writes to it. Prints a line when all threads
 * are done. */
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

static pthread_barrier_t start;
static const char *directory;

static void *write_one(void *number) {
    char path[4096];
    snprintf(path, sizeof path, "%s/%ld", directory, (long)number);
    pthread_barrier_wait(&start);
    int fd = open(path, O_WRONLY);
    if (fd < 0 || write(fd, "x", 1) != 1)
        abort();
    close(fd);
    return NULL;
}

int main(int argc, char **argv) {
    char line[16];
    long count = argc > 2 ? atol(argv[2]) : 0;
    pthread_t *threads = calloc((size_t)count, sizeof *threads);
    directory = argv[1];
    pthread_barrier_init(&start, NULL, (unsigned)count);
    while (fgets(line, sizeof line, stdin)) {
        for (long i = 0; i < count; i++)
            if (pthread_create(&threads[i], NULL, write_one, (void *)i))
                abort();
        for (long i = 0; i < count; i++)
            pthread_join(threads[i], NULL);
        puts("done");
        fflush(stdout);
    }
    return 0;
}
