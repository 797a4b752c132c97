"""Finds out which rank this process is, and which ranks share a node."""

import os
from dataclasses import dataclass

from monarch_py.errors import ConfigError
from monarch_py.loaders.samplers.agreement import process_group

# Environment variables that torchrun, srun, Open MPI and MPICH set: the variable with the total
# number of ranks -> the variable with the number of ranks on this node. SLURM_NTASKS is not used,
# because it is also set for a single process in an allocation for several tasks.
LAUNCHERS = {
    "WORLD_SIZE": "LOCAL_WORLD_SIZE",
    "SLURM_STEP_NUM_TASKS": "SLURM_NTASKS_PER_NODE",
    "OMPI_COMM_WORLD_SIZE": "OMPI_COMM_WORLD_LOCAL_SIZE",
    "PMI_SIZE": "MPI_LOCALNRANKS",
}


@dataclass(frozen=True)
class Ranks:
    """This process's rank among all ranks. Rank r is on node r // per_node.

    rank : the rank of this process;  world_size : the total number of ranks
    per_node : the number of ranks on a node
    is_found : whether `rank` and `world_size` were detected instead of given by the user. If so,
        `check` compares them with the process group
    """

    rank: int
    world_size: int
    per_node: int
    is_found: bool = False

    @property
    def nodes(self) -> int:
        return self.world_size // self.per_node

    @property
    def node(self) -> int:
        """The node of this process."""
        return self.rank // self.per_node

    @classmethod
    def found(
        cls, rank: int | None = None, world_size: int | None = None, per_node: int | None = None
    ) -> "Ranks":
        """Returns the ranks that the arguments describe. If an argument is None, the value of
        torch.distributed or of the launcher is used. Raises ConfigError if a number is impossible
        or cannot be determined."""
        if (rank is None) != (world_size is None):
            raise ConfigError("rank: rank and world_size belong together; give both or neither")
        is_found = rank is None or world_size is None
        if rank is None or world_size is None:
            rank, world_size = _distributed()
        if not 0 <= rank < world_size:
            raise ConfigError(f"rank: {rank} is not one of {world_size} ranks; count from 0")
        per_node = _per_node(world_size) if per_node is None else per_node
        if per_node < 1 or world_size % per_node:
            raise ConfigError(
                f"ranks_per_node: {world_size} ranks are not a multiple of {per_node}; start the"
                " same number on each node"
            )
        return cls(rank, world_size, per_node, is_found)

    def check(self) -> None:
        """Raises ConfigError if `rank` and `world_size` were detected and the process group has
        other values. In this case, the values were detected before the group was made."""
        if not self.is_found or (group := process_group()) is None:
            return
        rank, world_size = int(group.get_rank()), int(group.get_world_size())
        if (rank, world_size) != (self.rank, self.world_size):
            raise ConfigError(
                f"rank: the sampler was made for rank {self.rank} of {self.world_size}, but this is"
                f" rank {rank} of {world_size}; make it after torch.distributed.init_process_group"
            )


def _distributed() -> tuple[int, int]:
    if (group := process_group()) is not None:
        return int(group.get_rank()), int(group.get_world_size())
    for name in LAUNCHERS:
        if (told := os.environ.get(name, "")).isdecimal() and int(told) > 1:
            raise ConfigError(
                f"rank: there is no process group yet, but {name} says that there are {told} ranks;"
                " call torch.distributed.init_process_group first, or give rank and world_size"
            )
    return 0, 1


def _per_node(world_size: int) -> int:
    if world_size == 1:
        return 1
    for ranks, local in LAUNCHERS.items():
        # A process that a launcher has started may itself start several ranks. Then the launcher's
        # variables count processes instead of ranks, and must not be used.
        is_launcher = os.environ.get(ranks) == str(world_size)
        told = os.environ.get(local, "")
        if is_launcher and told.isdecimal() and world_size % max(1, int(told)) == 0:
            return int(told)
    raise ConfigError(
        "ranks_per_node: no launcher says how many ranks a node has; give ranks_per_node"
    )
