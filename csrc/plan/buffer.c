/* tf.data's shuffle: a buffer is kept full, and each output is drawn from it. The generator of the
 * random numbers is Philox 4x32-10 (Salmon et al., 2011). */
#include <stdlib.h>

#include "plan/plan.h"

struct philox {
    uint32_t counter[4], key[2], out[4];
    unsigned used;
};

static void philox_start(struct philox *g, uint64_t seed, uint64_t seed2) {
    *g = (struct philox){.used = 4};
    g->key[0] = (uint32_t)seed;
    g->key[1] = (uint32_t)(seed >> 32);
    g->counter[2] = (uint32_t)seed2;
    g->counter[3] = (uint32_t)(seed2 >> 32);
}

static void philox_block(struct philox *g) {
    uint32_t c[4] = {g->counter[0], g->counter[1], g->counter[2], g->counter[3]};
    uint32_t k[2] = {g->key[0], g->key[1]};
    for (int round = 0; round < 10; round++) {
        uint64_t a = (uint64_t)0xD2511F53U * c[0], b = (uint64_t)0xCD9E8D57U * c[2];
        uint32_t first = (uint32_t)(b >> 32) ^ c[1] ^ k[0];
        uint32_t third = (uint32_t)(a >> 32) ^ c[3] ^ k[1];
        c[0] = first;
        c[1] = (uint32_t)b;
        c[2] = third;
        c[3] = (uint32_t)a;
        k[0] += 0x9E3779B9U;
        k[1] += 0xBB67AE85U;
    }
    for (int i = 0; i < 4; i++)
        g->out[i] = c[i];
    for (int i = 0; i < 4 && ++g->counter[i] == 0; i++)
        ;
    g->used = 0;
}

static uint32_t philox_draw(struct philox *g) {
    if (g->used == 4)
        philox_block(g);
    return g->out[g->used++];
}

void monarch_philox(uint64_t seed, uint64_t seed2, uint32_t *out, uint64_t n) {
    struct philox g;
    philox_start(&g, seed, seed2);
    for (uint64_t i = 0; i < n; i++)
        out[i] = philox_draw(&g);
}

int monarch_buffer_shuffle(uint64_t seed, uint64_t seed2, uint64_t buffer, int32_t *out,
                           uint64_t n) {
    struct philox g;
    uint64_t filled = 0;
    int32_t *held = malloc((buffer ? buffer : 1) * sizeof *held);
    if (!held)
        return -1;
    philox_start(&g, seed, seed2);
    for (uint64_t taken = 0; taken < n; taken++) {
        for (; filled < n && filled - taken < buffer; filled++)
            held[filled % buffer] = (int32_t)filled;
        uint64_t first = taken % buffer;
        uint64_t drawn = (taken + philox_draw(&g) % (filled - taken)) % buffer;
        out[taken] = held[drawn];
        held[drawn] = held[first];
    }
    free(held);
    return 0;
}
