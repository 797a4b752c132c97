/* Threads read through csrc/loaders/reads.c at the same time. Meanwhile the process forks children,
 * which read too. Exits with 0 if all bytes are right and each failed read is reported. Arguments:
 * a file whose byte i is i * 7 mod 251, its size [bytes], and the number of children. */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "loaders/loaders.h"

enum { READS = 50, LONGEST = 3000, THREADS = 4, TURNS = 100 };

static int fd;
static int64_t size;

static void fail(const char *what) {
    fprintf(stderr, "%s\n", what);
    _exit(1);
}

static unsigned next(unsigned *seed) {
    *seed = *seed * 1103515245 + 12345;
    return *seed >> 8;
}

/* Makes READS random reads in one call and checks their bytes.
 * bad: the index of the read that goes beyond the end of the file; READS if none does */
static void turn(unsigned *seed, int in_flight, uint64_t bad) {
    int32_t descriptors[READS];
    int64_t offsets[READS], lengths[READS];
    char *out[READS];
    int error;
    for (int i = 0; i < READS; i++) {
        descriptors[i] = fd;
        offsets[i] = next(seed) % (unsigned)(size - LONGEST);
        lengths[i] = next(seed) % LONGEST;
        out[i] = malloc(LONGEST + 1);
    }
    if (bad < READS) {
        offsets[bad] = size - 1;
        lengths[bad] = 2;
    }
    if (monarch_read_all(descriptors, offsets, lengths, out, READS, in_flight, &error) != bad)
        fail("a read failed, or none did");
    if (bad < READS && error != 0)
        fail("the end of the file has an errno");
    for (int i = 0; i < READS; i++) {
        for (int64_t at = 0; bad == READS && at < lengths[i]; at++)
            if ((unsigned char)out[i][at] != (offsets[i] + at) * 7 % 251)
                fail("a wrong byte");
        free(out[i]);
    }
}

static void *reader(void *arg) {
    unsigned seed = (unsigned)(uintptr_t)arg;
    for (int i = 0; i < TURNS; i++)
        turn(&seed, 1 + (int)(next(&seed) % 20), i % 5 ? READS : next(&seed) % READS);
    return NULL;
}

static void fork_and_read(void) {
    pid_t child = fork();
    if (child == 0) {
        unsigned seed = 99;
        turn(&seed, 8, READS);
        _exit(0);
    }
    int status;
    if (child < 0 || waitpid(child, &status, 0) != child || status != 0)
        fail("a child failed");
}

int main(int argc, char **argv) {
    pthread_t thread[THREADS];
    FILE *file = argc == 4 ? fopen(argv[1], "r") : NULL;
    if (!file)
        fail("no file");
    fd = fileno(file);
    size = atoll(argv[2]);
    int forks = atoi(argv[3]);
    for (uintptr_t i = 0; i < THREADS; i++)
        pthread_create(&thread[i], NULL, reader, (void *)(i + 1));
    for (int i = 0; i < forks; i++)
        fork_and_read();
    for (int i = 0; i < THREADS; i++)
        pthread_join(thread[i], NULL);
    fclose(file);
    return 0;
}
