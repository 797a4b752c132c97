"""Which tier a file goes to.

A policy sees files and the room in the tiers and answers with tiers; it touches nothing. The same
classes serve the daemon and a simulation of it.
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
# More than any tier holds; 2048 of them still add up within 64 bits [bytes].
LARGEST = np.uint64(1 << 51)


@dataclass(frozen=True, slots=True)
class TierRoom:
    """What a tier can still take. block_bytes : what a file's size is rounded up to;  entry_bytes :
    what a file takes besides, for its name and its row in the manifest."""

    free_bytes: int
    free_inodes: int
    block_bytes: int
    entry_bytes: int = 0

    def rounded(self, sizes: npt.NDArray[np.uint64]) -> npt.NDArray[np.int64]:
        """Bytes that files of these sizes (files,) take on the tier."""
        block = self.block_bytes
        # A sparse file can claim to be larger than all storage there is, and sums must not wrap.
        sane = np.minimum(sizes, LARGEST).astype(np.int64)
        blocks: npt.NDArray[np.int64] = (sane + (block - 1)) // block
        return blocks * block + self.entry_bytes


class Policy(Protocol):
    def place(self, sizes: npt.NDArray[np.uint64], rooms: list[TierRoom]) -> npt.NDArray[Any]:
        """sizes : (files,) [bytes], in the order in which they shall be filled; rooms: fastest tier
        first. Returns (files,) int32: the number of the tier, NOWHERE for no room."""
        ...


class FirstFit:
    """The fastest tier with room, to each tier's quota, no eviction (Dantas 2022, 4.1.2).

    With every file read once an epoch no policy without eviction reads less from the source, and
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
    """Which files have a place in the tiers of this node; the others are staged when they are
    needed, and dropped afterwards."""

    def keeps_here(self, ids: npt.NDArray[np.uint64]) -> npt.NDArray[np.bool_]:
        """ids : (n,) entries of the catalog. Returns (n,) bool."""
        ...

    def adopt(self, ids: npt.NDArray[np.uint64]) -> None:
        """(n,) files have a place here from now on: there is no room for them where they had it."""
        ...


class KeepAll:
    """One node alone, without a plan."""

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
    """Each file goes to the tier that is meant for it, where that has room, else to the one that
    the policy says.

    preferred : (files,) int, the number of a tier, NOWHERE for none;  the others and what is
    returned : as in Policy.place
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
    """Which files go in, taken in order: one too large for what is left does not stop later ones.

    needs : (files,) [bytes], in the order of filling;  room [bytes], less than 2**53;  most : files
    that go in at most.  Returns (files,) bool.
    """
    taken = np.zeros(len(needs), dtype=bool)
    waiting = np.flatnonzero(needs <= room)
    left = len(needs) if most is None else most
    while len(waiting) and left > 0:
        # All up to the first that does not fit at once; then of the rest those that still can. As
        # float64: sums beyond every room must not wrap, and below 2**53 they are exact.
        total = np.cumsum(needs[waiting], dtype=np.float64)
        fitting = min(left, int(np.searchsorted(total, room, side="right")))
        taken[waiting[:fitting]] = True
        left -= fitting
        room -= int(total[fitting - 1]) if fitting else 0
        waiting = waiting[fitting + 1 :]
        waiting = waiting[needs[waiting] <= room]
    return taken


def make_policy(name: str) -> Policy:
    """The policy of a configuration's `placement`; KeyError for a name that is none."""
    return {"first_fit": FirstFit}[name]()
