"""Evicts copies from tiers to make room for files that a plan uses sooner (Lobster 4.4).

A plan predicts which files each program will use, and in which order. Copies that are not used
again before the end of the next epoch are evicted first. Of the others, the copy whose next use is
farthest away is evicted first. The freed room goes to files that have no room yet, in the order of
their next use. A copy is evicted for a file only if the file is used twice before the copy is used
again (`policies.eviction.exchange`). These are Lobster's rules of reuse count, of reuse distance,
and of coordination with prefetching. Nothing is evicted without a plan, if the coming uses are
unknown, or if no file needs room.
"""

import math
import time
from collections.abc import Callable
from concurrent.futures import Future

import numpy as np

from monarch_py.arrays import Bools, Ids, Ints
from monarch_py.daemon.copies.copies import Copies
from monarch_py.ipc import word
from monarch_py.native import State
from monarch_py.plan.position import NOT_SOON, Distances
from monarch_py.policies.eviction import exchange
from monarch_py.policies.node import NodePolicy
from monarch_py.policies.placement import NOWHERE

# The search for copies to evict runs at most once every LOOK_S [s], and takes at most the share
# SHARE of the loop's time.
LOOK_S, SHARE = 0.1, 0.05
# Limit on the total size [bytes] of files that are assigned to a tier and whose fills have not
# begun. At the limit, eviction assigns no further files. A single file may be larger than the
# limit.
MOST_BYTES = 64 << 20
# One search makes room for at most MOST_FILES files in a tier. To make room for n files, it
# examines the TIMES * n copies whose next use is farthest away.
MOST_FILES, TIMES = 2048, 4
# A tier may lack room for files that the plan has assigned to it. Files outside the plan, or other
# users of the file system, may occupy the room. If this lasts longer than SHORT_S [s], the files
# that do not fit are no longer assigned to the tier.
SHORT_S = 10.0
# A thread computes the distances to the next uses. A result that was requested more than this time
# ago [s] is out of date, and is ignored.
OLD_S = 5.0

Uses = Ints


class Evictions:
    """Evicts copies to make room for files that a plan uses sooner. Runs in the daemon's loop and
    never blocks.

    foresee : a function that starts a computation in a thread, and returns a Future of two arrays
        (entries,). The first contains the distance to each file's next use, the second the distance
        to the use after that; NOT_SOON where no use is known. Returns None if the plan does not
        show the next uses yet
    may_go : a function that takes files, and returns for each whether this node may drop its copy
    evicted : the number of evicted copies for each tier with eviction, by the tier's number
    """

    def __init__(
        self,
        copies: Copies,
        policy: NodePolicy,
        foresee: Callable[[], Future[Distances] | None],
        may_go: Callable[[Ids], Bools],
    ) -> None:
        self._copies, self._policy = copies, policy
        self._foresee, self._may_go = foresee, may_go
        self._next_look_s = 0.0
        # A thread computes the next uses of the files. For a million files, this takes longer than
        # an iteration of the loop may take.
        self._uses: Future[Distances] | None = None
        self._asked_s = 0.0
        self._short_since_s: dict[int, float] = {}
        self.evicted = dict.fromkeys(copies.scanner.config.evicting, 0)

    def end(self) -> None:
        """Ends eviction for good."""
        self._next_look_s = math.inf

    def step(self) -> None:
        """Runs one iteration: evicts copies to make room for files that are used sooner."""
        begun = time.monotonic()
        if not self.evicted or begun < self._next_look_s:
            return
        if self._uses is None:
            self._uses, self._asked_s = self._foresee(), begun
        if self._uses is None or not self._uses.done():
            return
        uses, self._uses = self._uses.result(), None
        if begun - self._asked_s > OLD_S:
            return
        for number in self.evicted:
            self._look_at(number, *uses)
        took = time.monotonic() - begun
        self._next_look_s = begun + max(LOOK_S, took / SHARE)

    def _look_at(self, number: int, first: Uses, second: Uses) -> None:
        tier = self._copies.tiers[number]
        if tier is None or not tier.usable:
            return
        catalog, placement = self._copies.shared.catalog, self._policy.planned
        words = catalog.words[: len(placement)]
        absent = (word.state(words) == State.ABSENT) & (word.copy(words) == 0)
        promised = absent & (placement == number)
        room = tier.room()
        sizes = catalog.entries["size"][: len(placement)]
        kept_for = int(room.rounded(sizes[promised]).sum())
        there = room.free_bytes + self._copies.leaving[number]
        if kept_for <= there:
            self._short_since_s.pop(number, None)
        elif time.monotonic() - self._short_since_s.setdefault(number, time.monotonic()) > SHORT_S:
            ids = np.flatnonzero(promised)
            ids = ids[np.argsort(first[ids], kind="stable")]
            placement[ids[np.cumsum(room.rounded(sizes[ids])) > there]] = NOWHERE
        if kept_for > there or kept_for >= MOST_BYTES:
            return
        # Room is made only for files whose next two uses are known. `foresee` looks only to the end
        # of the next epoch. If a file is used only once until then, its second use is unknown.
        coming = np.flatnonzero(absent & (placement == NOWHERE) & (second != NOT_SOON))
        if len(coming) > MOST_FILES:
            coming = coming[np.argpartition(first[coming], MOST_FILES)[:MOST_FILES]]
        coming = coming[np.argsort(first[coming], kind="stable")].astype(np.uint64)
        needs = room.rounded(sizes[coming])
        fits = np.cumsum(needs, dtype=np.float64) <= MOST_BYTES - kept_for
        fits[:1] |= kept_for == 0
        coming, needs = coming[fits], needs[fits]
        if not len(coming):
            return
        here = (word.state(words) == State.PRESENT) & (word.tier(words) == number)
        held = np.flatnonzero(here & (first > second[coming].min())).astype(np.uint64)
        held = held[self._may_go(held)]
        most = TIMES * len(coming)
        if len(held) > most:
            held = held[np.argpartition(first[held], len(held) - most)[len(held) - most :]]
        goes, stays = exchange(
            first[held], room.rounded(sizes[held]), second[coming], needs, there - kept_for
        )
        placement[coming[stays]] = number
        placement[held[goes]] = NOWHERE
        self._copies.forget(held[goes], State.ABSENT)
        self.evicted[number] += int(goes.sum())
