"""One access plan on this node: the catalog entries of its files, and the programs' progress.

An access is one use of a file by a program. The plan is followed run by run: a run is the list of
the files that this node uses in one section of an epoch, in the order of their first use (see Run
in plan/timeline.py).

Slow work (computing a run, searching for the programs' position) is done by the thread of an
executor. The daemon's loop polls for the results and never waits for them.
"""

from concurrent.futures import Executor, Future
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from monarch_py.arrays import NO_IDS, Bools, Ids, Int32s, Ints
from monarch_py.plan import Plan
from monarch_py.plan.evidence import SEARCHED, locate
from monarch_py.plan.position import JUDGED, PositionEstimator
from monarch_py.plan.samplers import NONE
from monarch_py.plan.timeline import Run
from monarch_py.util.file_version import Version

# A plan is dropped if at least this many searches in a row have not found the programs' position,
# and if the accesses just before the last search disagree with the plan.
SEARCHES = 2

# Accesses that happen before the catalog entries of the plan's files are known are stored, and are
# processed later. At most about this many accesses are stored.
EARLY = 1 << 20


@dataclass(frozen=True, eq=False)
class Found:
    """The catalog entries of a plan's files, and the first runs of the plan on this node.

    entries : (files,) uint64, the catalog entry of each file
    used : (files,) whether at least one node uses the file; empty if the plan cannot be followed
    problem : the reason why the plan cannot be followed; "" if it can be followed
    runs : this node's first two runs of the plan; a single run if the plan has only one
    """

    entries: Ids
    used: Bools
    problem: str
    runs: tuple[Run, ...]


class PlanTracker:
    """Tracks a node's progress in one plan.

    version : the version of the file that the plan was loaded from
    state : 'waiting' until the catalog entries of the files are known, 'following', 'searching' for
        the programs' position, or 'dropped'
    why : the reason why the plan was dropped; "" if it was not dropped
    misled : whether the plan was dropped because a job did not open files as the plan predicts
    """

    def __init__(
        self, file: Path, version: Version, plan: Plan, node: int, executor: Executor
    ) -> None:
        self.file, self.version, self.plan, self.node = file, version, plan, node
        self.timeline = plan.timeline()
        self.layout = self.timeline.layout()
        self.state, self.why, self.misled = "waiting", "", False
        self.entries: Ids = NO_IDS
        self.number = 0  # the index in `layout` of the run that is followed
        self.estimator: PositionEstimator | None = None
        self._executor = executor
        self._of_entry: Int32s = np.zeros(0, dtype=np.int32)
        self._drawing: tuple[int, Future[Run]] | None = None
        self._search: Future[tuple[int, Run, int] | None] | None = None
        self._in_vain = 0  # how many searches have failed since the position was lost
        # The next search starts when the estimator has judged this many accesses.
        self._search_at = 0
        # Whether the present search is the last one. If it finds no position, the plan is dropped.
        self._is_last = False
        # The position of a new job is searched for when the estimator has judged this many
        # accesses, see `_search_for_job`. Infinite if no such search is to come for the present
        # job.
        self._job_search_at = float(JUDGED)
        self._early: list[Ids] = []
        # For each run that has ended on this node: the entries of its files, see `take_used`.
        self._over: list[Future[Ids]] = []
        # Whether the present run has been followed from its start.
        self._is_from_its_beginning = True

    @property
    def is_active(self) -> bool:
        return self.estimator is not None and self.state != "dropped"

    @property
    def has_job(self) -> bool:
        """Whether a job has opened files of the plan since the last `begin_job`. True for a plan
        that was dropped because of a job."""
        return self.misled or (self.estimator is not None and self.estimator.weighed > 0)

    # --- the plan's files -----------------------------------------------------------------------

    def begin(self, found: Found, catalog_entries: int) -> None:
        """Starts following the plan. Processes the accesses that were stored before this call."""
        if self.state == "dropped":
            return
        self.entries = found.entries
        self._of_entry = np.full(catalog_entries, -1, dtype=np.int32)
        # Only files that the training run uses are tracked. Reads of other files, for example for
        # validation, show nothing about the position of the training run.
        used = np.flatnonzero(found.used).astype(np.int32)
        self._of_entry[found.entries[used]] = used
        self.estimator = PositionEstimator(found.runs[0], ranks=self.timeline.ranks_per_node)
        self.state = "following"
        self.estimator.following = found.runs[1] if len(found.runs) > 1 else None
        early, self._early = self._early, []
        for ids in early:
            self.judge(ids, self.observe(ids))

    def begin_job(self) -> None:
        """Prepares for a new job. It may begin at another position than the one at which the
        earlier job has ended. If the earlier job has reached the end of the plan, the new job is
        assumed to begin with the first run."""
        if self.estimator is None:
            return
        self.estimator.begin_job()
        self.state, self._is_last = "following", False
        self._job_search_at = self.estimator.judged + JUDGED
        # A search for the position of the earlier job is of no use any more.
        self._search = None
        if self.number + 1 == len(self.layout) and self.estimator.is_ending:
            self._search = self._executor.submit(lambda: (0, self.draw(0), 0))

    def drop(self, why: str) -> None:
        self.misled = self.estimator is not None
        self.state, self.why = "dropped", why
        self.estimator, self._early = None, []
        self._of_entry = np.zeros(0, dtype=np.int32)

    # --- runs -----------------------------------------------------------------------------------

    def draw(self, number: int) -> Run:
        epoch, part, _ = self.layout[number]
        return Run.of(self.timeline.section(epoch, part.name), self.node, self.timeline.units)

    def step(self) -> None:
        """Runs one iteration: collects the results of the executor's thread, and submits the next
        work to it."""
        estimator = self.estimator
        if estimator is None or self.state == "dropped":
            return
        if self._drawing is not None and self._drawing[1].done():
            (number, drawn), self._drawing = self._drawing, None
            if number == self.number + 1:
                self._expect(estimator, drawn.result())
        if self._search is None:
            self._search_if_lost(estimator)
        if self._search is None:
            self._search_for_job(estimator)
        if self._search is not None:
            self._end_search(estimator)
        if not self.is_active:
            return
        ahead = self.number + 1
        if estimator.following is None and self._drawing is None and ahead < len(self.layout):
            self._drawing = ahead, self._executor.submit(self.draw, ahead)

    def _expect(self, estimator: PositionEstimator, following: Run) -> None:
        run = estimator.run
        estimator.expect(following)
        if estimator.run is not run:
            self._go_on()

    def _go_on(self) -> None:
        """Proceeds to the next run. Also makes the executor's thread list the files of the run that
        has just ended on this node, for `take_used`. When the run has ended on all nodes too, the
        nodes that keep these files have copies of them."""
        if self.timeline.nodes > 1 and self._is_from_its_beginning:
            self._over.append(self._executor.submit(self._used_in, self.number))
        self.number += 1
        self._is_from_its_beginning = True

    def _used_in(self, number: int) -> Ids:
        """Returns the entries of the files that at least one node uses in run `number`, (n,). Runs
        in the executor's thread."""
        epoch, part, _ = self.layout[number]
        units = np.unique(self.timeline.section(epoch, part.name).rows)
        return np.asarray(self.entries[units[units != NONE]])

    def take_used(self) -> Ids:
        """Returns the entries of the files in a run that all nodes have finished, (n,); an empty
        array if there is no such run. Each run is returned once. All nodes are assumed to have
        finished a run when this node has passed the first positions of the next run."""
        estimator = self.estimator
        if not self._over or estimator is None or estimator.front <= estimator.run.window:
            return NO_IDS
        if not self._over[0].done():
            return NO_IDS
        return self._over.pop(0).result()

    def _search_for_job(self, estimator: PositionEstimator) -> None:
        """Searches once for the position of a new job, unless the job's first accesses confirm the
        present position. In a plan with short epochs they may confirm nothing, because accesses in
        random order would mostly fit too."""
        if estimator.judged >= self._job_search_at:
            self._job_search_at = float("inf")
            if not estimator.is_certain:
                self._search = self._executor.submit(self._find_place, estimator.recent)

    def _search_if_lost(self, estimator: PositionEstimator) -> None:
        if self.state == "following":
            # Near the end of a run, accesses that do not fit the run may belong to the next run.
            # They cannot be judged until the executor's thread has computed the next run.
            if not estimator.is_lost or (estimator.is_ending and self._drawing is not None):
                return
            self.state, self._in_vain, self._search_at = "searching", 0, estimator.judged
            self._job_search_at = float("inf")
        elif estimator.is_found:
            self.state = "following"
            return
        self._is_last = self._in_vain + 1 >= SEARCHES and estimator.is_wrong
        if self._is_last or estimator.judged >= self._search_at:
            # A search uses the latest accesses. If it fails, it is repeated later, because these
            # accesses may be misleading. Right after a job has jumped to another position, some of
            # them were made before the jump. After a jump to the end of an epoch, they belong to
            # two epochs. The intervals between searches grow, because a search is expensive: it
            # computes all accesses of every run of the plan.
            self._search_at = estimator.judged + (SEARCHED // 2 << self._in_vain)
            self._search = self._executor.submit(self._find_place, estimator.recent)

    def _find_place(self, recent: Int32s) -> tuple[int, Run, int] | None:
        """Finds the run in which the latest accesses lie closest together. Returns (number of the
        run, run, position in the run). Returns None if random accesses might lie as close together
        in each run. Called in the executor's thread."""
        best: tuple[float, int, Run, int] | None = None
        for number in range(len(self.layout)):
            run = self.draw(number)
            score, place = locate(run, recent)
            if score > (best[0] if best else 0.0):
                best = score, number, run, place
        return best[1:] if best else None

    def _end_search(self, estimator: PositionEstimator) -> None:
        assert self._search is not None
        if not self._search.done():
            return
        found, self._search = self._search.result(), None
        if self.state == "searching" and estimator.is_found:
            self.state = "following"
        elif found is not None:
            self.number, run, place = found
            self._over, self._is_from_its_beginning = [], False
            recent = estimator.recent
            # The job has advanced during the search, so the job's position in the run is determined
            # again.
            score, now = locate(run, recent)
            estimator.enter(run, now if score else place)
            estimator.observe(np.unique(recent))
            self.state = "following"
        elif self._is_last:
            last, others = estimator.weighed, estimator.unexplained
            self.drop(
                f"{others} of the last {last} opens do not fit the plan; the plan's seed,"
                " epochs or number of ranks probably differ from those of the training run"
            )
        elif self.state == "searching":
            self._in_vain += 1

    # --- accesses -------------------------------------------------------------------------------

    def observe(self, ids: Ids) -> Bools:
        """Processes files that were opened since the last call. Returns for each file whether the
        open fits the plan, (n,).

        ids : (n,) the files' catalog entries
        """
        fits = np.zeros(len(ids), dtype=bool)
        if self.estimator is None:
            if self.state == "waiting" and sum(map(len, self._early)) < EARLY:
                self._early.append(ids)
            return fits
        run = self.estimator.run
        known = self._is_known(ids)
        fits[known] = self.estimator.observe(self._of_entry[ids[known]])
        if self.estimator.run is not run:
            self._go_on()
        return fits

    def knows_again(self, ids: Ids) -> Bools:
        """Returns for each file whether the plan's job opened it a short time ago, (n,). The
        present open may then be a repetition."""
        again = np.zeros(len(ids), dtype=bool)
        if self.estimator is not None:
            known = self._is_known(ids)
            again[known] = self.estimator.knows_again(self._of_entry[ids[known]])
        return again

    def judge(self, ids: Ids, fits: Bools, *, alone: bool = True) -> None:
        """Adds opens of files to the evidence for and against this plan. The caller leaves out
        opens that another plan has predicted.

        ids : (n,) the files' catalog entries;  fits : (n,) whether each open fits this plan
        alone : whether this is the only plan
        """
        if self.estimator is not None and len(ids):
            known = self._is_known(ids)
            self.estimator.judge(self._of_entry[ids[known]], fits[known], alone=alone)

    def _is_known(self, ids: Ids) -> Bools:
        known = ids < len(self._of_entry)
        known[known] = self._of_entry[ids[known]] >= 0
        return np.asarray(known)

    def upcoming(self, most: int) -> Ids:
        """Returns the entries of the files that are used next, (n,), at most `most` of them."""
        if self.estimator is None:
            return NO_IDS
        return self.entries[self.estimator.upcoming(most)]

    def due(self) -> tuple[Ids, Ints]:
        """Returns the entries of the files that programs may be reading now, and the rank that uses
        each file, both (n,). This node's ranks are numbered from 0."""
        if self.estimator is None:
            return NO_IDS, np.zeros(0, dtype=np.int64)
        run = self.estimator.run
        places = self.estimator.due(run.window)
        # `starts` are positions in the plan. Consecutive positions belong to the node's ranks in
        # turn: 0, 1, and so on.
        return self.entries[run.units[places]], run.starts[places] % self.timeline.ranks_per_node

    @property
    def sees_far(self) -> bool:
        """Whether the accesses of the present run and of the next run are known."""
        estimator = self.estimator
        is_last = self.number + 1 == len(self.layout)
        known = estimator is not None and (estimator.following is not None or is_last)
        return known and self.state == "following"

    def told(self) -> dict[str, Any]:
        """Returns the status fields of the plan."""
        estimator = self.estimator
        return {
            "file": str(self.file),
            "state": self.state,
            "why": self.why,
            "epoch": estimator.run.epoch if estimator else None,
            "position": estimator.position if estimator else None,
            "fitting": estimator.fits if estimator else 0,
            "others": estimator.misfits if estimator else 0,
        }
