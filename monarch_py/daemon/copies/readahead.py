"""Reads copies in slow tiers into the page cache before a plan's programs open them.

A second copy in a faster tier would be another way. But the kernel can reclaim the memory of the
page cache. Also, no byte is in memory twice, and each file keeps a single copy.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np

from monarch_py.arrays import Bools, Ids
from monarch_py.config.schema import MAX_TIERS
from monarch_py.daemon.copies.engine import Engine
from monarch_py.daemon.segments import Shared
from monarch_py.ipc import word
from monarch_py.native import JobKind, JobStatus, State
from monarch_py.storage.tiers import Tier

# The limits on the copies that are being read into the page cache: their number, and their total
# size [bytes]. The limits are low, so that a file that is needed sooner does not wait behind many
# reads.
MOST_FILES, MOST_BYTES = 64, 32 << 20


class ReadAhead:
    """Makes the engine read copies into the page cache. Runs in the daemon's loop and never blocks.

    tiers : the tiers of the configuration, by number; copies in RAM tiers are skipped
    files : how many copies were read into the page cache
    """

    def __init__(self, shared: Shared, engine: Engine, tiers: Sequence[Tier | None]) -> None:
        self.shared, self.engine = shared, engine
        self._is_slow = np.zeros(MAX_TIERS, dtype=bool)
        self._is_slow[: len(tiers)] = [
            tier is not None and tier.config.kind != "ram" and engine.reads_ahead for tier in tiers
        ]
        # A page-in reads a copy into the page cache. For each catalog entry: whether a fill or a
        # page-in was ordered, or has ended, since the file was last opened. If so, the copy is
        # probably in the page cache, or soon will be.
        self._brought = np.zeros(0, dtype=bool)
        # The copies that are being paged in. Maps a file's entry to the copy's size [bytes].
        self._under_way: dict[int, int] = {}
        self.files = 0

    def is_for(self, ids: Ids) -> Bools:
        """Returns an array (n,): for each file, whether it has a copy in a slow tier."""
        words = self.shared.catalog.words[ids]
        return np.asarray((word.state(words) == State.PRESENT) & self._is_slow[word.tier(words)])

    def wants(self, ids: Ids) -> Bools:
        """Returns an array (n,): for each file, whether its copy should be paged in before the
        file's next use."""
        wanted = self.is_for(ids)
        known = ids < len(self._brought)
        wanted[known] &= ~self._brought[ids[known]]
        return wanted

    def order(self, ids: Ids) -> None:
        """Orders page-ins of the copies for which `wants` returns True. `ids` must be sorted by the
        files' next use: at MOST_FILES or MOST_BYTES, all remaining files are skipped. The engine
        first executes the orders that programs wait for."""
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
        """Processes the result of a PAGE_IN order. If a copy could not be read, does nothing: the
        next program that reads the copy will notice the error itself."""
        self._under_way.pop(int(result["id"]), None)
        if result["status"] == JobStatus.DONE:
            self.files += 1

    def filled(self, ids: Ids) -> None:
        """Records that the fills of these files were ordered or have just ended. A fill leaves the
        new copy in the page cache, so the copy need not be paged in. Call this as soon as a fill is
        ordered. Programs may open the copy before the fill's result is processed."""
        self._set_brought(ids, brought=True)

    def opened(self, ids: Ids) -> None:
        """Records that programs have opened these files. Before the files' next use, their copies
        are paged in again."""
        self._set_brought(ids, brought=False)

    def _set_brought(self, ids: Ids, *, brought: bool) -> None:
        if len(self._brought) < len(self.shared.catalog):
            more = np.zeros(len(self.shared.catalog) - len(self._brought), dtype=bool)
            self._brought = np.concatenate([self._brought, more])
        self._brought[ids] = brought
