"""Fills storage classes with files in a given order, by array operations."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from monarch_py.policies.placement import NOWHERE, FirstFit, TierRoom
from monarch_py.policies.view import PFS, STAGING, Cluster, Copies, Ints

__all__ = ["NOWHERE", "copies_of", "fill", "owners_of", "shards"]


def fill(sizes: Ints, capacity: Ints) -> npt.NDArray[np.int8]:
    """The class of each file: the fastest with room, without eviction (Dantas 2022, 4.1.2).

    sizes : (files,) [bytes], in the order of filling;  capacity : (classes,) [bytes], as in
    `Cluster`; the first one, the staging buffer, takes no files.
    Returns (files,) int8; NOWHERE if no class has room.
    """
    rooms = [TierRoom(int(room), len(sizes), 1) for room in capacity[STAGING + 1 :]]
    placed = FirstFit().place(np.asarray(sizes, np.uint64), rooms)
    chosen: npt.NDArray[np.int8] = np.where(placed == NOWHERE, NOWHERE, placed + STAGING + 1)
    return chosen.astype(np.int8)


def copies_of(
    cluster: Cluster, sizes: Ints, wanted: Callable[[int], Ints], *, classes: int | None = None
) -> Copies:
    """Places every node's wanted files, in their order, in the fastest class with room.

    sizes : (files,) [bytes];  wanted : returns a node's files in the order of filling;  classes :
    how many classes to use, including the staging buffer (None = all)
    """
    parts = []
    for node in range(cluster.nodes):
        files = np.asarray(wanted(node))
        chosen = fill(sizes[files], cluster.capacity[node, :classes])
        for level in range(STAGING + 1, cluster.classes):
            parts.append((node, level, files[chosen == level]))
    return Copies.of(parts)


def owners_of(copies: Copies, wanted: Ints) -> npt.NDArray[np.int32]:
    """(files,) int32, as `Decision.owner`: a node that has a place for the file, or PFS.

    wanted : (files,), the preferred node, which becomes the owner if it has a place for the file
    """
    owner = np.full(len(wanted), PFS, np.int32)
    owner[copies.file] = copies.node
    is_wanted = wanted[copies.file] == copies.node
    owner[copies.file[is_wanted]] = copies.node[is_wanted]
    return owner


def shards(files: int, nodes: int) -> list[npt.NDArray[np.int32]]:
    """Divides the dataset into one contiguous, equal part for each node."""
    return np.array_split(np.arange(files, dtype=np.int32), nodes)
