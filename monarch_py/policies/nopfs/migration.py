"""Moving copies between a node's classes along a known order (Dantas 2022, 6.1, an outlook)."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from monarch_py.policies.eviction import MISS, FarthestUse
from monarch_py.policies.view import STAGING, Ints

__all__ = ["Moves", "migrate"]

# The class to which files are moved ahead of their use.
FAST = STAGING + 1


@dataclass(frozen=True)
class Moves:
    """One row a copy that moves, in the order in which they are done.

    before : (moves,) int64, the access ahead of which it is done;  file : (moves,) int32;
    up : (moves,) bool, from the slow class to the fast one, or back;  fast : (accesses,) bool,
    which accesses find their file in the fast class when all moves are done in time.
    """

    before: npt.NDArray[np.int64]
    file: npt.NDArray[np.int32]
    up: npt.NDArray[np.bool_]
    fast: npt.NDArray[np.bool_]


def migrate(order: Ints, upcoming: Ints, sizes: Ints, room: int, ahead: int) -> Moves:
    """What to move so that accesses find their files in the fast class.

    order : (accesses,) files, as they will be used;  upcoming : (accesses,) the next access of the
    same file, NEVER for none;  sizes : (files,) [bytes];  room : of the fast class [bytes], empty
    at the start;  ahead : accesses, 1 or more, by which a file is moved up before its use.

    A file comes up `ahead` accesses before its use if it fits beside all files that are used
    sooner; those with the farthest next use go down for it. After its use it stays until somebody
    nearer needs the room, so that files with a short reuse distance do not move at all.
    Every move reads and writes the file once more: it pays where the slow class, and not the
    bandwidth that the moves take, is what training waits for.
    """
    cache = FarthestUse(np.array([0, room]), sizes.tolist())
    rows: list[tuple[int, int, bool]] = []
    fast = np.zeros(len(order), dtype=bool)
    files, nexts = order.tolist(), upcoming.tolist()
    pending = 0
    for now in range(len(files)):
        while pending < min(len(files), now + ahead):
            file = files[pending]
            if cache.level(file) == MISS:
                # Its next use is the one ahead: that is what it competes with.
                gone = cache.offer(file, pending, now - 1)
                if gone is not None:
                    rows += [(now, victim, False) for victim in gone] + [(now, file, True)]
            pending += 1
        if cache.level(files[now]) != MISS:
            fast[now] = True
            cache.used(files[now], nexts[now])
    table = np.array(rows, dtype=np.int64).reshape(-1, 3)
    return Moves(table[:, 0], table[:, 1].astype(np.int32), table[:, 2] == 1, fast)
