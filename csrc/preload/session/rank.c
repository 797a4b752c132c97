#include "preload/session/rank.h"

#include <stdlib.h>

unsigned monarch_rank;

/* The innermost launcher's variable comes first: torchrun may have been started by mpiexec in a
 * step of Slurm. */
static const char *const variables[] = {
    "LOCAL_RANK",                 /* torchrun, Lightning, DeepSpeed, accelerate */
    "OMPI_COMM_WORLD_LOCAL_RANK", /* Open MPI */
    "MV2_COMM_WORLD_LOCAL_RANK",  /* MVAPICH */
    "MPI_LOCALRANKID",            /* MPICH, Intel MPI */
    "PALS_LOCAL_RANKID",          /* Cray */
    "FLUX_TASK_LOCAL_ID",         /* Flux */
    "SLURM_LOCALID",              /* srun */
};

/* The rank from the launcher's number; 0 if the text is no number or too large a one. */
static unsigned number_of(const char *text) {
    unsigned n = 0;
    for (; *text >= '0' && *text <= '9' && n < MONARCH_RANKS; text++)
        n = n * 10 + (unsigned)(*text - '0');
    return *text || n >= MONARCH_RANKS - 1 ? 0 : n + 1;
}

void monarch_rank_init(void) {
    for (size_t i = 0; i < sizeof variables / sizeof *variables; i++) {
        const char *text = secure_getenv(variables[i]);
        if (text && *text) {
            unsigned rank = number_of(text);
            /* Written only if there is a rank: most programs have none, and then need no private
             * page for the variable. */
            if (rank)
                monarch_rank = rank;
            return;
        }
    }
}
