"""The daemon's loop, and the socket on which commands reach it."""

import json
import logging
import os
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from monarch_py.config import SYSTEM_SWITCH_FILE, Config, TierConfig
from monarch_py.daemon.copies.copies import Ids
from monarch_py.daemon.copies.ranks import Ranks
from monarch_py.daemon.copies.staging import open_staging
from monarch_py.daemon.fill.filler import Filler
from monarch_py.daemon.fill.prefetch import DirectoryPrefetch
from monarch_py.daemon.fill.unused import NONE
from monarch_py.daemon.nodes.cluster_status import all_nodes
from monarch_py.daemon.nodes.placement import Membership
from monarch_py.daemon.openfiles import all_opened, open_files, writers
from monarch_py.daemon.plans.manager import PlanManager, load_plan
from monarch_py.daemon.plans.retry import version_of
from monarch_py.daemon.plans.tracker import Loaded
from monarch_py.daemon.scan.pace import ScanPace
from monarch_py.daemon.scan.revalidation import Metadata
from monarch_py.daemon.scan.scanner import Scanner
from monarch_py.daemon.segments import Shared
from monarch_py.daemon.status import SCHEMA_VERSION, status
from monarch_py.daemon.switches import Switches
from monarch_py.errors import MonarchError, SessionError, TierError
from monarch_py.ipc.session import FileId, SessionDir, id_of
from monarch_py.native import lib
from monarch_py.peers import Purpose
from monarch_py.peers.membership import Cluster
from monarch_py.scan import ALL_NAMES, END_LIMIT_S, Record
from monarch_py.storage.durability import Keeper
from monarch_py.storage.tiers import Tier, refuse_replaceable
from monarch_py.storage.watch import TierWatch
from monarch_py.util.processes import Identity

__all__ = ["Daemon"]

log = logging.getLogger("monarch.daemon")

# How long the loop sleeps when no client rings the doorbell [ms]. Switch files, recently changed
# files and the heartbeat are looked at this often.
TURN_MS = 250
# The same after QUIET_TURNS turns in which nobody rang. A turn after a sleep finds cold processor
# caches: four turns a second cost a fifth of what sending files to other nodes cost.
QUIET_TURN_MS = 1000
QUIET_TURNS = 8
# The same while anything is filled or checked [ms]: the number of reads in flight follows the rate
# of the sources, a reader that waits for a wanted file rings only the engine, and copies that the
# engine has published wait to be counted and recorded.
BUSY_TURN_MS = 50
# The same while programs open files of a plan, so that the loop sees what they open [ms].
FOLLOWING_TURN_MS = 10
# After a turn the loop rests for REST times the duration of the turn, but at most for MOST_REST_S,
# which readers still take for a sign of life. The limit is SHORT_REST_S while more is left to do or
# programs follow a plan. The rest ends after NAP_S when a reader waits for what the last turn could
# not do [s].
REST, MOST_REST_S, SHORT_REST_S, NAP_S = 9, 0.05, 0.01, 0.001
# Interval between checks that the session's files still have their names [s].
LOOK_S = 0.5
REQUEST_BYTES = 1 << 20
# Commands that the kernel queues for us: the ranks of a large job all send theirs at once. After a
# failed accept the thread pauses for ACCEPT_PAUSE_S [s].
BACKLOG = 1024
ACCEPT_PAUSE_S = 0.2
# Commands that leave the loop nothing to do.
ONLY_TELLING = ("status", "open", "where", "all", "cluster")


class Daemon:
    """The daemon of one session. The constructor makes it ready; `run` serves until `stop_soon`.

    ConfigError for a plan that cannot be followed; TierError when no tier can be used; OSError when
    shared memory is full.

    awaits_job : a program is about to begin
    lost : the file of the session whose removal has ended the daemon, None if it ended otherwise
    """

    def __init__(
        self,
        config: Config,
        session: SessionDir,
        cluster: Cluster | None = None,
        listener: socket.socket | None = None,
        scanned: tuple[Record, float] | None = None,
        *,
        awaits_job: bool = False,
    ) -> None:
        self.config, self.cluster = config, cluster
        nodes = len(cluster.members) if cluster else 1
        plans = [(file, load_plan(file, nodes)) for file in config.plans]
        self.started, self._version = time.monotonic(), version_of(config.file)
        self._lock = threading.Lock()
        self._is_stopping = False
        self._is_closed = False
        self.lost: Path | None = None
        self._next_look = 0.0
        self.tiers: list[Tier | None] = []
        self.keepers: dict[int, Keeper] = {}
        self._why: list[str] = []
        try:
            self._open_tiers(session)
            self._make_ready(session, plans, listener, scanned, awaits_job=awaits_job)
        except BaseException:
            self._end_keepers()
            raise

    def _make_ready(
        self,
        session: SessionDir,
        plans: Sequence[tuple[Path, Loaded]],
        listener: socket.socket | None,
        scanned: tuple[Record, float] | None,
        *,
        awaits_job: bool,
    ) -> None:
        config = self.config
        self.shared = Shared(session, config)
        self.shared.set_tiers(self.tiers)
        self._mark_open_for_writing()
        self.scanner = Scanner(config, self.shared, self.tiers, self.keepers, scanned)
        self.metadata = Metadata(config, self.shared, self.scanner)
        self.filler = Filler(self.scanner, self._membership(listener))
        self.plan_manager = PlanManager(plans, self.filler)
        self.ranks = Ranks(self.shared, self.filler.engine, is_on=config.balance_ranks)
        if self.filler.staging.tier is not None or plans:
            self.shared.follow_opens()
        self._scan_pace = ScanPace(time.monotonic(), awaits_job=awaits_job)
        self.directory_prefetch = DirectoryPrefetch(self.filler, is_on=config.prefetch == "auto")
        files = (SYSTEM_SWITCH_FILE, config.switch_file)
        self._switches = Switches([path for path in files if path is not None])
        self._socket = self._listen(session)
        # The daemon ends when one of these names is lost: without the lock's name a second daemon
        # would start, and without the socket's no command would reach this one.
        self._names: dict[Path, FileId | None] = {
            path: id_of(path) for path in (session.lock, session.socket)
        }
        self._lost_tiers: list[tuple[int, str]] = []
        self._watch = TierWatch(self.tiers, self._lose_tier)
        # The first call of np.unique imports modules. Later the loop may have no descriptor for
        # them, nor time.
        np.unique(NONE)

    def _open_tiers(self, session: SessionDir) -> None:
        for number, tier_config in enumerate(self.config.tiers):
            try:
                self.tiers.append(self._open_tier(number, tier_config))
                self._why.append("")
            except TierError as error:
                log.warning("%s", error)
                self.tiers.append(None)
                self._why.append(str(error))
        if not any(self.tiers):
            raise TierError("no tier can be used: " + "; ".join(self._why))
        needed = bool(self.config.plans or self.cluster)
        self.tiers.append(open_staging(self.config, session, needed=needed))

    def _open_tier(self, number: int, tier_config: TierConfig) -> Tier:
        refuse_replaceable(tier_config.mount_point)
        tier = Tier(tier_config, config_file=self.config.file)
        try:
            if tier_config.persistent:
                self.keepers[number] = Keeper(tier, self.config.block_size_bytes)
                self.keepers[number].reconcile()
            else:
                tier.remove_all(tier.listing())  # debris of a daemon that was killed
        except (OSError, TierError) as error:
            told = error if isinstance(error, TierError) else tier.broken(error)
            tier.give_up(str(told))  # so that its keeper writes nothing more
            if (keeper := self.keepers.pop(number, None)) is not None:
                keeper.end()
            tier.close()
            raise told from error
        return tier

    def _end_keepers(self) -> None:
        """Ends the keepers of a daemon that has served nothing: a clean tier stays clean, and one
        with copies still to check keeps them to check."""
        for keeper in self.keepers.values():
            if keeper.must_check:
                keeper.distrust()
            keeper.end()

    def _mark_open_for_writing(self) -> None:
        control = self.shared.control
        devices = {int(control.source[i].dev) for i in range(control.sources)}
        for device, inode in writers(devices):
            lib.monarch_mark_changed(self.shared.clients, device, inode)

    def _membership(self, listener: socket.socket | None) -> Membership | None:
        if self.cluster is None or listener is None:
            return None
        status = self._between_turns(lambda _: self._status())
        answers = {Purpose.STATUS: lambda: json.dumps(status({})).encode()}
        return Membership(self.cluster, listener, answers)

    # --- the loop ----------------------------------------------------------------------------

    def run(self) -> None:
        """Serves until `stop_soon`; then closes everything in order."""
        threading.Thread(target=self._answer_forever, name="control", daemon=True).start()
        self.shared.serve()
        rung = quiet = 0
        try:
            while not self._is_stopping:
                begun = time.monotonic()
                with self._deciding():
                    busy = self._turn()
                is_awaited = self._rest(time.monotonic() - begun, busy=busy)
                wait_ms = 0 if busy or is_awaited else self._pause_ms(quiet)
                last, rung = rung, self.shared.wait(rung, wait_ms)
                quiet = quiet + 1 if rung == last else 0
        finally:
            self._close()

    @contextmanager
    def _deciding(self) -> Iterator[None]:
        """Lets one thread at a time decide what becomes of files; the engine decides nothing
        meanwhile. SessionError when the daemon is ending: what the caller wants to look at is gone.
        """
        with self._lock:
            if self._is_closed:
                raise SessionError("the daemon is ending")
            self.filler.begin_turn()
            try:
                yield
            finally:
                self.filler.end_turn()

    def _rest(self, took_s: float, *, busy: bool) -> bool:
        """Leaves the processors to programs between two turns. Clients find the loop awake
        meanwhile, and need not ring. Returns whether a reader waits for the next turn, which ends
        the rest.

        took_s : duration of the last turn [s];  busy : the last turn has left more to do
        """
        most_s = SHORT_REST_S if busy or self.plan_manager.is_awake else MOST_REST_S
        rest_s = min(REST * took_s, most_s)
        time.sleep(min(rest_s, NAP_S))
        return self.filler.engine.rest(max(0.0, rest_s - NAP_S))

    def _pause_ms(self, quiet: int) -> int:
        """How long the loop may sleep before its next turn [ms].

        quiet : turns since somebody last rang
        """
        if self.plan_manager.is_awake:
            return FOLLOWING_TURN_MS
        if self.directory_prefetch.is_awake or not self.filler.engine.idle:
            return BUSY_TURN_MS
        if quiet < QUIET_TURNS or self.plan_manager.is_active:
            return TURN_MS
        return QUIET_TURN_MS

    def _turn(self) -> bool:
        """Does everything once, and nothing for long. Returns whether there is more to do at
        once."""
        self.shared.beat()
        if self._is_lost():
            return False
        self.shared.control.off = self._switches.are_off()
        self._give_up_tiers()
        for ids, rows, tier in self.scanner.step():
            self.filler.adopt(ids, rows, tier)
        self._let_engine_order()
        wanted, adopted = self.scanner.take_hints()
        for ids, rows, tier in adopted:
            self.filler.adopt(ids, rows, tier)
        wanted = np.concatenate([wanted, self._meet_read()])
        # These files are wanted too, but only where the configuration takes an open for reason
        # enough to fill a file.
        if self.config.prefetch != "none" and not self.config.fill_after:
            self.filler.requests.want(wanted)
        self._take_opened(wanted)
        self.filler.requests.take_wants()
        self.filler.requests.take_demands()
        self._let_engine_order()
        # A plan has its own order: while one is active, nothing else is filled ahead.
        more = not self.plan_manager.is_active and self._fill_ahead()
        self._pace_scan()
        self._let_engine_order()
        self.filler.copies.drop_changed()
        self.filler.copies.compare_young()
        self.filler.collect()
        self._let_engine_order()
        if not self.shared.control.off:
            more |= self.filler.feed()
        self.plan_manager.step()
        self.ranks.step(self.plan_manager.due_bytes)
        self.filler.copies.feed_drops()  # at once: readers may wait for the room
        self.metadata.step()
        self.filler.answer()
        self.filler.await_results(follows_plan=self.plan_manager.is_active)
        self.filler.engine.adapt()
        return more or self.scanner.has_more

    def _pace_scan(self) -> None:
        """Keeps the scan behind the job, unless a plan or a command needs all that it finds."""
        ahead, opens = self.directory_prefetch, self.shared.source_opens()[0]
        allowed = self._scan_pace.step(
            time.monotonic(),
            opens=opens,
            filled=ahead.ordered - ahead.waiting,
            waiting=ahead.waiting,
            found=self.scanner.found,
        )
        is_urgent = self.scanner.is_in_a_hurry or self.plan_manager.is_active or not ahead.is_on
        self.scanner.allow(*(ALL_NAMES if is_urgent else allowed))

    def _let_engine_order(self) -> None:
        """Lets the engine order fills between two parts of a turn. Descriptors that programs hand
        over then need not wait for the end of the turn, which may be late where threads want more
        processors than there are."""
        self.filler.end_turn()
        self.filler.begin_turn()

    def _meet_read(self) -> Ids:
        """Takes files into the catalog that it did not know when programs handed them over; returns
        their entries."""
        met = [np.empty(0, dtype=np.uint64)]
        for source in self.scanner.sources if self.filler.handovers.most_bytes else ():
            entries, pool = self.filler.engine.unmet(source.number)
            if len(entries):
                ids, adopted = self.scanner.meet_read(source, entries, pool)
                met.append(ids)
                for copies, rows, tier in adopted:
                    self.filler.adopt(copies, rows, tier)
        return np.concatenate(met)

    def _take_opened(self, unmet: Ids) -> None:
        """Takes in the files that programs have opened since the last turn.

        unmet : files that programs had opened before the catalog knew them
        """
        opened = self.shared.take_opened()
        self.filler.staging.opened(opened)
        self.plan_manager.observe(opened)
        self.directory_prefetch.observe(opened, unmet)

    def _fill_ahead(self) -> bool:
        is_off = bool(self.shared.control.off)
        return self.filler.requests.fill_met() or (not is_off and self.directory_prefetch.step())

    def _is_lost(self) -> bool:
        """Ends a daemon whose session was removed (`rm -rf` of shared memory in a job's epilogue,
        RemoveIPC at the user's logout). Otherwise its clients would miss the changes of processes
        that can no longer attach, and the daemon could be neither stopped nor replaced while it
        holds its tiers."""
        if time.monotonic() < self._next_look:
            return False
        self._next_look = time.monotonic() + LOOK_S
        gone = (path for path, file in self._names.items() if id_of(path) != file)
        self.lost = self.shared.lost() or next(gone, None)
        if self.lost is not None:
            self.stop_soon()
        return self.lost is not None

    def _lose_tier(self, number: int, why: str) -> None:
        """Called in the watch's thread."""
        self._lost_tiers.append((number, why))
        self._wake()

    def _give_up_tiers(self) -> None:
        """Gives up lost tiers: drops their copies, whose files may then be filled into other
        tiers."""
        while self._lost_tiers:
            number, why = self._lost_tiers.pop()
            tier = self.tiers[number]
            assert tier is not None
            log.warning("%s", why)
            self.shared.hide_tier(number)
            tier.give_up(why)
            self.filler.copies.lose_tier(number)

    def stop_soon(self) -> None:
        """Ends the loop after the current turn. Safe in a signal handler: the signal itself ends
        the loop's sleep.

        Takes no lock, as an Event would: a second signal may come while the first is handled.
        """
        self._is_stopping = True

    def stop_now(self) -> None:
        """As `stop_soon`, from another thread: no signal ends the loop's sleep, so the doorbell
        does."""
        self.stop_soon()
        self._wake()

    def _wake(self) -> None:
        with self._lock:
            if not self._is_closed:
                self.shared.ring()

    def _close(self) -> None:
        with self._lock:
            self._is_closed = True
            self._watch.close()
            self._switches.close()
            self._socket.close()
            self.shared.close()
            self.plan_manager.close()
            left = self._end_threads()
            for keeper in self.keepers.values():
                keeper.end()
            for tier in self.tiers:
                if tier is None:
                    continue
                if tier.config.persistent:
                    tier.close(is_used=left > 0)
                else:
                    tier.discard(is_used=left > 0)

    def _end_threads(self) -> int:
        """Ends the threads of the engine, the comparison and the scan. Returns how many are left,
        in calls to a source that does not answer. These end with the process; until then what they
        use stays open and mapped."""
        until = time.monotonic() + END_LIMIT_S
        left = self.filler.close(END_LIMIT_S)
        self.metadata.close()
        left += self.scanner.close(until - time.monotonic())
        if left:
            log.warning("%d threads are left: they wait for a source that does not answer", left)
        else:
            for source in self.scanner.sources:
                with suppress(OSError):
                    os.close(source.fd)
        return left

    # --- commands ----------------------------------------------------------------------------

    @staticmethod
    def _listen(session: SessionDir) -> socket.socket:
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        session.bind(listener, session.socket)
        listener.listen(BACKLOG)
        return listener

    def _answer_forever(self) -> None:
        is_said = False
        while not self._is_closed:
            try:
                self._take_in(self._socket.accept()[0])
                is_said = False
            except (OSError, RuntimeError) as error:  # no descriptor, no thread, or the end
                if not (is_said or self._is_closed):
                    log.warning("a command is not taken in just now: %s", error)
                is_said = True
                time.sleep(ACCEPT_PAUSE_S)

    def _take_in(self, connection: socket.socket) -> None:
        """Attends to a command in a thread of its own: one that takes long (`look`, `all`) delays
        no other."""
        try:
            threading.Thread(target=self._attend, args=(connection,), daemon=True).start()
        except RuntimeError:
            connection.close()
            raise

    def _attend(self, connection: socket.socket) -> None:
        with connection:
            try:
                self._answer(connection)
            except OSError as error:
                log.info("a command was not answered: %s", error)
            except Exception:
                # One bad request must not leave the daemon deaf; the log keeps the traceback.
                log.exception("a command was not answered")

    def _answer(self, connection: socket.socket) -> None:
        connection.settimeout(5)
        credentials = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12)
        _, uid, _ = struct.unpack("3i", credentials)
        if uid not in (os.geteuid(), 0):
            return
        line = connection.makefile("rb").readline(REQUEST_BYTES)
        if not line.endswith(b"\n"):
            return  # the client has ended in the middle of its request
        request = json.loads(line)
        action = self._actions().get(request.get("do"))
        if action is None:
            answer: Any = {"error": f"the daemon does not know the command {request.get('do')!r}"}
        else:
            try:
                answer = action(request)
            except MonarchError as error:
                answer = {"error": str(error)}
        connection.sendall(json.dumps(answer).encode() + b"\n")
        if request.get("do") == "stop":
            self.stop_soon()
        if request.get("do") not in ONLY_TELLING:
            self._wake()

    def _actions(self) -> dict[str, Callable[[dict[str, Any]], Any]]:
        actions: dict[str, Callable[[dict[str, Any]], Any]] = {
            "status": lambda _: self._status(),
            "stop": lambda _: self._identity(),
            "clear": lambda _: self._clear(),
            "drop": self._drop,
            "job": lambda _: self._new_job(),
            "where": lambda _: self._where(),
            "cluster": lambda _: self._cluster(),
            "warm": self._warm,
            "scan": self._scan,
            "take_back": self._take_back,
        }
        held = {name: self._between_turns(action) for name, action in actions.items()}
        held |= {
            "look": self._look,
            "compare": self._compare,
            "all": lambda r: self._all(held["status"](r)),
        }
        return {**held, "open": lambda _: self._open_files()}

    def _between_turns(
        self, action: Callable[[dict[str, Any]], Any]
    ) -> Callable[[dict[str, Any]], Any]:
        def held(request: dict[str, Any]) -> Any:
            with self._deciding():
                return action(request)

        return held

    def _all(self, own: dict[str, Any]) -> dict[str, Any]:
        """The status of all nodes. The loop goes on while they are asked."""
        return {"schema": SCHEMA_VERSION, "nodes": all_nodes(self.cluster, own)}

    def _open_files(self) -> dict[str, Any]:
        """The files that programs have open. The loop goes on while processes are looked at, even
        if the file system of one hangs."""
        opened, staging = all_opened(), self.filler.staging.number
        tell = self._between_turns(lambda _: {"open": open_files(self.shared, staging, opened)})
        answer: dict[str, Any] = tell({})
        return answer

    @staticmethod
    def _identity() -> dict[str, int]:
        return asdict(Identity.of(os.getpid()))

    def _new_job(self) -> dict[str, Any]:
        self.plan_manager.new_job()
        return {}

    def _where(self) -> dict[str, Any]:
        return {
            **self._identity(),
            "cluster": "" if self.cluster is None else self.cluster.name,
            "generation": int(self.shared.control.generation),
            "scanned": self.scanner.scanned,
            "scan": self.config.scan,
            "is_current": version_of(self.config.file) in (None, self._version),
            "switched_off": bool(self.shared.control.off),
        }

    def _cluster(self) -> dict[str, Any]:
        """The cluster, with its secret: whoever asks is this user, or root, who could read it in
        our memory."""
        if self.cluster is None:
            raise SessionError("this daemon serves alone")
        return self.cluster.told()

    def _scan(self, request: dict[str, Any]) -> dict[str, Any]:
        """Has directories, named as (number of the source, path), listed with all below them."""
        for number, path in request["directories"]:
            self.scanner.ask_for(int(number), str(path), is_deep=True, is_read=False)
        self.scanner.hurry()
        return {"scanned": self.scanner.scanned}

    def _warm(self, request: dict[str, Any]) -> dict[str, Any]:
        entries = np.array(request["entries"], dtype=np.uint64)
        entries = entries[entries < len(self.shared.catalog)]
        return {"files": self.filler.requests.warm(entries, str(request["ticket"]))}

    def _take_back(self, request: dict[str, Any]) -> dict[str, Any]:
        files = self.filler.take_back(str(request["ticket"]))
        self.directory_prefetch.look_again()
        return {"files": files}

    def _clear(self) -> dict[str, Any]:
        self.directory_prefetch.clear()
        return {"dropped": self.filler.clear()}

    def _look(self, request: dict[str, Any]) -> dict[str, Any]:
        """Takes files into the catalog that the scan has not met. The loop goes on while the source
        is asked."""
        paths = [(int(number), str(path)) for number, path in request["paths"]]
        met = [self.scanner.look(number, path) for number, path in paths]
        with self._deciding():
            for (number, path), seen in zip(paths, met, strict=True):
                if seen is not None and self.scanner.find(number, path) < 0:
                    for ids, rows, tier in self.scanner.meet(seen)[1]:
                        self.filler.adopt(ids, rows, tier)
            return {"entries": [self.scanner.find(number, path) for number, path in paths]}

    def _compare(self, request: dict[str, Any]) -> dict[str, Any]:
        """Compares files that have copies, and directories, with the source: as many of them, from
        the first on, as can be compared in a second. The loop goes on while the source is asked."""
        outdated = self.filler.outdated
        with self._lock:
            catalog = self.shared.catalog.reader()
        entries = np.array(request["entries"], dtype=np.uint64)
        compared = outdated.look(catalog, entries[entries < len(catalog)])
        drop = self._between_turns(lambda _: outdated.drop(compared))
        files, directories = drop({})
        return {
            "compared": len(compared.ids),
            "outdated": files.tolist(),
            "directories": directories.tolist(),
        }

    def _drop(self, request: dict[str, Any]) -> dict[str, Any]:
        entries = [int(entry) for entry in request.get("entries", [])]
        self.filler.copies.drop_damaged(entries)
        return {"dropped": len(entries)}

    def _status(self) -> dict[str, Any]:
        self.filler.requests.take_wants()  # what programs asked for since the last turn is pending
        if self.filler.collect():  # every copy that serves is counted
            self.shared.ring()
        self._take_opened(NONE)
        tiers = [
            (str(c.mount_point), c.quota_bytes, tier, why)
            for c, tier, why in zip(self.config.tiers, self.tiers, self._why, strict=False)
        ]
        told = {
            "plans": self.plan_manager.told(),
            "ranks": self.ranks.told(),
            "ahead": self.directory_prefetch.told(),
        }
        return status(self.filler, told, tiers, self.plan_manager.evictions.evicted, self.started)
