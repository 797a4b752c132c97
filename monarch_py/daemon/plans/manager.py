"""Follows access plans: compares what programs open with what the plans predict.

While a plan agrees with what programs open, the plan determines which files this node keeps
(`placement.py`), and files are fetched before they are needed (`fetch_ahead.py`). A plan that
disagrees is dropped. If all plans have been dropped, this node keeps files as it does without a
plan.
"""

import logging
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from monarch_py.arrays import NO_IDS, Bools, Floats, Ids
from monarch_py.daemon.copies.eviction import Evictions
from monarch_py.daemon.fill.filler import Filler
from monarch_py.daemon.plans.fetch_ahead import FetchAhead
from monarch_py.daemon.plans.placement import PlacementResult, PlacementTask
from monarch_py.daemon.plans.retry import Job
from monarch_py.daemon.plans.tracker import PlanTracker
from monarch_py.errors import ConfigError, MonarchError
from monarch_py.ipc import word
from monarch_py.native import State
from monarch_py.plan import Plan
from monarch_py.plan.position import NOT_SOON, Distances
from monarch_py.plan.recipe import read_plan
from monarch_py.policies.holding import with_holders
from monarch_py.policies.node import NOBODY
from monarch_py.util.file_version import Version, version_of

log = logging.getLogger("monarch.planned")

# The time between two checks of whether a dropped plan may be retried [s].
RENEW_S = 1.0
# After a program has opened a file, the daemon's loop iterates often for this long [s], so that it
# soon notices which files are opened next.
AWAKE_S = 2.0

# A pair: the version of a plan's file, and the plan.
Loaded = tuple[Version, Plan]


def load_plan(file: Path, nodes: int) -> Loaded:
    """Reads the plan of a training run on `nodes` nodes. The accesses of the plan are converted to
    accesses of whole files, because a daemon copies only whole files. If `nodes` is 1, the plan may
    be for more nodes; this node then follows node 0 of the plan.

    Raises ConfigError, which names the file, if the plan cannot be followed.
    """
    version = version_of(file)
    plan = replace(with_holders(read_plan(file)), grain="files")
    if any(not len(index.pool) for index in plan.datasets):
        raise ConfigError(
            f"{file}: the plan says how many files there are, but not their names; name an index as"
            " its 'dataset' (see `monarch plan index`)"
        )
    if nodes not in (1, plan.nodes):
        raise ConfigError(
            f"{file}: the plan is for {plan.nodes} nodes, but {nodes} work together; make it again"
            f" with 'nodes: {nodes}'"
        )
    plan.timeline()
    return version, plan


class PlanManager:
    """Follows all plans of this daemon. Runs in the daemon's loop.

    plans : pairs (file of a plan, result of `load_plan`). If several jobs read one dataset, each
        job has a plan of its own, and the jobs share the tiers
    """

    def __init__(self, plans: Sequence[tuple[Path, Loaded]], filler: Filler) -> None:
        self.filler, self.shared, self._nodes = filler, filler.shared, filler.nodes
        self._executor = ThreadPoolExecutor(1, "planned")
        self.trackers = [self._tracker(file, *loaded) for file, loaded in plans]
        self._task: Future[PlacementResult] | None = None
        # The plans whose files are being assigned to nodes and tiers.
        self._to_place: list[PlanTracker] = []
        self._placed = False
        self._renewing: Future[dict[PlanTracker, PlanTracker | None]] | None = None
        # For each plan, the job that follows the plan. For a dropped plan, the job that did not
        # open files as the plan predicts.
        self._jobs: dict[PlanTracker, Job] = {}
        self._renew_at = float("-inf")
        self._is_new_job = False
        self._fetch_ahead = FetchAhead(filler, self.trackers)
        filler.seconds_to_use = self._fetch_ahead.seconds_to_use
        self._opened_at = self._seen_at = float("-inf")
        self.evictions = Evictions(filler.copies, filler.policy, self._foresee, self._may_go)
        if plans and self._nodes is not None:
            self._nodes.awaits_plan = True

    @property
    def is_active(self) -> bool:
        """Whether there is a plan that was not dropped: a plan that is followed now, or will be
        followed soon."""
        return any(tracker.state != "dropped" for tracker in self.trackers)

    @property
    def is_awake(self) -> bool:
        """Whether the loop should iterate often, so that it soon notices which files programs
        open."""
        return self._placed and time.monotonic() - self._opened_at < AWAKE_S

    def _tracker(self, file: Path, version: Version, plan: Plan) -> PlanTracker:
        return PlanTracker(file, version, plan, self.filler.policy.node, self._executor)

    # --- in the loop ----------------------------------------------------------------------------

    def observe(self, opened: Ids) -> None:
        """Compares the plans with the files that programs have opened since the last iteration.
        Each iteration must call this method before it drops copies. Otherwise the plans would still
        predict these opens. The copies of the opened files would then be kept, and copies that are
        needed later would be dropped instead.

        Each open is assigned to the first plan that predicts it. The plans are tried one after
        another, beginning with the plan that has predicted the largest number of opens so far. An
        open that a plan has not predicted is evidence against this plan, except in two cases. The
        first is that the open is assigned to another plan. The second is that the job of another
        plan has opened the same file a short time ago, so that this open may be a repetition.
        """
        if len(opened):
            self._seen_at = time.monotonic()
        if not self.is_active or not len(opened):
            return
        self._opened_at = time.monotonic()
        trackers = [tracker for tracker in self.trackers if tracker.state != "dropped"]
        trackers.sort(key=lambda c: -c.estimator.fits if c.estimator else 0)
        left = np.ones(len(opened), dtype=bool)
        fitted, known = np.zeros((2, len(trackers), len(opened)), dtype=bool)
        for tracker, fits, again in zip(trackers, fitted, known, strict=True):
            with self._at_its_risk(tracker):
                fits[left] = tracker.observe(opened[left])
                again[:] = tracker.knows_again(opened)
            left &= ~fits
        times = known.sum(axis=0)
        for tracker, fits, again in zip(trackers, fitted, known, strict=True):
            mine = (fits | left) & (times == again)
            with self._at_its_risk(tracker):
                tracker.judge(opened[mine], fits[mine], alone=len(trackers) == 1)
        if self.is_active:
            self._fetch_ahead.opened(opened)
        else:
            self._give_up()

    def step(self) -> None:
        """Runs one iteration."""
        self._renew()
        if not self.is_active:
            return
        self._place()
        if not self._placed:
            return
        for tracker in self.trackers:
            with self._at_its_risk(tracker):
                tracker.step()
                self._know_used(tracker)
        if not self.is_active:
            self._give_up()
        elif not self.shared.control.off:
            self._evict()
            self._fetch_ahead.step()

    @contextmanager
    def _at_its_risk(self, tracker: PlanTracker) -> Iterator[None]:
        """Drops the plan if the `with` block raises an error, so that a faulty plan does not end
        the daemon. Logs why the plan was dropped, also if the block itself has dropped it."""
        was_dropped = tracker.state == "dropped"
        try:
            yield
        # The error may have occurred in the executor's thread, because the block fetches the
        # results of this thread.
        except Exception:
            log.exception("the plan %s cannot be followed", tracker.file)
            tracker.drop("computing its next accesses failed (see the log)")
        if tracker.state == "dropped" and not was_dropped:
            self._say_dropped(tracker)

    def _evict(self) -> None:
        try:
            self.evictions.step()
        except Exception:  # also errors of the thread that computes the next uses
            log.exception("eviction from the tiers has ended")
            self.evictions.end()

    def _know_used(self, tracker: PlanTracker) -> None:
        """Tells `filler.routes` that owners have complete copies of some files: the files of each
        run that all nodes have finished. (A run is a section of an epoch, see Run in
        plan/timeline.py.)"""
        ids, places = tracker.take_used(), self.filler.routes
        if len(ids) and places is not None and self._nodes is not None:
            owner = self.filler.policy.owners(ids)
            places.know(ids, np.where(owner == self.filler.policy.node, NOBODY, owner))

    def close(self) -> None:
        self._executor.shutdown(wait=False, cancel_futures=True)

    def _say_followed(self, tracker: PlanTracker) -> None:
        nodes = tracker.timeline.nodes
        log.info("the plan %s is followed now", tracker.file)
        if nodes > 1 and self._nodes is None:
            log.warning(
                "the plan %s is for %d nodes, but this daemon works alone: it follows only the"
                " accesses of node 0; write 'nodes: 1' in the plan if that is wrong",
                tracker.file,
                nodes,
            )

    def _say_dropped(self, tracker: PlanTracker) -> None:
        log.warning("the plan %s is no longer followed: %s", tracker.file, tracker.why)
        self._jobs.pop(tracker, None)

    def _give_up(self) -> None:
        """Makes this node keep files as it does without a plan. Call it when all plans have been
        dropped."""
        self.filler.policy.forget_plan()
        # Files of the dropped plans must not be fetched while the files of another plan are being
        # assigned to nodes and tiers.
        self._fetch_ahead.begin(NO_IDS)

    # --- new jobs -------------------------------------------------------------------------------

    def new_job(self) -> None:
        """Must be called when a job begins. Dropped plans are then retried, and plan files that
        have changed are loaded again."""
        self._is_new_job = True
        for tracker in self.trackers:
            self._begin_job(tracker)

    def _begin_job(self, tracker: PlanTracker) -> None:
        self._jobs.pop(tracker, None)
        tracker.begin_job()

    def _renew(self) -> None:
        """Looks for new jobs. Retries dropped plans in the cases that the docstring of retry.py
        lists."""
        now = time.monotonic()
        if self._renewing is not None:
            if self._renewing.done():
                self._take_renewed(self._renewing)
        elif self._is_new_job or (now >= self._renew_at and self.trackers):
            self._renew_at = now + RENEW_S
            self._renewing = self._executor.submit(
                self._find_renewed, list(self.trackers), is_new_job=self._is_new_job
            )
            self._is_new_job = False

    def _find_renewed(
        self, trackers: list[PlanTracker], *, is_new_job: bool
    ) -> dict[PlanTracker, PlanTracker | None]:
        """Finds the plans that another job may follow from now on. Returns a dict that maps the
        tracker of each such plan to a new tracker, or to None if the present tracker can go on.
        Runs in the executor's thread."""
        found: dict[PlanTracker, PlanTracker | None] = {}
        for tracker in trackers:
            is_dropped = tracker.state == "dropped"
            is_other_job = self._has_other_job(tracker)
            version = version_of(tracker.file) if is_new_job or is_dropped else tracker.version
            is_other_plan = version is not None and version != tracker.version
            if is_other_plan or (is_dropped and (is_new_job or is_other_job)):
                tracker.version = version  # so that a load that fails is not repeated
                try:
                    found[tracker] = self._tracker(tracker.file, *self._load(tracker.file))
                except MonarchError as error:
                    log.warning("%s", error)
            elif is_other_job:
                found[tracker] = None
        return found

    def _has_other_job(self, tracker: PlanTracker) -> bool:
        """Whether the plan's job has ended, and programs have opened files since then. The job of a
        dropped plan is the one that did not open files as the plan predicts."""
        if not tracker.has_job:
            return False
        job = self._jobs.setdefault(tracker, Job(f"{self.shared.session.path}/catalog."))
        return job.is_over() and self._seen_at > job.over_at

    def _load(self, file: Path) -> Loaded:
        return load_plan(file, len(self._nodes.cluster.members) if self._nodes else 1)

    def _take_renewed(self, renewing: Future[dict[PlanTracker, PlanTracker | None]]) -> None:
        self._renewing = None
        try:
            found = renewing.result()
        except Exception:  # the thread has failed to load the plans, so all trackers stay
            log.exception("dropped plans cannot be tried again now")
            return
        for old, new in found.items():
            if new is None:
                self._begin_job(old)
                continue
            log.info("the plan %s is tried again", new.file)
            self._jobs.pop(old, None)
            self.trackers[self.trackers.index(old)] = new

    # --- placement ------------------------------------------------------------------------------

    def _place(self) -> None:
        """Makes the executor's thread compute the placement (which nodes and tiers keep the plans'
        files) when all sources are scanned. Applies the placement when it is complete."""
        if self._task is None:
            waits = any(tracker.state == "waiting" for tracker in self.trackers)
            is_decided = self._nodes is None or self._nodes.is_decided
            if waits:
                self.filler.scanner.ask_for_all()
            if waits and self.filler.scanner.scanned and is_decided:
                self._to_place = [c for c in self.trackers if c.state != "dropped"]
                task = PlacementTask(
                    self._to_place,
                    self.shared,
                    self.shared.catalog.reader(),
                    self.filler.scanner.config.sources,
                    self.shared.catalog.words.copy(),
                    self.filler.rooms(),
                    self._nodes,
                    is_first=not self._placed,
                )
                self._task = self._executor.submit(task.make)
        elif self._task.done():
            done, self._task = self._task, None
            try:
                self._install(done.result())
            except Exception:
                self._placed = True
                log.exception("the files of the plans cannot be placed")
                for tracker in self._to_place:
                    if tracker.state != "dropped":
                        tracker.drop("its files could not be placed")
                        self._say_dropped(tracker)
            if self._nodes is not None:
                self._nodes.awaits_plan = False

    def _install(self, placed: PlacementResult) -> None:
        self._placed = True
        entries = len(self.shared.catalog)
        for tracker, found in zip(self._to_place, placed.found, strict=True):
            if tracker.state != "waiting":
                continue
            if found.problem:
                tracker.drop(found.problem)
                self._say_dropped(tracker)
            else:
                tracker.begin(found, entries)
                self._say_followed(tracker)
        if not self.is_active:
            return
        if self._nodes is not None:
            # `step` determines the owners of files that were added to the catalog after the
            # computation of the placement began.
            self._nodes.step(scanned=True)
            self._nodes.follow(placed.ids, placed.tier, entries, placed.holders)
        else:
            self.filler.policy.follow(placed.ids, placed.tier, entries)
        self._fetch_ahead.begin(placed.order)

    # --- eviction -------------------------------------------------------------------------------

    def _foresee(self) -> Future[Distances] | None:
        """Starts a thread's computation for `Evictions`: the next two uses of each file. Assumes
        that the jobs of all plans advance at the same pace. Returns a Future of the result, or None
        if no plan is followed, or if a plan's present or next run is not known yet."""
        active = [tracker for tracker in self.trackers if tracker.state != "dropped"]
        if not active or not all(tracker.sees_far for tracker in active):
            return None
        followed = [(c.entries, c.estimator.foresee()) for c in active if c.estimator is not None]
        return self._executor.submit(_nearest, followed, len(self.filler.policy.planned))

    def _may_go(self, ids: Ids) -> Bools:
        """Returns for each file whether its copy may be evicted, (n,). Only copies of files in a
        followed plan may be evicted. In a cluster, a node never evicts the copy of a file that it
        owns, because other nodes fetch the file from its owner."""
        known = np.zeros(len(self.filler.policy.planned), dtype=bool)
        for tracker in self.trackers:
            known[tracker.entries] |= tracker.is_active
        may = known[ids]
        if self._nodes is not None:
            may &= ~self.filler.policy.owns(ids)
        return may

    # --- what the ranks need next ---------------------------------------------------------------

    def due_bytes(self) -> Floats | None:
        """Returns how much each rank of this node still lacks, (ranks,) [bytes]: the total size of
        the files that the rank needs next and that have no copy on this node yet. Returns None
        unless exactly one plan is followed, because it is not known which of several plans a rank
        follows."""
        following = [tracker for tracker in self.trackers if tracker.state == "following"]
        if not self._placed or len(following) != 1:
            return None
        ids, rank = following[0].due()
        words, sizes = self.shared.catalog.words[ids], self.shared.catalog.entries["size"][ids]
        missing = np.isin(word.state(words), (State.ABSENT, State.WANTED, State.FILLING))
        ranks = following[0].timeline.ranks_per_node
        return np.bincount(rank[missing], sizes[missing], ranks).astype(np.float64)

    # --- status ---------------------------------------------------------------------------------

    def told(self) -> list[dict[str, Any]]:
        """Returns the status fields of each plan."""
        return [tracker.told() for tracker in self.trackers]


def _nearest(followed: list[tuple[Ids, Callable[[], Distances]]], entries: int) -> Distances:
    """Returns the distances to the next two uses of each entry in any of the plans. Runs in a
    thread.

    followed : for each plan, the entries of its files, and a function that returns the distances to
        the next two uses of these files
    """
    first = np.full(entries, NOT_SOON, dtype=np.int64)
    second = first.copy()
    for at, foresee in followed:
        one, two = foresee()
        later = np.maximum(one, first[at])
        first[at] = np.minimum(one, first[at])
        second[at] = np.minimum(later, np.minimum(two, second[at]))
    return first, second
