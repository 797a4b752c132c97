"""Brings copies in slow tiers of the node into memory before a plan's programs open them.

They wait in the page cache: it is memory that nobody has to give back, it holds no byte twice, and
a file keeps its one copy.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np

from monarch_py import word
from monarch_py.config.schema import MAX_TIERS
from monarch_py.daemon.copies.engine import Engine
from monarch_py.daemon.segments import Shared
from monarch_py.native import Bools, Ids, JobKind, JobStatus, State
from monarch_py.storage.tiers import Tier

# How much is brought at a time [files, bytes]: what is nearer may be known a moment later.
MOST_FILES, MOST_BYTES = 64, 32 << 20


class ReadAhead:
    """Runs in turns of the daemon's loop and never waits.

    tiers : by number, those of the configuration; copies in memory are left as they are
    files : how many were brought
    """

    def __init__(self, shared: Shared, engine: Engine, tiers: Sequence[Tier | None]) -> None:
        self.shared, self.engine = shared, engine
        self._is_slow = np.zeros(MAX_TIERS, dtype=bool)
        self._is_slow[: len(tiers)] = [
            tier is not None and tier.config.kind != "ram" and engine.reads_ahead for tier in tiers
        ]
        self._brought = np.zeros(0, dtype=bool)  # by entry: brought since its last open
        self._under_way: dict[int, int] = {}  # sizes by entry
        self.files = 0

    def is_for(self, ids: Ids) -> Bools:
        """Which of (n,) files have their copies in slow tiers."""
        words = self.shared.catalog.words[ids]
        return np.asarray((word.state(words) == State.PRESENT) & self._is_slow[word.tier(words)])

    def wants(self, ids: Ids) -> Bools:
        """Which of (n,) files are to be brought before their next use."""
        wanted = self.is_for(ids)
        known = ids < len(self._brought)
        wanted[known] &= ~self._brought[ids[known]]
        return wanted

    def order(self, ids: Ids) -> None:
        """Brings those of (n,) files, in the order of their use, that `wants` names: as many as may
        be under way at a time, behind all that programs wait for."""
        ids = ids[self.wants(ids) & ~np.isin(ids, np.fromiter(self._under_way, dtype=np.uint64))]
        ids = ids[: MOST_FILES - len(self._under_way)]
        if not len(ids):
            return
        catalog = self.shared.catalog
        sizes = catalog.entries["size"][ids]
        fits = np.cumsum(sizes, dtype=np.float64) - sizes < MOST_BYTES - sum(
            self._under_way.values()
        )
        ids, sizes = ids[fits], sizes[fits]
        self._set_brought(ids, brought=True)
        self._under_way.update(zip(ids.tolist(), sizes.tolist(), strict=True))
        self.engine.submit(JobKind.PAGE_IN, ids, catalog.words[ids])

    def ended(self, result: Any) -> None:
        """Takes in the engine's result. If a copy could not be read, whoever opens it will find
        out."""
        self._under_way.pop(int(result["id"]), None)
        if result["status"] == JobStatus.DONE:
            self.files += 1

    def filled(self, ids: Ids) -> None:
        """Notes (n,) files whose copies are being made, or were just made: their pages are in
        memory as soon as the copies are there. It is called at the order as well, because a copy is
        visible before its result is taken."""
        self._set_brought(ids, brought=True)

    def opened(self, ids: Ids) -> None:
        """Notes (n,) files that programs have opened: they are brought again before their next
        use."""
        self._set_brought(ids, brought=False)

    def _set_brought(self, ids: Ids, *, brought: bool) -> None:
        if len(self._brought) < len(self.shared.catalog):
            more = np.zeros(len(self.shared.catalog) - len(self._brought), dtype=bool)
            self._brought = np.concatenate([self._brought, more])
        self._brought[ids] = brought
