/* Contains one bug of each kind, in this program's own code or inside a file of csrc. A sanitizer
 * that reports all of them evidently checks both this program and the files of csrc. */
#include <pthread.h>
#include <stdlib.h>

#include "shared/xxh3.h"
#include "stress.h"

static char shared[256];
static int counter;
static char *volatile kept;

static void *count_up(void *unused) {
    for (int i = 0; i < 10000; i++)
        counter++;
    return unused;
}

static void *write_shared(void *unused) {
    for (int i = 0; i < 10000; i++)
        shared[i % 64] = (char)i;
    return unused;
}

static void *hash_shared(void *unused) {
    uint64_t sum = 0;
    for (int i = 0; i < 2000; i++)
        sum += monarch_xxh3(shared, 64);
    kept = (char *)(uintptr_t)sum;
    return unused;
}

static void together(void *(*one)(void *), void *(*other)(void *)) {
    pthread_t a, b;
    CHECK(pthread_create(&a, NULL, one, NULL) == 0 && pthread_create(&b, NULL, other, NULL) == 0);
    pthread_join(a, NULL);
    pthread_join(b, NULL);
}

/* Hashes more bytes than the block has, so that xxh3.c reads beyond the block's end. */
static int read_behind(void) {
    char *block = calloc(1, 40);
    uint64_t sum = monarch_xxh3(block, 100);
    free(block);
    return (int)(sum & 1);
}

/* Passes a misaligned catalog, so that catalog.c reads 64-bit words at misaligned addresses. */
static int misplaced_catalog(void) {
    char *block = calloc(1, sizeof(struct monarch_catalog) + 4096);
    int64_t id = monarch_find((struct monarch_catalog *)(block + 1), 0, "x", 1);
    free(block);
    return id >= 0;
}

int main(int argc, char **argv) {
    const char *bug = argc == 2 ? argv[1] : "none";
    if (strcmp(bug, "heap") == 0) {
        kept = malloc(16);
        kept[16] = 1;
        free(kept);
    } else if (strcmp(bug, "leak") == 0) {
        kept = malloc(4000);
        kept = NULL;
    } else if (strcmp(bug, "undefined") == 0) {
        volatile int big = 0x7FFFFFFF;
        big = big + argc;
    } else if (strcmp(bug, "race") == 0) {
        together(count_up, count_up);
    } else if (strcmp(bug, "heap_in_csrc") == 0) {
        return read_behind();
    } else if (strcmp(bug, "undefined_in_csrc") == 0) {
        return misplaced_catalog();
    } else if (strcmp(bug, "race_in_csrc") == 0) {
        together(write_shared, hash_shared);
    } else {
        CHECK(strcmp(bug, "none") == 0);
    }
    return 0;
}
