"""Adopts copies of earlier sessions. Copies that may be damaged are checked first."""

import logging
import time
from collections import deque
from typing import Any

import numpy as np

from monarch_py.arrays import Ids
from monarch_py.daemon.copies.copies import Copies, one
from monarch_py.daemon.copies.engine import is_passing
from monarch_py.daemon.fill.requests import FillRequests
from monarch_py.ipc import word
from monarch_py.native import JobKind, JobStatus, State

log = logging.getLogger("monarch.filler")

# After a check has failed for lack of file descriptors, no check is ordered for this long [s].
PASSING_S = 1.0


class Checks:
    """Makes the engine check copies before they are published. Runs in the daemon's loop and never
    blocks."""

    def __init__(self, copies: Copies, requests: FillRequests) -> None:
        self._copies, self._requests = copies, requests
        self._shared, self._keepers = copies.shared, copies.keepers
        self._waiting: deque[Ids] = deque()
        # Copies whose check failed because the daemon had run out of descriptors.
        self._failed: list[int] = []
        self._not_before_s = 0.0

    def __len__(self) -> int:
        """The number of copies that await a check."""
        return sum(map(len, self._waiting)) + len(self._failed)

    def adopt_found(self) -> None:
        """Adopts the copies of earlier sessions that the scan has matched with their files. If the
        copies in a tier may be damaged, each is published only after its check has succeeded.
        Otherwise they are published at once."""
        catalog = self._shared.catalog
        for ids, rows, tier_number in self._copies.scanner.take_adopted():
            catalog.set_words(ids, word.make(State.FILLING, 0, tier_number, rows["copy"]))
            catalog.entries["sum"][ids] = rows["sum"]
            if self._keepers[tier_number].must_check:
                self._waiting.append(ids)
            else:
                self._copies.adopt(ids, rows, tier_number)

    def order(self, most: int) -> int:
        """Orders at most `most` checks. Returns how many checks were ordered."""
        ordered, catalog = 0, self._shared.catalog
        if time.monotonic() < self._not_before_s:
            return 0
        if self._failed:
            self._waiting.append(np.array(self._failed, dtype=np.uint64))
            self._failed = []
        while ordered < most and self._waiting:
            ids = self._waiting.popleft()
            if len(ids) > most - ordered:
                self._waiting.appendleft(ids[most - ordered :])
                ids = ids[: most - ordered]
            words, sums = catalog.words[ids], catalog.entries["sum"][ids]
            self._copies.engine.submit(JobKind.CHECK, ids, words, sums=sums)
            ordered += len(ids)
        return ordered

    def failed(self, result: Any) -> None:
        """Processes the result of a check that did not succeed. If the check was abandoned, the
        daemon is ending. The tier is then marked, so that the next daemon checks its copies. If
        only a free file descriptor was missing, the check is repeated later. Otherwise the copy is
        damaged, and is dropped."""
        entry = int(result["id"])
        if result["status"] == JobStatus.ABANDONED:
            self._keepers[int(result["tier"])].distrust()
        elif is_passing(result):
            self._failed.append(entry)
            self._not_before_s = time.monotonic() + PASSING_S
        else:
            self.make_anew(entry)

    def make_anew(self, entry: int) -> None:
        """Drops a damaged copy. A new copy is made in advance, or when a program reads the file."""
        path = self._shared.catalog.path(entry)
        log.warning("the copy of %s is damaged; it is dropped and made again", path)
        self._copies.forget(one(entry), State.ABSENT)
        self._requests.make_anew(one(entry))
