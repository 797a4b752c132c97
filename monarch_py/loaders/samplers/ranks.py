"""Finds out which rank this process is, and which ranks share a node."""

import os
import sys
from dataclasses import dataclass

from monarch_py.errors import ConfigError

# The variables by which torchrun, Slurm, Open MPI and MPICH tell the number of ranks per node.
PER_NODE = (
    "LOCAL_WORLD_SIZE",
    "SLURM_NTASKS_PER_NODE",
    "OMPI_COMM_WORLD_LOCAL_SIZE",
    "MPI_LOCALNRANKS",
)


@dataclass(frozen=True)
class Ranks:
    """This process's rank among all ranks. Rank r is on node r // per_node.

    rank : of this process;  world_size : the number of ranks;  per_node : the ranks of each node
    """

    rank: int
    world_size: int
    per_node: int

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
        """Returns the ranks as given, or else as torch.distributed and the launcher tell. Raises
        ConfigError if the numbers are impossible, or if nothing tells them."""
        if (rank is None) != (world_size is None):
            raise ConfigError("rank: rank and world_size belong together; give both or neither")
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
        return cls(rank, world_size, per_node)


def _distributed() -> tuple[int, int]:
    # If nobody has imported torch, there is no process group.
    torch = sys.modules.get("torch")
    if (
        torch is not None
        and torch.distributed.is_available()
        and torch.distributed.is_initialized()
    ):
        return int(torch.distributed.get_rank()), int(torch.distributed.get_world_size())
    if int(os.environ.get("WORLD_SIZE", "1")) > 1:
        raise ConfigError(
            "rank: there is no process group yet; call torch.distributed.init_process_group first,"
            " or give rank and world_size"
        )
    return 0, 1


def _per_node(world_size: int) -> int:
    if world_size == 1:
        return 1
    for name in PER_NODE:
        if (told := os.environ.get(name, "")).isdecimal() and world_size % max(1, int(told)) == 0:
            return int(told)
    raise ConfigError(
        "ranks_per_node: no launcher says how many ranks a node has; give ranks_per_node"
    )
