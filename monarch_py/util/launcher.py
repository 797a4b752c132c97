"""Detects from the environment whether a launcher has started this process as one of several."""

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from monarch_py.errors import ConfigError

# Each launcher's environment variables: the number of processes, and the rank of this process.
# Those of a Slurm step come last. If mpiexec runs in a Slurm step, its processes also have the
# step's variables, which do not describe the processes of mpiexec.
VARIABLES = (
    ("PMI_SIZE", "PMI_RANK"),  # MPICH, Intel MPI, Slurm's PMI
    ("OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_RANK"),
    ("MV2_COMM_WORLD_SIZE", "MV2_COMM_WORLD_RANK"),
    ("SLURM_STEP_NUM_TASKS", "SLURM_PROCID"),
)
PLACEHOLDER = "{rank}"


@dataclass(frozen=True, slots=True)
class Launch:
    """This process's rank among the `size` processes that a launcher has started together."""

    rank: int
    size: int


def launched(environment: Mapping[str, str] = os.environ) -> Launch | None:
    """Returns this process's rank, and the number of processes that were launched together,
    including this process. Returns None if no launcher has started this process."""
    for size, rank in VARIABLES:
        numbers = environment.get(size, ""), environment.get(rank, "")
        if all(number.isdecimal() for number in numbers):
            return Launch(rank=int(numbers[1]), size=int(numbers[0]))
    return None


def with_rank(file: Path) -> Path:
    """Replaces `{rank}` in the file's name by this process's rank, so that each of several daemons
    on a node has its own configuration. Raises ConfigError if this process has no rank."""
    if PLACEHOLDER not in str(file):
        return file
    launch = launched()
    if launch is None:
        raise ConfigError(
            f"{file}: no launcher has given this process a number for {PLACEHOLDER}; start it with"
            " mpiexec or srun, or write a number instead"
        )
    return Path(str(file).replace(PLACEHOLDER, str(launch.rank)))
