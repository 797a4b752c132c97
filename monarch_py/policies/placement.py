"""Placement: chooses the tier of each file.

A policy sees sizes of files and the room in the tiers, and answers with tiers; it changes nothing.
The same classes serve the daemon and a simulation of it.
"""

from dataclasses import dataclass, replace
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

__all__ = [
    "NOWHERE",
    "FirstFit",
    "KeepPolicy",
    "KeepAll",
    "Policy",
    "TierRoom",
    "make_policy",
    "place_preferred",
    "take",
]

# No tier has room for the file now.
NOWHERE = -1
# More than any tier holds, but small enough that 2048 of them add up within 64 bits [bytes].
LARGEST = np.uint64(1 << 51)


@dataclass(frozen=True, slots=True)
class TierRoom:
    """What a tier can still take. block_bytes : a file's size is rounded up to a multiple of it;
    entry_bytes : what a file takes in addition, for its name and its row in the manifest."""

    free_bytes: int
    free_inodes: int
    block_bytes: int
    entry_bytes: int = 0

    def rounded(self, sizes: npt.NDArray[np.uint64]) -> npt.NDArray[np.int64]:
        """Bytes that files of these sizes (files,) take on the tier."""
        block = self.block_bytes
        # A sparse file may claim to be larger than all storage, and sums must not overflow.
        sane = np.minimum(sizes, LARGEST).astype(np.int64)
        blocks: npt.NDArray[np.int64] = (sane + (block - 1)) // block
        return blocks * block + self.entry_bytes


class Policy(Protocol):
    def place(self, sizes: npt.NDArray[np.uint64], rooms: list[TierRoom]) -> npt.NDArray[Any]:
        """Chooses the tiers of files. sizes : (files,) [bytes], in the order of filling;  rooms :
        of the tiers, fastest first. Returns (files,) int32, the number of the tier or NOWHERE."""
        ...


class FirstFit:
    """The fastest tier with room, up to each tier's quota, without eviction (Dantas 2022, 4.1.2).

    If every file is read once an epoch, no policy without eviction reads less from the source, and
    eviction only exchanges one miss for another.
    """

    def place(self, sizes: npt.NDArray[np.uint64], rooms: list[TierRoom]) -> npt.NDArray[Any]:
        chosen = np.full(len(sizes), NOWHERE, dtype=np.int32)
        for tier, room in enumerate(rooms):
            waiting = np.flatnonzero(chosen == NOWHERE)
            if len(waiting):
                needs = room.rounded(sizes[waiting])
                fits = take(needs, room.free_bytes, room.free_inodes)
                chosen[waiting[fits]] = tier
        return chosen


class KeepPolicy(Protocol):
    """Decides which files have a place in the tiers of this node. The others are staged when they
    are needed, and dropped afterwards."""

    def keeps_here(self, ids: npt.NDArray[np.uint64]) -> npt.NDArray[np.bool_]:
        """ids : (n,) entries of the catalog. Returns (n,) bool."""
        ...

    def adopt(self, ids: npt.NDArray[np.uint64]) -> None:
        """Gives (n,) files a place here from now on, since the node that had it has no room."""
        ...


class KeepAll:
    """Keeps every file: for one node alone, without a plan."""

    def keeps_here(self, ids: npt.NDArray[np.uint64]) -> npt.NDArray[np.bool_]:
        return np.ones(len(ids), dtype=bool)

    def adopt(self, ids: npt.NDArray[np.uint64]) -> None:
        pass


def place_preferred(
    preferred: npt.NDArray[np.integer[Any]],
    sizes: npt.NDArray[np.uint64],
    rooms: list[TierRoom],
    policy: Policy,
) -> npt.NDArray[Any]:
    """Places each file in its preferred tier if that has room, else in the tier that the policy
    chooses.

    preferred : (files,) int, the number of a tier, or NOWHERE. The other arguments and the result
    are those of Policy.place
    """
    chosen = np.full(len(sizes), NOWHERE, dtype=np.int32)
    left = list(rooms)
    for tier, room in enumerate(rooms):
        wanting = np.flatnonzero(preferred == tier)
        needs = room.rounded(sizes[wanting])
        fits = take(needs, room.free_bytes, room.free_inodes)
        chosen[wanting[fits]] = tier
        left[tier] = replace(
            room,
            free_bytes=room.free_bytes - int(needs[fits].sum()),
            free_inodes=room.free_inodes - int(fits.sum()),
        )
    rest = np.flatnonzero(chosen == NOWHERE)
    chosen[rest] = policy.place(sizes[rest], left)
    return chosen


def take(
    needs: npt.NDArray[np.integer[Any]], room: int, most: int | None = None
) -> npt.NDArray[np.bool_]:
    """Which files fit into a room, taken in order. A file that is too large for the rest does not
    stop later ones.

    needs : (files,) [bytes], in the order of filling;  room : [bytes], less than 2**53;  most : the
    largest number of files.  Returns (files,) bool.
    """
    taken = np.zeros(len(needs), dtype=bool)
    waiting = np.flatnonzero(needs <= room)
    left = len(needs) if most is None else most
    while len(waiting) and left > 0:
        # Take all files before the first that does not fit, then go on with those of the rest that
        # still can. Sums are float64: they must not overflow, and are exact below 2**53.
        total = np.cumsum(needs[waiting], dtype=np.float64)
        fitting = min(left, int(np.searchsorted(total, room, side="right")))
        taken[waiting[:fitting]] = True
        left -= fitting
        room -= int(total[fitting - 1]) if fitting else 0
        waiting = waiting[fitting + 1 :]
        waiting = waiting[needs[waiting] <= room]
    return taken


def make_policy(name: str) -> Policy:
    """The policy for the key `placement` of a configuration; KeyError for an unknown name."""
    return {"first_fit": FirstFit}[name]()
