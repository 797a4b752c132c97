#include "sums.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

/* Chains; numbers of copies count up, so that they are all equally long. */
#define CHAINS 16384

struct kept {
    struct kept *next;
    uint64_t copy, blocks, sums[];
};

struct monarch_sums {
    pthread_mutex_t lock;
    struct kept *chain[CHAINS];
};

/* Where the copy's are, or would be. */
static struct kept **find(struct monarch_sums *s, uint64_t copy) {
    struct kept **k = &s->chain[copy % CHAINS];
    while (*k && (*k)->copy != copy)
        k = &(*k)->next;
    return k;
}

struct monarch_sums *monarch_sums_new(void) {
    struct monarch_sums *s = calloc(1, sizeof *s);
    if (s)
        pthread_mutex_init(&s->lock, NULL);
    return s;
}

void monarch_sums_keep(struct monarch_sums *s, uint64_t copy, const uint64_t *sums,
                       uint64_t blocks) {
    struct kept *k = blocks > 1 ? malloc(sizeof *k + blocks * sizeof *sums) : NULL;
    if (!k)
        return;
    *k = (struct kept){.copy = copy, .blocks = blocks};
    memcpy(k->sums, sums, blocks * sizeof *sums);
    pthread_mutex_lock(&s->lock);
    k->next = s->chain[copy % CHAINS];
    s->chain[copy % CHAINS] = k;
    pthread_mutex_unlock(&s->lock);
}

int monarch_sums_find(struct monarch_sums *s, uint64_t copy, uint64_t block, uint64_t *sum) {
    pthread_mutex_lock(&s->lock);
    const struct kept *k = *find(s, copy);
    int is_known = k && block < k->blocks;
    if (is_known)
        *sum = k->sums[block];
    pthread_mutex_unlock(&s->lock);
    return is_known;
}

void monarch_sums_drop(struct monarch_sums *s, uint64_t copy) {
    pthread_mutex_lock(&s->lock);
    struct kept **at = find(s, copy), *k = *at;
    if (k)
        *at = k->next;
    pthread_mutex_unlock(&s->lock);
    free(k);
}

void monarch_sums_free(struct monarch_sums *s) {
    for (unsigned i = 0; s && i < CHAINS; i++)
        for (struct kept *k = s->chain[i], *next; k; k = next) {
            next = k->next;
            free(k);
        }
    if (s)
        pthread_mutex_destroy(&s->lock);
    free(s);
}
