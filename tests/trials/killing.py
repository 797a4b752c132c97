"""Processes that serve or read are killed and stopped at random, and what must hold meanwhile: no
byte is wrong, no call fails or takes long, and the next start leaves nothing of a killed daemon."""

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
# Of a reader, after each operation. While daemons start, it goes on all the same.
PAUSE_US = 2000
# A busy machine's [s].
END_LIMIT_S = 60.0
# So many links to each other node wait for their next use, which is when it is seen that the other
# end is gone (csrc/peers/peer.c).
IDLE_LINKS = 16
# Calls in which a reader is killed; `count_wrong` looks at a mapping's bytes.
CALLS = ("open", "read", "pread", "mmap", "count_wrong", "fopen", "fread", "close", "fork")


@dataclass
class Tally:
    """What a trial has done, and the longest that it has seen.

    kills : by kind: daemon (of a node that is alone), peer, reader
    met : calls that killed readers were in
    starts : of a daemon after which nothing of the one before was left over
    hits, served_bytes : what programs and other nodes got from copies, some of it counted twice: a
    daemon may meet more than one intervention
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
    """Readers, and at most one daemon for each node; each intervention leaves it so.

    `draws` decides everything that is left open; `node` is whose daemon is intervened with.
    """

    def __init__(
        self, site: Site, reader: Path, seed: int, stack: ExitStack, pause_us: int
    ) -> None:
        self.site, self.draws, self.tally = site, random.Random(seed), Tally()
        self._reader, self._seed, self._stack, self._pause_us = reader, seed, stack, pause_us
        self.node = site.nodes[0]
        self.made = {node: left(node) for node in site.nodes}
        # Of nodes whose daemon has been started and was not seen up yet: since when, and the copies
        # that lay there before.
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
        """Of the readers that there are, all of whom are well."""
        return sum(reader.check() for reader in self._readers)

    def wait_operations(self, most: int) -> None:
        """Until the readers have made some more, any number below `most`."""
        wanted = self.operations() + self.draws.randrange(most)
        wait_until(lambda: self.operations() >= wanted, timeout=60, what="the readers' progress")

    def renew_a_reader(self) -> None:
        """One that knew no daemon before takes the place of the oldest."""
        oldest = self._readers.pop(0)
        oldest.end()
        self._note(oldest)
        self._readers.append(self._start_reader(oldest.session))

    def wait_reader_in(self, call: str) -> Reading:
        """One that is in this call: it may have left it when we know."""

        def found() -> Reading | None:
            self.operations()
            return next((reader for reader in self._readers if call in reader.calls()), None)

        return wait_until(found, timeout=60, what=f"a reader in {call}", every=0)

    def kill_reader(self, reader: Reading) -> None:
        """kill -9; another one takes its place."""
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
        """Each just starting, or all at work; sometimes one has to fill anew."""
        for node in self.site.nodes:
            if node.daemon is None:
                self.note_start(node)
                node.start(wait=False)
            if isinstance(node, Node):
                node.listener.close()  # else nobody is told that the daemon is gone
        if self.draws.random() < 0.6:
            self.wait_up()
            if self.draws.random() < 0.2:
                self.node.forget()

    def note_start(self, node: Session) -> None:
        self._starting[node] = time.monotonic(), copies(node)

    def wait_up(self) -> None:
        """Until all daemons answer, and nothing is left of those before them."""
        for node, (began_s, lying) in self._starting.items():
            node.wait_up()
            took_s = time.monotonic() - began_s
            self.tally.longest_start_s = max(self.tally.longest_start_s, took_s)
            try:
                wait_until(
                    lambda node=node, lying=lying: not self._left_over(node, lying),  # type: ignore[misc]
                    what="a start that leaves nothing over",
                )
            except AssertionError as error:
                raise AssertionError(f"{error}: {self._left_over(node, lying)}") from None
            self.tally.starts += 1
        self._starting.clear()

    def _left_over(self, node: Session, lying: set[Path]) -> list[str]:
        """Of what daemons before this one have left, what it neither removed nor took over.

        lying : copies that were there before it
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
        """Of the daemons that have come so far that they answer."""
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
        wait_until(lambda: process.status() == psutil.STATUS_STOPPED, what="the standstill")
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
    """In order; or before the daemon has begun, when nobody handles the signal yet."""
    trial.send(signal.SIGTERM)
    trial.ended(0, -signal.SIGTERM)


def interrupt(trial: Trial) -> None:
    """In order; while Python itself starts, it would end with a traceback of Python's own."""
    wait_until(lambda: handles_sigterm(trial.daemon.pid), what="the daemon's beginning")
    trial.send(signal.SIGINT)
    trial.ended(0)


def start_two(trial: Trial) -> None:
    """One serves, and it does not matter which; the other says so and ends."""
    kill(trial)
    trial.note_start(trial.node)
    rivals = [trial.node.spawn() for _ in range(2)]
    try:
        wait_until(
            lambda: any(rival.poll() is not None for rival in rivals), what="one that gives way"
        )
        assert sorted(str(rival.poll()) for rival in rivals) == ["3", "None"]
    except BaseException:
        for rival in rivals:
            rival.kill()
            rival.wait()
        raise
    trial.node.daemon = next(rival for rival in rivals if rival.poll() is None)


def kill_readers(trial: Trial) -> None:
    """In the middle of a call, one after the other; some have just begun."""
    for _ in range(trial.draws.randrange(1, 10)):
        trial.kill_reader(trial.wait_reader_in(trial.draws.choice(CALLS)))


def kill_readers_of_nothing(trial: Trial) -> None:
    """Those of whose files there is no copy: they claim files, read them, and hand them over."""
    trial.wait_up()
    for node in trial.site.nodes:
        node.forget()
    kill_readers(trial)


def kill_both(trial: Trial) -> None:
    """A reader and a daemon, the one while the other is still there."""
    reader = trial.wait_reader_in(trial.draws.choice(CALLS))
    for end in trial.draws.sample([reader.process.kill, trial.daemon.kill], 2):
        end()
    trial.kill_reader(reader)
    kill(trial)


# How often each is made, of as many as there are, where a node is alone and where nodes share.
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
    """Each intervention as often as its share says, and at least once if that can be; in any
    order."""
    again = [what for what, times in weights.items() for _ in range(1, times)]
    once = [*weights, *again]
    chosen = (once * (count // len(once) + 1))[:count]
    draws.shuffle(chosen)
    return chosen


# --- the trial ----------------------------------------------------------------------------------


def run(site: Site, reader: Path, seed: int, count: int, pause_us: int = PAUSE_US) -> Tally:
    """Makes `count` interventions, and ends the daemons and looks for what they have left."""
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
    # Most had time to serve, and not only to begin.
    assert trial.tally.hits > 5 * count
    assert trial.tally.served_bytes or len(site.nodes) == 1
    look_at_ends(site, trial)
    assert mounts_below(site.directory) == mounted
    return trial.tally


def look_at_ends(site: Site, trial: Trial) -> None:
    """Of a daemon nothing is left when it rests, and nothing but what it keeps when it has
    ended."""
    for node in site.nodes:
        node.wait_idle()
        assert node.daemon is not None
        wait_until(
            lambda daemon=node.daemon: not files_of(daemon, site.source),  # type: ignore[misc]
            what="the close of what was handed over",
        )
        assert len(half_closed(node.daemon)) <= IDLE_LINKS * (len(site.nodes) - 1)
        assert left(node) == trial.made[node]
    for node in site.nodes:
        node.stop()
        assert copies(node) == recorded(node)
        assert not processes_with(str(node.config))
