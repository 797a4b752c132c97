/* Compares the engine with a plain model. The daemon grants the engine room in the tiers, and the
 * engine orders fills within this room without asking the daemon. The model predicts the tier of
 * each fill, the room that is left in each tier, and the peers that the fill asks.
 *
 *   grants_model SEED TRIALS */
#include <stdlib.h>

#include "engine/entries.h"
#include "engine/orders.h"
#include "publish/writer.h"
#include "stress.h"

#define FILES 30
#define TIERS 3
#define PEERS 3
#define BLOCK 1000 /* a tier counts a file's content in blocks of this size [bytes] */
#define NODE 100   /* bytes that a tier counts for each file besides its blocks */

static uint64_t seed;
static struct pool *pool;
static struct monarch_catalog *catalog;

static uint64_t draw(uint64_t n) { return below(&seed, n); }

/* Chooses a tier for a file, subtracts the file's room from the tier's room, and returns the tier.
 * Returns -1 if no tier is chosen. A staged file goes only into a staging tier, any other file only
 * into another tier. Tiers that accept no file of this size (`largest`) are skipped. The remaining
 * tiers are tried in turn, and the first one with enough granted room is chosen. But if a tier that
 * comes before it has too little granted room, and more room beyond the grant (is_part), the result
 * is -1. */
static int place(struct monarch_room *rooms, uint64_t size, int is_staged) {
    for (int t = 0; t < TIERS; t++) {
        struct monarch_room *room = &rooms[t];
        uint64_t need = NODE;
        for (uint64_t bytes = 0; bytes < size; bytes += BLOCK)
            need += BLOCK;
        if ((int)room->is_staging != is_staged || (room->largest && room->largest < size))
            continue;
        if (room->bytes >= need && room->inodes >= 1) {
            room->bytes -= need;
            room->inodes -= 1;
            return t;
        }
        if (room->is_part)
            return -1;
    }
    return -1;
}

static void make(void) {
    pool = calloc(1, sizeof *pool);
    catalog = calloc(1, monarch_catalog_bytes(FILES, FILES));
    CHECK(pool && catalog);
    monarch_catalog_init(catalog, 1, FILES, FILES);
    catalog->count = FILES;
    for (int id = 0; id < FILES; id++)
        monarch_table(catalog)[id] =
            (struct monarch_entry){.size = draw(2) ? draw(5) * BLOCK / 2 : draw(3 * BLOCK),
                                   .kind = draw(20) ? MONARCH_FILE : MONARCH_DIR,
                                   .word = draw(20) ? 0 : monarch_word(0, 0, 0, 7)};
    pool->peer_threads = draw(4) != 0;
    struct grant *g = &pool->grant;
    g->holds = 1;
    g->tiers = TIERS;
    g->next_copy = 50;
    for (int t = 0; t < TIERS; t++)
        g->room[t] = (struct monarch_room){.bytes = draw(12) * (BLOCK + NODE),
                                           .inodes = draw(6),
                                           .largest = draw(3) ? 0 : draw(4) * BLOCK,
                                           .block_bytes = BLOCK,
                                           .entry_bytes = NODE,
                                           .is_part = draw(4) == 0,
                                           .is_staging = draw(3) == 0};
    if (draw(4) == 0)
        return; /* a node without peers has no array `home` */
    g->homes = FILES - draw(3);
    g->home = calloc(FILES, sizeof *g->home);
    CHECK(g->home);
    /* g->homes is the number of elements of g->home that the engine may use. The array has more
     * elements, and all of them are filled. So the comparison shows if the engine uses elements
     * beyond g->homes. */
    for (uint64_t id = 0; id < FILES; id++) {
        struct monarch_home *h = &g->home[id];
        h->storage = (uint16_t)(draw(8) ? 1 + draw(2) : MONARCH_NOT_TOLD);
        h->asked_first = (int16_t)(draw(PEERS + 1)) - 1;
        h->asked_then =
            (int16_t)(h->asked_first >= 0 && draw(4) ? (h->asked_first + 1) % PEERS : -1);
        h->giver = (uint16_t)draw(PEERS + 1);
    }
}

/* Checks the peers that the fill asks. If two peers hold the file, the fill first asks the peer for
 * which fewer orders wait. If the numbers of orders are equal, files with an odd number ask the
 * second peer first. job->has_it must name the peer that once sent the complete file. The fill of
 * an empty file asks no peer. */
static void check_peers(uint64_t id, const struct job *job) {
    const struct grant *g = &pool->grant;
    int first = -1, second = -1;
    if (g->home && pool->peer_threads && job->entry.size) {
        first = g->home[id].asked_first;
        second = g->home[id].asked_then;
    }
    if (second >= 0 && (pool->asked[second] < pool->asked[first] ||
                        (pool->asked[second] == pool->asked[first] && id % 2))) {
        int other = first;
        first = second;
        second = other;
    }
    CHECK(job->peer[0] == first && job->peer[1] == second && job->peer[2] == -1);
    int gave = g->home ? g->home[id].giver - 1 : -1;
    int marked = gave < 0 ? 0 : gave == first ? 1 : gave == second ? 2 : 0;
    CHECK(job->has_it == marked);
}

static uint64_t try(void) {
    uint64_t placed = 0, copy;
    struct monarch_room rooms[TIERS];
    make();
    struct grant *g = &pool->grant;
    memcpy(rooms, g->room, sizeof rooms);
    for (uint64_t id = 0; id < FILES; id++) {
        struct monarch_entry *e = &monarch_table(catalog)[id];
        int is_told = !g->home || (id < g->homes && g->home[id].storage != MONARCH_NOT_TOLD);
        int is_staged = g->home && is_told && g->home[id].storage == MONARCH_IN_STAGING;
        uint64_t before = e->word;
        for (int peer = 0; peer < PEERS; peer++)
            pool->asked[peer] = (uint32_t)draw(3);
        copy = g->next_copy;
        int tier =
            e->kind == MONARCH_FILE && !e->word && is_told ? place(rooms, e->size, is_staged) : -1;
        struct job *job = monarch_place_granted(pool, catalog, id);
        CHECK((job != NULL) == (tier >= 0));
        CHECK(memcmp(rooms, g->room, sizeof rooms) == 0);
        if (!job) {
            CHECK(e->word == before && g->next_copy == copy && g->placed_count == placed);
            continue;
        }
        CHECK(job->result.id == id && job->result.copy == copy && g->next_copy == copy + 1);
        CHECK(job->result.kind == MONARCH_FILL && (int)job->result.tier == tier);
        CHECK(e->word == monarch_word(MONARCH_FILLING, 0, (unsigned)tier, copy));
        const struct monarch_placed *last = &g->placed[placed++];
        CHECK(g->placed_count == placed && last->id == id && last->copy == copy);
        CHECK((int)last->tier == tier);
        check_peers(id, job);
        free(job);
    }
    free(g->home);
    free(catalog);
    free(pool);
    return placed;
}

/* Without a grant, the engine orders nothing. It also orders nothing while the list of ordered
 * fills is full, that is, until Python takes the list. */
static void try_limits(void) {
    for (int is_full = 0; is_full < 2; is_full++) {
        make();
        struct grant *g = &pool->grant;
        free(g->home);
        g->home = NULL;
        monarch_table(catalog)[0] = (struct monarch_entry){.size = 1, .kind = MONARCH_FILE};
        g->room[0] = (struct monarch_room){
            .bytes = 1 << 20, .inodes = 9, .block_bytes = BLOCK, .entry_bytes = NODE};
        g->holds = is_full;
        g->placed_count = is_full ? MONARCH_PLACED : 0;
        CHECK(!monarch_place_granted(pool, catalog, 0));
        g->holds = 1;
        g->placed_count = MONARCH_PLACED - 1;
        struct job *job = monarch_place_granted(pool, catalog, 0);
        CHECK(job && g->placed_count == MONARCH_PLACED);
        free(job);
        free(catalog);
        free(pool);
    }
}

int main(int argc, char **argv) {
    uint64_t placed = 0;
    CHECK(argc == 3);
    seed = strtoull(argv[1], NULL, 10);
    for (uint64_t number = strtoull(argv[2], NULL, 10); number--;)
        placed += try();
    try_limits();
    printf("%llu\n", (unsigned long long)placed);
    return 0;
}
