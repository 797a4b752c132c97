"""The daemon: its parts, and the loop that runs each of them in turn."""

import json
import logging
import os
import socket
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from monarch_py.arrays import NO_IDS, Ids
from monarch_py.config._disk import is_inside
from monarch_py.config.schema import MAX_SOURCES, SYSTEM_SWITCH_FILE, Config, SourceConfig
from monarch_py.daemon.copies.ranks import Ranks
from monarch_py.daemon.copies.staging import open_staging
from monarch_py.daemon.fill.directory_prefetch import DirectoryPrefetch
from monarch_py.daemon.fill.filler import Filler
from monarch_py.daemon.history import History, Moment
from monarch_py.daemon.nodes.nodes import Membership
from monarch_py.daemon.openfiles import writers
from monarch_py.daemon.pacing import Pacing
from monarch_py.daemon.plans.manager import Loaded, PlanManager, load_plan
from monarch_py.daemon.scan.revalidation import Metadata
from monarch_py.daemon.scan.scanner import Scanner
from monarch_py.daemon.segments import Shared
from monarch_py.daemon.status import status, totals
from monarch_py.daemon.switches import Switches
from monarch_py.errors import SessionError
from monarch_py.ipc.session import FileId, SessionDir, id_of
from monarch_py.native import lib
from monarch_py.peers.membership import Cluster
from monarch_py.scan.record import Scanned
from monarch_py.scan.walk import END_LIMIT_S
from monarch_py.storage.opening import OpenTiers
from monarch_py.storage.watch import TierWatch

log = logging.getLogger("monarch.daemon")

# The time between two checks of whether files of the session were removed [s].
LOOK_S = 0.5
# During an iteration of the loop, the engine may not order fills. If an iteration takes longer than
# this time [s], the engine gets a brief permission between two parts of the iteration. A shorter
# time would cost too much, because each permission requires computing the free room of all tiers.
LET_S = 0.001


class Daemon:
    """The daemon of one session. The constructor prepares everything. `run` then serves clients
    until `stop_soon` is called.

    The constructor raises ConfigError if a plan cannot be followed, TierError if no tier can be
    used, and OSError if shared memory is full.

    awaits_s : how long the scan waits for a program's first open (see ScanPace) [s]
    stays : whether the daemon continues to run while no process uses it
    lost : the session file whose removal has ended the daemon, or None
    at_end : callbacks that run at the end, before the daemon's parts are closed
    """

    def __init__(
        self,
        config: Config,
        session: SessionDir,
        cluster: Cluster | None = None,
        listener: socket.socket | None = None,
        scanned: Scanned | None = None,
        *,
        awaits_s: float = 0.0,
    ) -> None:
        self.config, self.cluster, self.started = config, cluster, time.monotonic()
        nodes = len(cluster.members) if cluster else 1
        plans = [(file, load_plan(file, nodes)) for file in config.plans]
        self._lock, self._one_source = threading.Lock(), threading.Lock()
        self._is_stopping = self.is_closed = self.stays = False
        self.lost: Path | None = None
        self._history = History()
        self._next_look = 0.0
        self._begun_s = 0.0  # when the engine's permission to order fills was last withdrawn [s]
        self.at_end = ExitStack()
        self._open_tiers = OpenTiers(config)
        self.tiers = self._open_tiers.tiers
        try:
            self._make_ready(session, plans, listener, scanned)
        except BaseException:
            self._open_tiers.end_unused()
            raise
        self._pacing = Pacing(
            self.filler,
            self.directory_prefetch,
            self.plan_manager,
            awaits_s=awaits_s,
            is_stopping=lambda: self._is_stopping,
        )
        # The scan's limit is set now, because the first iteration of the loop starts the scan.
        self._pacing.pace_scan()

    def _make_ready(
        self,
        session: SessionDir,
        plans: Sequence[tuple[Path, Loaded]],
        listener: socket.socket | None,
        scanned: Scanned | None,
    ) -> None:
        config = self.config
        room, needed = self._open_tiers.memory_room, bool(plans or self.cluster)
        self.tiers.append(open_staging(config, session, room, needed=needed))
        self.shared = Shared(session, config)
        self.shared.set_tiers(self.tiers)
        self._mark_open_for_writing()
        self.scanner = Scanner(config, self.shared, self._open_tiers, scanned)
        self.metadata = Metadata(config, self.shared, self.scanner)
        self.filler = Filler(self.scanner, self._membership(listener))
        self.plan_manager = PlanManager(plans, self.filler)
        self.ranks = Ranks(self.shared, self.filler.engine, is_on=config.balance_ranks)
        if self.filler.staging.tier is not None or plans:
            self.shared.follow_opens()
        self.directory_prefetch = DirectoryPrefetch(self.filler, is_on=config.prefetch == "auto")
        files = (SYSTEM_SWITCH_FILE, config.switch_file)
        self._switches = Switches([path for path in files if path is not None])
        self.at_end.callback(self._switches.close)
        # The session files whose removal ends the daemon. One of them is the lock: without the
        # lock's file, a second daemon could start.
        self._names: dict[Path, FileId | None] = {session.lock: id_of(session.lock)}
        self._lost_tiers: list[tuple[int, str]] = []
        self.at_end.callback(TierWatch(self.tiers, self._lose_tier).close)
        # The first call of np.unique imports modules. In the loop, there might be no free file
        # descriptor and no time for these imports.
        np.unique(NO_IDS)

    def add_source(self, source: SourceConfig) -> bool:
        """Adds a source, which shares the tiers' quotas with the other sources. Any thread except
        the loop's may call this method. Returns False if the daemon already serves the source or a
        directory above it. Raises SessionError if the source cannot be added."""
        with self._one_source:
            # These checks access file systems, which may be slow. So they run while the loop
            # continues.
            if self._has_source(source):
                return False
            self._check_place(source)
            self._mark_open_for_writing(source.real_path)
            with self.deciding():
                if len(self.config.sources) >= MAX_SOURCES:
                    why = f"the daemon serves {MAX_SOURCES} sources already, and can serve no more"
                    raise SessionError(f"{source.path}: {why}; stop it once no job needs it")
                self._take_in(source)
        # Programs may have opened more files of the source for writing between the call of
        # `_mark_open_for_writing` above and `_take_in`.
        self._mark_open_for_writing()
        log.info("source added: %s", source.path)
        return True

    def _has_source(self, source: SourceConfig) -> bool:
        return any(
            each.real_path == source.real_path or is_inside(source.real_path, each.real_path)
            for each in self.config.sources
        )

    def _check_place(self, source: SourceConfig) -> None:
        if self.cluster is not None:
            why = (
                "daemons of several nodes serve only the sources that they were started with; stop"
                " the daemons, and start them again with this source"
            )
            raise SessionError(f"{source.path} cannot be added: {why}")
        for each in self.config.sources:
            if is_inside(each.real_path, source.real_path):
                why = f"{each.path}, which the daemon serves already, is inside it"
                mend = "stop the daemon once no job needs it"
                raise SessionError(f"{source.path} cannot be added: {why}; {mend}")

    def _take_in(self, source: SourceConfig) -> None:
        number = len(self.config.sources)
        config = replace(self.config, sources=(*self.config.sources, source))
        try:
            self.shared.put_source(number, source)
            added = self.scanner.add(config)
        except OSError as error:
            raise SessionError(f"{source.path}: {error.strerror}") from error
        self.config = config
        self.filler.engine.add_source(added)
        self.shared.count_source(number, added.fd)

    def needs(self, path: Path) -> None:
        """Makes the daemon end when `path`, a file of the session, is unlinked or replaced."""
        self._names[path] = id_of(path)

    def _mark_open_for_writing(self, coming: Path | None = None) -> None:
        """Marks files on the sources' file systems as changed if a process of this user has them
        open for writing.

        coming : a new source; if given, only the file system of this source is examined
        """
        control = self.shared.control
        devices = {int(control.source[i].dev) for i in range(control.sources)}
        if coming is not None:
            with suppress(OSError):  # `_take_in` reports the error
                devices = {coming.stat().st_dev}
        for device, inode in writers(devices):
            lib.monarch_mark_changed(self.shared.clients, device, inode)

    def _membership(self, listener: socket.socket | None) -> Membership | None:
        if self.cluster is None or listener is None:
            return None
        return Membership(self.cluster, listener, lambda: json.dumps(self.status()).encode())

    # --- the loop ----------------------------------------------------------------------------

    def run(self) -> None:
        """Serves clients until `stop_soon` is called. Then closes all parts of the daemon."""
        self.shared.serve()
        rung = quiet = 0
        try:
            while not self._is_stopping:
                begun = time.monotonic()
                with self.deciding():
                    busy = self._turn()
                is_awaited = self._pacing.rest(time.monotonic() - begun, busy=busy)
                wait_ms = 0 if busy or is_awaited else self._pacing.pause_ms(quiet)
                last, rung = rung, self._pacing.wait(rung, wait_ms)
                quiet = quiet + 1 if rung == last else 0
        finally:
            self.close()

    @contextmanager
    def deciding(self) -> Iterator[None]:
        """Returns a context in which only the calling thread decides what is filled, published and
        dropped. Meanwhile, other threads wait for such a context, and the engine orders no fill on
        its own. If the daemon is ending, raises SessionError, because the daemon's parts are closed
        then."""
        with self._lock:
            if self.is_closed:
                raise SessionError("the daemon is ending")
            self._begin_turn()
            try:
                yield
            finally:
                self.filler.end_turn()

    def _turn(self) -> bool:
        """Runs every part of the daemon once, each of them briefly. Returns whether there is more
        to do immediately."""
        self.shared.beat()
        if self._is_lost():
            return False
        self.shared.control.off = self._switches.are_off()
        self._give_up_tiers()
        self.scanner.step()
        self.filler.checks.adopt_found()
        self._let_engine_order()
        wanted = np.concatenate([self.scanner.take_hints(), *self._meet_read()])
        self.filler.checks.adopt_found()
        # `wanted` contains files that were not in the catalog when programs opened them. They are
        # filled only if the configuration requests a fill for every opened file.
        if self.config.prefetch != "none" and not self.config.fill_after:
            self.filler.requests.want(wanted)
        self._take_opened(wanted)
        self.filler.requests.take_wants()
        self.filler.requests.take_demands()
        self._let_engine_order()
        # While a plan is active, it alone determines which files are filled in advance, and in
        # which order.
        more = not self.plan_manager.is_active and self._fill_ahead()
        self._pacing.pace_scan()
        self._let_engine_order()
        self.filler.copies.drop_changed()
        self.filler.copies.compare_young()
        self.filler.collect()
        self._let_engine_order()
        if not self.shared.control.off:
            more |= self.filler.feed()
        self.plan_manager.step()
        self.ranks.step(self.plan_manager.due_bytes)
        # The calls above may have dropped copies. Their removal is ordered at once, because readers
        # may wait for the room that they occupy.
        self.filler.copies.feed_drops()
        self.metadata.step()
        self.filler.answer()
        self.filler.await_results(follows_plan=self.plan_manager.is_active)
        self.filler.engine.adapt()
        if self._history.is_due(time.monotonic() - self.started):
            self._history.note(self._moment())
        return more or self.scanner.has_more

    def _moment(self) -> Moment:
        epochs = (plan["epoch"] for plan in self.plan_manager.told())
        return Moment(
            time.monotonic() - self.started,
            totals(self.filler),
            self.shared.opens_by_slot(),
            next((epoch for epoch in epochs if epoch is not None), None),
            self._open_tiers.memory_room.free_bytes(),
        )

    def _let_engine_order(self) -> None:
        """Between two parts of an iteration, briefly permits the engine to order fills. Does
        nothing if the last permission ended less than LET_S ago. Without this permission, a file
        that a program hands over would be filled only after the iteration. If more threads run than
        there are processors, an iteration takes long."""
        if time.monotonic() - self._begun_s > LET_S:
            self.filler.end_turn()
            self._begin_turn()

    def _begin_turn(self) -> None:
        self.filler.begin_turn()
        self._begun_s = time.monotonic()

    def _meet_read(self) -> Iterator[Ids]:
        """Adds files to the catalog that programs have handed over before the catalog contained
        them. Yields the new entries, one array for each source."""
        for source in self.scanner.sources if self.shared.control.handed_bytes else ():
            renames = int(self.shared.clients.renames)
            entries, pool = self.filler.engine.unmet(source.number, renames)
            if len(entries):
                yield self.scanner.meet_read(source, entries, pool, renames)

    def _take_opened(self, unmet: Ids) -> None:
        """Tells the daemon's parts which files programs have opened since the last iteration.

        unmet : files that were not in the catalog when programs opened them
        """
        opened = self.shared.take_opened()
        self.filler.staging.opened(opened)
        self.plan_manager.observe(opened)
        self.directory_prefetch.observe(opened, unmet)

    def _fill_ahead(self) -> bool:
        is_off = bool(self.shared.control.off)
        return self.filler.requests.fill_met() or (not is_off and self.directory_prefetch.step())

    def _is_lost(self) -> bool:
        """Returns whether files of the session were removed, for example by a job's epilogue, or by
        RemoveIPC at the user's logout. If so, ends the daemon. Otherwise new processes could not
        attach, and attached clients would not learn which files these processes change. Nobody
        could stop the daemon, and no other daemon could use its tiers."""
        if time.monotonic() < self._next_look:
            return False
        self._next_look = time.monotonic() + LOOK_S
        gone = (path for path, file in self._names.items() if id_of(path) != file)
        self.lost = self.shared.lost() or next(gone, None)
        if self.lost is not None:
            self.stop_soon()
        return self.lost is not None

    def _lose_tier(self, number: int, why: str) -> None:
        """Records that a tier is lost. `TierWatch` calls this in its own thread."""
        self._lost_tiers.append((number, why))
        self.wake()

    def _give_up_tiers(self) -> None:
        """Stops using the tiers that `TierWatch` has reported as lost, and drops their copies, so
        that the files can be filled into other tiers."""
        while self._lost_tiers:
            number, why = self._lost_tiers.pop()
            tier = self.tiers[number]
            assert tier is not None
            log.warning("%s", why)
            self.shared.hide_tier(number)
            tier.give_up(why)
            self.filler.copies.lose_tier(number)

    def stop_soon(self) -> None:
        """Ends the loop after the current iteration. A signal handler may call this method.

        The doorbell is not rung, because a signal interrupts the loop's sleep anyway. No lock is
        acquired, not even an Event's, because a second signal may arrive while the first one is
        handled.
        """
        self._is_stopping = True

    def stop_now(self) -> None:
        """Ends the loop from another thread. No signal interrupts the loop's sleep in this case, so
        this method also rings the doorbell."""
        self.stop_soon()
        self.wake()

    def wake(self) -> None:
        """Makes the loop start its next iteration at once, without a sleep."""
        with self._lock:
            if not self.is_closed:
                self.shared.ring()

    def status(self) -> dict[str, Any]:
        """Returns the answer to `status`. It is computed between two iterations."""
        with self.deciding():
            # The status must include what programs have opened since the last iteration, and the
            # copies that were published since then.
            self.filler.requests.take_wants()
            if self.filler.collect():
                self.shared.ring()
            self._take_opened(NO_IDS)
            told = {
                "plans": self.plan_manager.told(),
                "ranks": self.ranks.told(),
                "ahead": self.directory_prefetch.told(),
            }
            evicted = self.plan_manager.evictions.evicted
            return status(self.filler, told, self._open_tiers.why, evicted, self.started)

    def history(self) -> dict[str, Any]:
        """Returns the answer to `history`: the counters over time, up to now."""
        with self.deciding():
            return self._history.told(self._moment())

    def close(self) -> None:
        with self._lock:
            self.is_closed = True
            self.at_end.close()
            self.shared.close()
            self.plan_manager.close()
            self._open_tiers.close(are_used=self._end_threads() > 0)

    def _end_threads(self) -> int:
        """Ends the threads of the engine and the scan, and the thread that compares directories
        with the sources. Returns how many threads hang in a call to a source that does not answer.
        They exist until the process ends, so the memory and descriptors that they use are not
        freed."""
        until = time.monotonic() + END_LIMIT_S
        left = self.filler.close(END_LIMIT_S)
        self.metadata.close()
        left += self.scanner.close(until - time.monotonic())
        if left:
            log.warning("%d threads still wait for a source that does not answer", left)
        else:
            for source in self.scanner.sources:
                with suppress(OSError):
                    os.close(source.fd)
        return left
