"""Whether a launcher started this process as one of several, as far as the environment tells."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from monarch_py.errors import ConfigError

__all__ = ["Launch", "launched", "with_rank"]

# (how many, which one). mpiexec goes first: inside an allocation it runs in a step of Slurm itself.
VARIABLES = (
    ("PMI_SIZE", "PMI_RANK"),  # MPICH, Intel MPI, Slurm's own
    ("OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_RANK"),
    ("MV2_COMM_WORLD_SIZE", "MV2_COMM_WORLD_RANK"),
    ("SLURM_STEP_NUM_TASKS", "SLURM_PROCID"),
)
PLACEHOLDER = "{rank}"


@dataclass(frozen=True, slots=True)
class Launch:
    """This process's number among `size` that a launcher has started together."""

    rank: int
    size: int


def launched(environment: Mapping[str, str] = os.environ) -> Launch | None:
    """None for a process that no launcher has started."""
    for size, rank in VARIABLES:
        numbers = environment.get(size, ""), environment.get(rank, "")
        if all(number.isdecimal() for number in numbers):
            return Launch(rank=int(numbers[1]), size=int(numbers[0]))
    return None


def with_rank(file: Path) -> Path:
    """The file, with this process's number for `{rank}` in its name: one configuration for each of
    several daemons on one node. ConfigError for a process that has none."""
    if PLACEHOLDER not in str(file):
        return file
    launch = launched()
    if launch is None:
        raise ConfigError(
            f"{file}: no launcher has given this process a number for {PLACEHOLDER}; start it with"
            " mpiexec or srun, or write the number"
        )
    return Path(str(file).replace(PLACEHOLDER, str(launch.rank)))
