#include "serving/sums.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

/* Number of hash chains. The hash is the copy's number. Copies are numbered consecutively, so all
 * chains have about the same length. */
#define CHAINS 16384

typedef struct monarch_sums_held kept;

struct monarch_sums {
    pthread_mutex_t lock;
    kept *chain[CHAINS];
};

/* Returns the address of the pointer to the copy's sums in their chain. If the sums are not there,
 * returns the address of the NULL at the chain's end. */
static kept **find(struct monarch_sums *s, uint64_t copy) {
    kept **k = &s->chain[copy % CHAINS];
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
                       const struct monarch_digest *digests, uint64_t blocks) {
    size_t each = sizeof *sums + (digests ? sizeof *digests : 0);
    kept *k = blocks > 1 ? malloc(sizeof *k + blocks * each) : NULL;
    if (!k)
        return;
    *k = (kept){.copy = copy, .blocks = blocks, .holders = 1};
    memcpy(k->sums, sums, blocks * sizeof *sums);
    if (digests) {
        k->digests = (struct monarch_digest *)(k->sums + blocks);
        memcpy(k->digests, digests, blocks * sizeof *digests);
    }
    pthread_mutex_lock(&s->lock);
    k->next = s->chain[copy % CHAINS];
    s->chain[copy % CHAINS] = k;
    pthread_mutex_unlock(&s->lock);
}

void monarch_sums_drop(struct monarch_sums *s, uint64_t copy) {
    pthread_mutex_lock(&s->lock);
    kept **at = find(s, copy), *k = *at;
    if (k)
        *at = k->next;
    pthread_mutex_unlock(&s->lock);
    monarch_sums_release(s, k);
}

kept *monarch_sums_hold(struct monarch_sums *s, uint64_t copy, uint64_t blocks) {
    pthread_mutex_lock(&s->lock);
    kept *k = *find(s, copy);
    k = k && k->blocks == blocks ? k : NULL;
    if (k)
        k->holders++;
    pthread_mutex_unlock(&s->lock);
    return k;
}

void monarch_sums_release(struct monarch_sums *s, kept *k) {
    if (!k)
        return;
    pthread_mutex_lock(&s->lock);
    int is_last = --k->holders == 0;
    pthread_mutex_unlock(&s->lock);
    if (is_last)
        free(k);
}

void monarch_sums_free(struct monarch_sums *s) {
    for (unsigned i = 0; s && i < CHAINS; i++)
        for (kept *k = s->chain[i], *next; k; k = next) {
            next = k->next;
            free(k);
        }
    if (s)
        pthread_mutex_destroy(&s->lock);
    free(s);
}
