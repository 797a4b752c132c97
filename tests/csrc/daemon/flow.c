/* Tests two files. copy/flow.c measures the throughput of endpoints. copy/job.c notes how orders
 * have failed, and names and removes copies. */
#include "set_clock.h"

#include "copy/flow.c"
#include "copy/job.c"

#include "checks.h"
#include "copy/fill.h"

/* The throughput of an endpoint is measured separately for each level of use: for 1 thread, for 2
 * to 3 threads, for 4 to 7 threads, and so on. The last level includes all larger numbers of
 * threads. */
TEST(levels_double) {
    const struct {
        uint32_t threads;
        unsigned level;
    } cases[] = {{1, 0},  {2, 1},  {3, 1},  {4, 2},  {7, 2},  {8, 3},         {15, 3},
                 {16, 4}, {31, 4}, {32, 5}, {63, 5}, {64, 5}, {UINT32_MAX, 5}};
    for (unsigned i = 0; i < sizeof cases / sizeof *cases; i++)
        SAME(level_of(cases[i].threads), cases[i].level);
}

/* A visit adds its bytes and its time to its endpoint, in the sums for the visit's level. The level
 * depends on the number of threads that were at the endpoint when the visit began.
 * monarch_leave_unseen ends a visit without counting it. After all visits, no thread counts as
 * being at the endpoint. */
TEST(a_visit_is_measured) {
    struct monarch_engine *e = make_engine(4096);
    static struct monarch_flow flows[MONARCH_ENDPOINTS];
    struct visit first = monarch_visit(e, MONARCH_ENDPOINT_OF_PEER(3));
    time_ns += 100;
    struct visit second = monarch_visit(e, MONARCH_ENDPOINT_OF_PEER(3));
    struct visit other = monarch_visit(e, MONARCH_ENDPOINT_OF_SOURCES);
    struct visit unseen = monarch_visit(e, MONARCH_ENDPOINT_OF_SOURCES);
    SAME(e->endpoint[4].busy, 2);
    time_ns += 10;
    monarch_leave(&first, 1000);
    monarch_leave(&second, 200);
    monarch_leave_unseen(&unseen);
    monarch_leave(&other, 5);
    CHECK(!e->endpoint[4].busy && !e->endpoint[0].busy);
    flows[5].ns[0] = 77;
    monarch_engine_flows(e, flows, 5);
    SAME(flows[5].ns[0], 77); /* the call asked for endpoints 0 to 4 only */
    monarch_engine_flows(e, flows, MONARCH_ENDPOINTS + 1);
    for (int i = 0; i < MONARCH_ENDPOINTS; i++)
        for (int level = 0; level < MONARCH_LEVELS; level++) {
            uint64_t bytes = i == 4       ? (level == 0   ? 1000
                                             : level == 1 ? 200
                                                          : 0)
                             : i || level ? 0
                                          : 5;
            uint64_t ns = i == 4 ? (level == 0 ? 110 : level == 1 ? 10 : 0) : i || level ? 0 : 10;
            SAME(flows[i].bytes[level], bytes);
            SAME(flows[i].ns[level], ns);
        }
    time_ns++;
    first = monarch_visit(e, 4); /* one thread alone counts at level 0, also at its second visit */
    monarch_leave(&first, 1);
    SAME(e->endpoint[4].flow.bytes[0], 1001);
    free_engine(e);
}

/* --- job.c ------------------------------------------------------------------------------------ */

/* The errors of a full tier are distinguished from all other errors, because they end when room is
 * made in the tier. */
TEST(a_full_tier_is_no_broken_one) {
    const int full[] = {ENOSPC, EDQUOT, ENOMEM}, other[] = {EIO, EROFS, ENOENT, EACCES, EMFILE};
    for (int i = 0; i < 3; i++)
        SAME(monarch_tier_status(full[i]), MONARCH_TIER_FULL);
    for (int i = 0; i < 5; i++)
        SAME(monarch_tier_status(other[i]), MONARCH_TIER_ERROR);
    struct job job = {0};
    SAME(monarch_fail(&job, MONARCH_TIER_ERROR, EIO), -1);
    CHECK(job.result.status == MONARCH_TIER_ERROR && job.result.error == EIO);
}

/* A copy is named by its number: 13 hexadecimal digits, so that no two numbers share a name. */
TEST(a_copy_is_named_by_its_number) {
    const struct {
        uint64_t number;
        const char *name;
    } cases[] = {{0, "0000000000000"},
                 {0xabcdef0123456, "abcdef0123456"},
                 {0x9, "0000000000009"},
                 {0xfffffffffffff, "fffffffffffff"},
                 {0x1000000000000, "1000000000000"}};
    for (int i = 0; i < 5; i++) {
        struct job job = {.result.copy = cases[i].number};
        char name[MONARCH_COPY_NAME + 4];
        memset(name, 'x', sizeof name);
        monarch_copy_name(&job, name);
        CHECK(strcmp(name, cases[i].name) == 0);
    }
}

/* A copy is removed from its tier. If it is gone already, or somebody has put a directory in its
 * place, nothing is left to do. Any other error is reported. */
TEST(a_copy_is_removed_from_its_tier) {
    int here = open(".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    struct job job = {.copies = here, .result.copy = 0x12};
    for (int way = 0; way < 3; way++) {
        if (way == 0)
            close(make_file("0000000000012", 5, 1));
        if (way == 2)
            CHECK(mkdir("0000000000012", 0700) == 0);
        monarch_remove_copy(&job);
        SAME(job.result.left, 0);
        SAME(access("0000000000012", F_OK), way == 2 ? 0 : -1);
    }
    job.copies = -1;
    monarch_remove_copy(&job);
    SAME(job.result.left, EBADF);
    close(here);
}
