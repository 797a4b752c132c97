#include "serving/sums.c"

#include "checks.h"

static uint64_t sums[3] = {7, 8, 9};
static struct monarch_digest digests[3] = {{"seven"}, {"eight"}, {"nine"}};

/* The sums of a copy are found by the copy's number, if the number of blocks agrees too. They are
 * found even if several copies share a place in the hash table. */
TEST(sums_are_those_of_their_copy) {
    struct monarch_sums *s = monarch_sums_new();
    for (uint64_t i = 0; i < 4; i++) {
        sums[0] = i;
        monarch_sums_keep(s, 5 + i * CHAINS, sums, i % 2 ? digests : NULL, 3);
    }
    monarch_sums_drop(s, 5 + 2 * CHAINS);
    for (uint64_t i = 0; i < 4; i++) {
        kept *k = monarch_sums_hold(s, 5 + i * CHAINS, 3);
        SAME(k != NULL, i != 2);
        CHECK(!monarch_sums_hold(s, 5 + i * CHAINS, 2));
        if (!k)
            continue;
        CHECK(k->sums[0] == i && k->sums[2] == 9 && (k->digests != NULL) == i % 2);
        if (k->digests)
            CHECK(memcmp(k->digests, digests, sizeof digests) == 0);
        monarch_sums_release(s, k);
    }
    CHECK(!monarch_sums_hold(s, 6, 3));
    monarch_sums_free(s);
}

/* No sums are kept for a copy of one block, since it is compared with the sum in the catalog. */
TEST(a_copy_of_one_block_has_no_sums) {
    struct monarch_sums *s = monarch_sums_new();
    monarch_sums_keep(s, 1, sums, NULL, 1);
    monarch_sums_keep(s, 2, sums, NULL, 0);
    monarch_sums_keep(s, 3, sums, NULL, 2);
    CHECK(!monarch_sums_hold(s, 1, 1) && !monarch_sums_hold(s, 2, 0));
    monarch_sums_release(s, monarch_sums_hold(s, 3, 2));
    monarch_sums_release(s, NULL);
    monarch_sums_drop(s, 99);
    monarch_sums_free(s);
    monarch_sums_free(NULL);
}

/* Sums that somebody holds stay valid until they are released, even if their copy is dropped. */
TEST(sums_that_are_held_stay_valid) {
    struct monarch_sums *s = monarch_sums_new();
    monarch_sums_keep(s, 1, sums, digests, 3);
    kept *first = monarch_sums_hold(s, 1, 3), *second = monarch_sums_hold(s, 1, 3);
    CHECK(first && first == second);
    SAME(first->holders, 3);
    monarch_sums_drop(s, 1);
    CHECK(!monarch_sums_hold(s, 1, 3));
    monarch_sums_release(s, first);
    CHECK(second->sums[1] == 8 && !memcmp(&second->digests[2], &digests[2], sizeof *digests));
    monarch_sums_release(s, second);
    monarch_sums_free(s);
}
