"""Kills and stops daemons, peers and readers at random, and checks what must hold.

No byte may ever be wrong, and no call may fail or take long. After a daemon was killed, the next
daemon must remove everything that the killed daemon has left behind.
"""

from __future__ import annotations

import random
import signal
import time
from collections import Counter
from collections.abc import Callable
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from pathlib import Path
from sqlite3 import OperationalError

import psutil
from support.forking import Process
from support.nodes import Node
from support.session import Session, wait_until
from support.signals import handles_sigterm
from trials.leftovers import (
    copies,
    files_of,
    half_closed,
    is_of,
    left,
    mounts_below,
    processes_with,
    recorded,
)
from trials.reading import Reading
from trials.sites import SIZES, Site

from monarch_py.errors import SessionError

READERS = 2
# The pause of a reader after each operation [us]. The pause leaves processor time to daemons that
# start.
PAUSE_US = 2000
# The time limit [s] for the end of a process, long enough for a busy machine.
END_LIMIT_S = 60.0
# Each daemon keeps up to this many unused connections to every other node. If the other end closes
# a connection, the daemon notices this only when it uses the connection again (csrc/peers/peer.c).
IDLE_LINKS = 16
# Calls during which a reader is killed. In `count_wrong`, the reader reads the bytes of a mapping.
CALLS = ("open", "read", "pread", "mmap", "count_wrong", "fopen", "fread", "close", "fork")


@dataclass
class Tally:
    """Counts of what a trial has done, and the longest times that it has measured.

    kills : number of killed processes by kind. "daemon" is a daemon on a node without peers, "peer"
        a daemon on a node with peers, and "reader" a reader
    met : number of readers that were killed during a call, by name of the call
    starts : number of daemons that, after their start, removed or took over everything that earlier
        daemons had left behind
    hits, served_bytes : number of reads from copies, and number of bytes sent to other nodes. The
        daemons' numbers are added before each intervention. So the numbers of a daemon that
        survives an intervention are added several times
    """

    interventions: Counter[str] = field(default_factory=Counter)
    kills: Counter[str] = field(default_factory=Counter)
    met: Counter[str] = field(default_factory=Counter)
    starts: int = 0
    hits: int = 0
    served_bytes: int = 0
    operations: int = 0
    longest_call_s: float = 0.0
    longest_start_s: float = 0.0


class Trial:
    """A trial and its readers. Except during an intervention, a node has at most one daemon.

    `draws` makes all random choices. `node` is the node whose daemon the next intervention affects.
    """

    def __init__(
        self, site: Site, reader: Path, seed: int, stack: ExitStack, pause_us: int
    ) -> None:
        self.site, self.draws, self.tally = site, random.Random(seed), Tally()
        self._reader, self._seed, self._stack, self._pause_us = reader, seed, stack, pause_us
        self.node = site.nodes[0]
        self.made = {node: left(node) for node in site.nodes}
        # For each node whose daemon was started but has not answered yet: the time of the start,
        # and the copies that were on the node before the start.
        self._starting: dict[Session, tuple[float, set[Path]]] = {}
        self._started = 0
        self._readers = [self._start_reader(self._home(number)) for number in range(READERS)]

    def _home(self, number: int) -> Session:
        return self.site.nodes[number % len(self.site.nodes)]

    # --- readers --------------------------------------------------------------------------------

    def _start_reader(self, node: Session) -> Reading:
        state, seed = self.site.directory / f"state{self._started:05}", self._seed * 10_000
        words = (self._reader, node, node.source, SIZES, state)
        self._started += 1
        reading = Reading(*words, seed=seed + self._started, pause_us=self._pause_us)
        return self._stack.enter_context(reading)

    def operations(self) -> int:
        """Returns the number of operations of all readers. Fails if a reader has ended or has found
        something wrong."""
        return sum(reader.check() for reader in self._readers)

    def wait_operations(self, most: int) -> None:
        """Draws a random number below `most`, and waits until the readers have made this number of
        further operations."""
        wanted = self.operations() + self.draws.randrange(most)
        wait_until(lambda: self.operations() >= wanted, timeout=60, what="the readers' progress")

    def renew_a_reader(self) -> None:
        """Replaces the oldest reader by a new one, which has not been a client of any daemon."""
        oldest = self._readers.pop(0)
        oldest.end()
        self._note(oldest)
        self._readers.append(self._start_reader(oldest.session))

    def wait_reader_in(self, call: str) -> Reading:
        """Waits until a reader is in a call of this name, and returns the reader. When this method
        returns, the reader may have left the call."""

        def found() -> Reading | None:
            self.operations()
            return next((reader for reader in self._readers if call in reader.calls()), None)

        return wait_until(found, timeout=60, what=f"a reader in {call}", every=0)

    def kill_reader(self, reader: Reading) -> None:
        """Kills a reader with SIGKILL and starts another one in its place."""
        reader.process.kill()
        reader.process.wait(END_LIMIT_S)
        self.tally.met.update(list(reader.calls()) or ["none"])
        self.tally.kills["reader"] += 1
        self._note(reader)
        wait_until(
            lambda: not processes_with(str(reader.state)), what="the end of the reader's children"
        )
        self._readers.remove(reader)
        self._readers.append(self._start_reader(reader.session))

    def _note(self, reader: Reading) -> None:
        self.tally.operations += reader.check_words()
        self.tally.longest_call_s = max(self.tally.longest_call_s, reader.longest_s())

    def end_readers(self) -> None:
        for reader in self._readers:
            reader.wait_laps()
            reader.end()
            self._note(reader)

    # --- daemons --------------------------------------------------------------------------------

    @property
    def daemon(self) -> Process:
        assert self.node.daemon is not None
        return self.node.daemon

    def have_daemons(self) -> None:
        """Starts missing daemons. Then, with a probability of 0.6, waits until all daemons answer.
        After one in five of these waits, makes the daemon of `node` drop its copies."""
        for node in self.site.nodes:
            if node.daemon is None:
                self.note_start(node)
                node.start(wait=False)
            if isinstance(node, Node):
                # The daemon has its own descriptor of this socket. If this process kept one too,
                # peers could still connect after the daemon's end.
                node.listener.close()
        if self.draws.random() < 0.6:
            self.wait_up()
            if self.draws.random() < 0.2:
                self.node.forget()

    def note_start(self, node: Session) -> None:
        self._starting[node] = time.monotonic(), copies(node)

    def wait_up(self) -> None:
        """Waits until all daemons answer, and nothing is left of earlier daemons."""
        for node, (began_s, lying) in self._starting.items():
            node.wait_up()
            took_s = time.monotonic() - began_s
            self.tally.longest_start_s = max(self.tally.longest_start_s, took_s)
            try:
                wait_until(
                    lambda node=node, lying=lying: not self._left_over(node, lying),  # type: ignore[misc]
                    what="the removal of everything that earlier daemons left",
                )
            except AssertionError as error:
                raise AssertionError(f"{error}: {self._left_over(node, lying)}") from None
            self.tally.starts += 1
        self._starting.clear()

    def _left_over(self, node: Session, lying: set[Path]) -> list[str]:
        """Returns what earlier daemons of the node have left behind, except what the present daemon
        has removed or taken over.

        lying : copies that were on the node before the present daemon started
        """
        assert node.daemon is not None
        others = [pid for pid in processes_with(str(node.config)) if not is_of(pid, node.daemon)]
        try:
            nobodys = (copies(node) & lying) - recorded(node)
        except OperationalError:
            return ["a manifest that is locked for a moment"]
        names = set(left(node)) ^ set(self.made[node])
        return [*map(str, others), *map(str, nobodys), *names]

    def count_hits(self) -> None:
        """Asks all daemons for their counts of hits and of bytes sent to other nodes. Adds to the
        tally the counts of the daemons that answer."""
        for node in self.site.nodes:
            with suppress(SessionError):
                self.tally.hits += node.totals()["hits"]
                if isinstance(node, Node):
                    self.tally.served_bytes += node.nodes()["served_bytes"]

    def ended(self, *statuses: int) -> None:
        status = self.daemon.wait(END_LIMIT_S)
        self.node.daemon = None
        assert status in statuses

    def send(self, number: signal.Signals) -> None:
        self.daemon.send_signal(number)

    def stand_still(self) -> None:
        self.send(signal.SIGSTOP)
        process = psutil.Process(self.daemon.pid)
        wait_until(
            lambda: process.status() == psutil.STATUS_STOPPED, what="the stop of the process"
        )
        self.wait_operations(300)


# --- interventions ------------------------------------------------------------------------------

Intervention = Callable[[Trial], None]


def kill(trial: Trial) -> None:
    trial.send(signal.SIGKILL)
    trial.ended(-signal.SIGKILL)
    trial.tally.kills[trial.site.kind] += 1


def stop_and_kill(trial: Trial) -> None:
    trial.stand_still()
    kill(trial)


def stop_and_continue(trial: Trial) -> None:
    trial.stand_still()
    trial.send(signal.SIGCONT)


def terminate(trial: Trial) -> None:
    """Sends SIGTERM to the daemon. The daemon shuts down. If it does not handle the signal yet, the
    signal kills it."""
    trial.send(signal.SIGTERM)
    trial.ended(0, -signal.SIGTERM)


def interrupt(trial: Trial) -> None:
    """Sends SIGINT to the daemon, which shuts down. The function first waits until the daemon
    handles signals. A SIGINT before that would end Python with a traceback."""
    wait_until(lambda: handles_sigterm(trial.daemon.pid), what="the daemon's beginning")
    trial.send(signal.SIGINT)
    trial.ended(0)


def start_two(trial: Trial) -> None:
    """Starts two daemons at the same time. One of them serves. The other reports that a daemon
    already serves, and ends."""
    kill(trial)
    trial.note_start(trial.node)
    rivals = [trial.node.spawn() for _ in range(2)]
    try:
        wait_until(
            lambda: any(rival.poll() is not None for rival in rivals),
            what="the end of one of the two daemons",
        )
        assert sorted(str(rival.poll()) for rival in rivals) == ["3", "None"]
    except BaseException:
        for rival in rivals:
            rival.kill()
            rival.wait()
        raise
    trial.node.daemon = next(rival for rival in rivals if rival.poll() is None)


def kill_readers(trial: Trial) -> None:
    """Kills readers one after the other, each in the middle of a call. Some of these readers have
    only just been started."""
    for _ in range(trial.draws.randrange(1, 10)):
        trial.kill_reader(trial.wait_reader_in(trial.draws.choice(CALLS)))


def kill_readers_of_nothing(trial: Trial) -> None:
    """Kills readers while there are no copies. Without copies, readers claim files, read them at
    the source, and hand their descriptors over."""
    trial.wait_up()
    for node in trial.site.nodes:
        node.forget()
    kill_readers(trial)


def kill_both(trial: Trial) -> None:
    """Kills a reader and a daemon, one right after the other, in random order."""
    reader = trial.wait_reader_in(trial.draws.choice(CALLS))
    for end in trial.draws.sample([reader.process.kill, trial.daemon.kill], 2):
        end()
    trial.kill_reader(reader)
    kill(trial)


# The relative frequency of each intervention. ALONE is for a node without peers, SHARED for nodes
# that fill from each other.
ALONE: dict[Intervention, int] = {
    kill: 4,
    stop_and_kill: 1,
    stop_and_continue: 2,
    terminate: 2,
    interrupt: 1,
    start_two: 1,
    kill_readers: 5,
    kill_readers_of_nothing: 3,
    kill_both: 1,
}
SHARED: dict[Intervention, int] = {
    kill: 4,
    stop_and_kill: 1,
    stop_and_continue: 1,
    terminate: 1,
    kill_readers: 1,
    kill_readers_of_nothing: 1,
    kill_both: 1,
}
WEIGHTS = {"daemon": ALONE, "peer": SHARED}


def drawn(draws: random.Random, weights: dict[Intervention, int], count: int) -> list[Intervention]:
    """Returns `count` interventions in random order.

    weights : the relative frequency of each intervention. If `count` is large enough, each
        intervention occurs at least once
    """
    again = [what for what, times in weights.items() for _ in range(1, times)]
    once = [*weights, *again]
    chosen = (once * (count // len(once) + 1))[:count]
    draws.shuffle(chosen)
    return chosen


# --- the trial ----------------------------------------------------------------------------------


def run(site: Site, reader: Path, seed: int, count: int, pause_us: int = PAUSE_US) -> Tally:
    """Makes `count` interventions. Then ends the daemons, and checks that nothing is left of
    them."""
    mounted = mounts_below(site.directory)
    with ExitStack() as stack:
        trial = Trial(site, reader, seed, stack, pause_us)
        for number, intervene in enumerate(drawn(trial.draws, WEIGHTS[site.kind], count)):
            trial.node = trial.draws.choice(site.nodes)
            trial.have_daemons()
            trial.wait_operations(trial.draws.choice((10, 100, 600)))
            trial.count_hits()
            print(f"{number}: {intervene.__name__} after {trial.tally.hits} hits")
            intervene(trial)
            trial.tally.interventions[intervene.__name__] += 1
            if trial.draws.random() < 0.3:
                trial.renew_a_reader()
        trial.have_daemons()
        trial.wait_up()
        wait_until(
            lambda: any(node.totals()["hits"] for node in site.nodes),
            what="hits of the last daemons",
        )
        trial.end_readers()
    # The number of hits shows that most daemons had time to serve reads before the next
    # intervention.
    assert trial.tally.hits > 5 * count
    assert trial.tally.served_bytes or len(site.nodes) == 1
    look_at_ends(site, trial)
    assert mounts_below(site.directory) == mounted
    return trial.tally


def look_at_ends(site: Site, trial: Trial) -> None:
    """Checks what the daemons leave behind.

    A daemon that is idle has no files of the source open. A daemon that has ended leaves only the
    copies that its manifests record."""
    for node in site.nodes:
        node.wait_idle()
        assert node.daemon is not None
        wait_until(
            lambda daemon=node.daemon: not files_of(daemon, site.source),  # type: ignore[misc]
            what="the close of all descriptors that were handed over",
        )
        assert len(half_closed(node.daemon)) <= IDLE_LINKS * (len(site.nodes) - 1)
        assert left(node) == trial.made[node]
    for node in site.nodes:
        node.stop()
        assert copies(node) == recorded(node)
        assert not processes_with(str(node.config))
