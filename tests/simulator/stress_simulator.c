/* Runs random jobs through the simulation, for the sanitizers. Shapes, orders with missing samples,
 * copies, ways to fill them, and checkpoints are random. Prints the number of accesses. */
#include <stdio.h>
#include <stdlib.h>

#include "simulator/simulator.h"

/* The number of epochs whose arrays are kept. When the simulation gets the arrays of a new epoch,
 * it still reads the arrays of older epochs. */
#define KEPT (MONARCH_SIM_EPOCHS + 1)

static uint64_t state = 1;

static uint32_t below(uint32_t n) {
    state = state * 6364136223846793005ULL + 1442695040888963407ULL;
    return (uint32_t)(state >> 33) % n;
}

static double *doubles(size_t n, double least, double span) {
    double *made = malloc((n + 1) * sizeof *made);
    for (size_t i = 0; i <= n; i++)
        made[i] = least + span * below(1000) / 1000;
    return made;
}

static void fail(const char *what) {
    fprintf(stderr, "%s\n", what);
    exit(1);
}

static uint64_t run_one(void) {
    uint32_t nodes = 1 + below(4), most = 1 + below(3), classes = 1 + below(3);
    uint32_t steps = 1 + below(5), batch = 1 + below(4), epochs = 1 + below(4);
    uint32_t files = 1 + below(60), threads[3] = {1 + below(4), 1 + below(3), 1 + below(3)};
    uint64_t copies = classes > 1 ? below(80) : 0, n = (uint64_t)nodes * most * steps * batch;
    uint32_t ranks[4];
    for (uint32_t i = 0; i < nodes; i++)
        ranks[i] = i ? 1 + below(most) : most;
    int64_t *sizes = malloc(files * sizeof *sizes);
    int32_t *copy_node = malloc((copies + 1) * 4), *copy_file = malloc((copies + 1) * 4);
    int64_t *copy_due = malloc((copies + 1) * 8);
    int8_t *copy_class = malloc(copies + 1);
    for (uint32_t i = 0; i < files; i++)
        sizes[i] = below(1000);
    /* Copies of one node and class are contiguous. */
    for (uint64_t i = 0; i < copies; i++) {
        uint64_t list = i * nodes * (classes - 1) / copies;
        copy_node[i] = (int32_t)(list / (classes - 1));
        copy_class[i] = (int8_t)(1 + list % (classes - 1));
        copy_file[i] = (int32_t)below(files);
        copy_due[i] = below(100);
    }
    int32_t *owner = malloc(files * sizeof *owner);
    for (uint32_t i = 0; i < files; i++)
        owner[i] = (int32_t)below(nodes + 1) - 1;
    double *read = doubles(nodes * classes, 1, 1000), *write = doubles(nodes * classes, 1, 1000);
    double *staging = doubles(nodes, 0, 3000), *network = doubles(nodes, 1, 1000);
    double *link = doubles(nodes, 1, 1000), *pfs = doubles(nodes + 1, 1, 1000);
    double *compute = doubles(nodes, 1, 1000), *preprocess = doubles(nodes, 1, 1000);
    struct monarch_sim_job job = {
        .nodes = nodes,
        .most_ranks = most,
        .ranks = ranks,
        .classes = classes,
        .files = files,
        .epochs = epochs,
        .steps = steps,
        .batch = batch,
        .sizes = sizes,
        .read_rate = read,
        .write_rate = write,
        .threads = threads,
        .staging = staging,
        .network = network,
        .pfs_link = link,
        .pfs = pfs,
        .compute = compute,
        .preprocess = preprocess,
        .copies = copies,
        .copy_node = copy_node,
        .copy_file = copy_file,
        .copy_class = copy_class,
        .copy_due = below(2) ? copy_due : NULL,
        .owner = below(2) ? owner : NULL,
        .stages = below(2),
        .fills = below(2),
        .fills_first = below(2),
        .reads_remote = below(2),
        .weighs_pfs = below(2),
        .is_free = below(8) == 0,
        .fair_links = below(2),
        .checkpoint_steps = below(3),
        .checkpoint_bytes = below(500),
    };
    struct monarch_sim_result result = {.imbalance = 1.1};
    result.epoch_end = calloc(epochs, sizeof(double));
    result.bytes = calloc((size_t)epochs * MONARCH_SIM_FROMS, sizeof(double));
    result.node_bytes = calloc((size_t)nodes * MONARCH_SIM_FROMS, sizeof(double));
    result.reused = calloc(epochs, sizeof(double));
    result.stall = calloc((size_t)nodes * most, sizeof(double));
    result.rank_compute = calloc((size_t)nodes * most, sizeof(double));
    result.filled = calloc(nodes, sizeof(double));
    result.pfs_bytes = calloc(epochs, sizeof(double));
    result.ready = calloc(epochs, sizeof(uint64_t));
    result.imbalanced = calloc(epochs, sizeof(uint64_t));

    int32_t *order[KEPT] = {NULL}, *holder[KEPT] = {NULL};
    int8_t *cls[KEPT] = {NULL}, *into[KEPT] = {NULL}, *down[KEPT] = {NULL};
    int64_t *more[KEPT] = {NULL};
    int32_t *part[KEPT] = {NULL};
    int shares = below(2) == 0;
    int is_told = classes > 1 && below(3) == 0, moved;
    uint32_t given = 0;
    double used = 0, served = 0;
    struct monarch_sim *sim = monarch_sim_new(&job, &result);
    while ((moved = monarch_sim_run(sim)) == 1) {
        uint32_t at = given++ % KEPT;
        free(order[at]), free(holder[at]), free(cls[at]), free(more[at]);
        free(into[at]), free(down[at]), free(part[at]);
        part[at] = malloc((size_t)nodes * steps * most * 4);
        order[at] = malloc(n * 4), holder[at] = malloc(n * 4);
        into[at] = malloc(n), down[at] = malloc(n);
        cls[at] = malloc(n), more[at] = malloc(n * 8);
        for (uint64_t i = 0; i < n; i++) {
            int is_rank = i / batch % most < ranks[i / ((uint64_t)steps * most * batch)];
            order[at][i] = is_rank && below(10) ? (int32_t)below(files) : -1;
            holder[at][i] = (int32_t)below(nodes + 1) - 1;
            cls[at][i] = classes > 1 ? (int8_t)(1 + below(classes - 1)) : 0;
            more[at][i] = below(100);
            into[at][i] = (int8_t)below(classes);
            down[at][i] = (int8_t)(into[at][i] + below(classes - (uint32_t)into[at][i]));
            used += order[at][i] < 0 ? 0 : (double)sizes[order[at][i]];
        }
        struct monarch_sim_epoch epoch = {.order = order[at]};
        if (is_told) {
            epoch.holder = holder[at];
            epoch.cls = cls[at];
            epoch.into = into[at];
            epoch.down = down[at];
            epoch.redundant = below(2) ? more[at] : NULL;
        }
        for (uint32_t i = 0; i < nodes * steps * most; i++)
            part[at][i] = (int32_t)(1 + below(4));
        epoch.threads = shares ? part[at] : NULL;
        if (!monarch_sim_give(sim, &epoch))
            fail("no memory");
    }
    if (moved)
        fail("nothing moves");
    monarch_sim_free(sim);
    for (uint32_t i = 0; i < epochs * MONARCH_SIM_FROMS; i++)
        served += result.bytes[i];
    if (given != epochs || used - served > 0.5 || served - used > 0.5)
        fail("samples were lost");
    for (uint32_t i = 1; i < epochs; i++)
        if (result.epoch_end[i] < result.epoch_end[i - 1])
            fail("time goes back");
    for (int i = 0; i < KEPT; i++)
        free(order[i]), free(holder[i]), free(cls[i]), free(more[i]), free(into[i]), free(down[i]),
            free(part[i]);
    free(sizes), free(copy_node), free(copy_file), free(copy_class), free(copy_due), free(owner);
    free(read), free(write), free(staging), free(network), free(link), free(pfs);
    free(compute), free(preprocess), free(result.epoch_end), free(result.bytes);
    free(result.node_bytes), free(result.reused), free(result.stall), free(result.rank_compute);
    free(result.filled), free(result.pfs_bytes), free(result.ready), free(result.imbalanced);
    return n * epochs;
}

int main(int argc, char **argv) {
    uint64_t accesses = 0;
    for (int i = 0, runs = argc > 1 ? atoi(argv[1]) : 1000; i < runs; i++) {
        state = (uint64_t)i + 1;
        accesses += run_one();
    }
    printf("%llu accesses\n", (unsigned long long)accesses);
    return 0;
}
