"""Chooses the tier of each file, by the file's size and the room in the tiers."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

# Used instead of a tier's number if no tier has room for the file.
NOWHERE = -1
# A file that is larger than this [bytes] is treated as if it had this size. No tier has so much
# room, so such a file is placed nowhere. The sum of 2048 such sizes does not overflow 64 bits.
LARGEST = np.uint64(1 << 51)

# The largest part of a tier's quota that is kept free of copies [bytes]; see `slack_of`.
SLACK_BYTES = 256 * 1024

Sizes = npt.NDArray[np.integer[Any]]


@dataclass(frozen=True, slots=True)
class TierRoom:
    """The free room of a tier.

    block_bytes : a file's size is rounded up to a multiple of this
    entry_bytes : what each file takes in addition, for its name and its row in the manifest
    """

    free_bytes: int
    free_inodes: int
    block_bytes: int
    entry_bytes: int = 0

    def rounded(self, sizes: Sizes) -> npt.NDArray[np.int64]:
        """Returns the bytes that files of these sizes take on the tier, (files,)."""
        block = self.block_bytes
        # Sizes are limited so that their sums do not overflow: the size of a sparse file may exceed
        # all storage.
        sane = np.minimum(sizes.astype(np.uint64, copy=False), LARGEST).astype(np.int64)
        blocks: npt.NDArray[np.int64] = (sane + (block - 1)) // block
        return blocks * block + self.entry_bytes


# A model of a tier, for computations that must give the same result on all nodes. The nodes' real
# tiers may have different block sizes, so UNIT has the usual block size. Its method `rounded` also
# adds room for each file's name and its row in the manifest.
UNIT = TierRoom(free_bytes=0, free_inodes=0, block_bytes=4096, entry_bytes=512)


def slack_of(quota_bytes: int) -> int:
    """Returns how much of a tier's quota is kept free of copies [bytes]."""
    return min(SLACK_BYTES, quota_bytes // 64)


def first_fit(
    sizes: Sizes,
    rooms: Sequence[TierRoom],
    preferred: npt.NDArray[np.int32] | None = None,
) -> npt.NDArray[np.int32]:
    """Assigns each file to the fastest tier that still has room for it, and evicts no file (Dantas
    2022, 4.1.2). Returns the tier of each file, (files,); NOWHERE if no tier has room for the file.

    If every file is read once an epoch, eviction cannot reduce the reads from the source: it spares
    the next read of one file, but then the evicted file must be read again.

    sizes : (files,) [bytes], in the order of filling;  rooms : the room of the tiers, fastest first
    preferred : (files,), the tier that is tried first for each file; negative for a file without a
        preferred tier. All preferred tiers are filled before any file goes into another tier
    """
    tier_of = np.full(len(sizes), NOWHERE, np.int32)
    left = list(rooms)

    def fill(tier: int, waiting: npt.NDArray[np.intp]) -> None:
        room = left[tier]
        needs = room.rounded(sizes[waiting])
        fits = take(needs, room.free_bytes, room.free_inodes)
        tier_of[waiting[fits]] = tier
        free_bytes = room.free_bytes - int(needs[fits].sum())
        free_inodes = room.free_inodes - int(fits.sum())
        left[tier] = replace(room, free_bytes=free_bytes, free_inodes=free_inodes)

    if preferred is not None:
        for tier in range(len(rooms)):
            fill(tier, np.flatnonzero(preferred == tier))
    for tier in range(len(rooms)):
        fill(tier, np.flatnonzero(tier_of == NOWHERE))
    return tier_of


def take(needs: Sizes, room: int, most: int | None = None) -> npt.NDArray[np.bool_]:
    """Returns which files fit into the given room if they are placed in order, (files,) bool. A
    file that is too large for the remaining room is skipped, and later files that fit are placed.

    needs : (files,) [bytes], in the order of filling
    room : [bytes], less than 2**53
    most : the largest number of files, None for no limit
    """
    taken = np.zeros(len(needs), dtype=bool)
    waiting = np.flatnonzero(needs <= room)
    left = len(needs) if most is None else most
    while len(waiting) and left > 0:
        # Take all files before the first file that does not fit. Then continue with the later files
        # that fit into the remaining room. Sums are float64, so that they cannot overflow; below
        # 2**53 they are exact.
        total = np.cumsum(needs[waiting], dtype=np.float64)
        fitting = min(left, int(np.searchsorted(total, room, side="right")))
        taken[waiting[:fitting]] = True
        left -= fitting
        room -= int(total[fitting - 1]) if fitting else 0
        waiting = waiting[fitting + 1 :]
        waiting = waiting[needs[waiting] <= room]
    return taken
