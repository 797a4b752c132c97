"""Daemons are killed, stopped and started over and over while programs read: no byte is wrong, no
call fails or takes long, and what a killed daemon leaves goes with the next one."""

from __future__ import annotations

import random
import signal
import subprocess
from collections.abc import Callable
from contextlib import ExitStack, suppress
from pathlib import Path

import psutil
import pytest
from support.manifests import copies_in
from support.mounts import Mounts
from support.session import MIB, Session, wait_until
from trials.reading import Reading, make_known

from monarch_py.demo.slowsource import SlowSource
from monarch_py.errors import SessionError
from monarch_py.storage.tiers import tier_root

# Some empty, some of less than a page, some of many units.
SIZES = {
    seed: size
    for seed, size in enumerate(
        [
            0,
            1,
            4095,
            4096,
            70_001,
            *[9000 + 37 * i for i in range(24)],
            *[600_017] * 6,
            3 * MIB + 5,
        ],
        1,
    )
}
READERS = 2
# In CI, and with --long.
SHORT, LONG = 20, 400
# A busy machine's [s].
END_LIMIT_S = 60.0


class Trial:
    """Readers, and at most one daemon that serves them; each intervention leaves it so.

    `draws` decides everything that is left open.
    """

    def __init__(
        self, session: Session, start_reader: Callable[[int], Reading], draws: random.Random
    ) -> None:
        self.session, self._start_reader, self.draws = session, start_reader, draws
        self._readers = [start_reader(number) for number in range(READERS)]
        self._started = READERS
        self.hits = 0  # some counted twice: a daemon may meet more than one intervention

    # --- readers --------------------------------------------------------------------------------

    def operations(self) -> int:
        """Of the readers that there are, all of whom are well."""
        return sum(reader.check() for reader in self._readers)

    def wait_operations(self, most: int) -> None:
        """Until the readers have made some more, any number below `most`."""
        wanted = self.operations() + self.draws.randrange(most)
        wait_until(lambda: self.operations() >= wanted, timeout=60, what="the readers' progress")

    def renew_a_reader(self) -> None:
        """One that knew no daemon before takes the place of the oldest."""
        self._readers.pop(0).end()
        self._readers.append(self._start_reader(self._started))
        self._started += 1

    def end_readers(self) -> None:
        for reader in self._readers:
            reader.wait_laps()
            reader.end()

    # --- daemons --------------------------------------------------------------------------------

    @property
    def daemon(self) -> subprocess.Popen[bytes]:
        assert self.session.daemon is not None
        return self.session.daemon

    def have_daemon(self) -> None:
        """One that is just starting, or one that is at work; sometimes it has to fill anew."""
        if self.session.daemon is None:
            self.session.start(wait=False)
        if self.draws.random() < 0.6:
            self.session.wait_up()
            if self.draws.random() < 0.2:
                self.session.forget()

    def count_hits(self) -> None:
        """Of the daemon that there is, if it has come so far that it answers."""
        with suppress(SessionError):
            self.hits += self.session.totals()["hits"]

    def ended(self, *statuses: int) -> None:
        status = self.daemon.wait(END_LIMIT_S)
        self.session.daemon = None
        assert status in statuses

    def send(self, number: signal.Signals) -> None:
        self.daemon.send_signal(number)

    def stand_still(self) -> None:
        self.send(signal.SIGSTOP)
        process = psutil.Process(self.daemon.pid)
        wait_until(lambda: process.status() == psutil.STATUS_STOPPED, what="the standstill")
        self.wait_operations(300)


def handles_signals(daemon: subprocess.Popen[bytes]) -> bool:
    """Whether it is past what Python does by itself, which leaves SIGTERM alone."""
    status = Path(f"/proc/{daemon.pid}/status").read_text()
    caught = next(line for line in status.splitlines() if line.startswith("SigCgt:"))
    return bool(int(caught.split()[1], 16) >> signal.SIGTERM - 1 & 1)


# --- interventions ------------------------------------------------------------------------------


def kill(trial: Trial) -> None:
    trial.send(signal.SIGKILL)
    trial.ended(-signal.SIGKILL)


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
    wait_until(lambda: handles_signals(trial.daemon), what="the daemon's beginning")
    trial.send(signal.SIGINT)
    trial.ended(0)


def start_two(trial: Trial) -> None:
    """One serves, and it does not matter which; the other says so and ends."""
    kill(trial)
    rivals = [trial.session.spawn() for _ in range(2)]
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
    trial.session.daemon = next(rival for rival in rivals if rival.poll() is None)


# How often, in CI; the order is drawn.
INTERVENTIONS: dict[Callable[[Trial], None], int] = {
    kill: 7,
    stop_and_kill: 3,
    stop_and_continue: 3,
    terminate: 3,
    interrupt: 2,
    start_two: 2,
}


def drawn(draws: random.Random, count: int) -> list[Callable[[Trial], None]]:
    """Each intervention as often as its share says, in any order."""
    once = [what for what, times in INTERVENTIONS.items() for _ in range(times)]
    chosen = (once * (count // len(once) + 1))[:count]
    draws.shuffle(chosen)
    return chosen


# --- the trial ----------------------------------------------------------------------------------


def left(session: Session) -> list[str]:
    """The paths of all that a session has in shared memory and on its tiers, beside copies and
    logs; a catalog's number is left out."""
    roots = [session.shm, *(tier_root(mount) for mount in session.tiers)]
    paths = [path for root in roots for path in root.rglob("*")]
    return sorted(
        str(path.with_name("catalog") if path.name.startswith("catalog.") else path)
        for path in paths
        if path.parent.name != "c" and not path.name.startswith("log")
    )


def copies(session: Session, tier: int) -> set[str]:
    return {path.name for path in tier_root(session.tiers[tier]).glob("c/*")}


@pytest.fixture
def session(
    session_factory: Callable[..., Session],
    slow_factory: Callable[..., SlowSource],
    tmp_path: Path,
    mounts: Mounts,
) -> Session:
    """Nothing of it has room for everything."""
    source = slow_factory()
    make_known(source.backing, SIZES)
    source.rate(200e6)
    source.latency(open=0.001, read=0.0005)
    for name in ("kept", "staging"):
        (tmp_path / name).mkdir()
    tiers = [
        {"mount_point": mounts.tmpfs("ram", 8 * MIB), "max_storage_quota": 2 * MIB},
        {
            "mount_point": tmp_path / "kept",
            "max_storage_quota": 2 * MIB,
            "persistent": True,
        },
    ]
    staging = {"mount_point": str(tmp_path / "staging"), "max_storage_quota": 4 * MIB}
    made = session_factory(source.mountpoint, tiers=tiers, staging=staging)
    made.tiers.append(tmp_path / "staging")
    return made


@pytest.mark.parametrize(
    ("seed", "count"), [(1, SHORT), pytest.param(2, LONG, marks=pytest.mark.long)]
)
def test_readers_notice_nothing(
    session: Session, reader: Path, tmp_path: Path, seed: int, count: int
) -> None:
    draws = random.Random(seed)
    session.start()
    made = left(session)
    with ExitStack() as stack:

        def start_reader(number: int) -> Reading:
            state = tmp_path / f"state{number}"
            words = (reader, session, session.source, SIZES, state)
            return stack.enter_context(Reading(*words, seed=seed * 1000 + number))

        trial = Trial(session, start_reader, draws)
        for number, intervene in enumerate(drawn(draws, count)):
            trial.have_daemon()
            trial.wait_operations(600)
            trial.count_hits()
            print(f"{number}: {intervene.__name__} after {trial.hits} hits")
            intervene(trial)
            if draws.random() < 0.3:
                trial.renew_a_reader()
        trial.have_daemon()
        session.wait_up()
        wait_until(lambda: session.totals()["hits"] > 0, what="hits of the last daemon")
        trial.end_readers()
    # Most had time to serve, and not only to begin.
    assert trial.hits > 5 * count
    session.wait_idle()
    assert left(session) == made
    session.stop()
    assert [copies(session, tier) for tier in (0, 2)] == [set(), set()]
    assert copies(session, 1) == {path.name for path in copies_in(session, 1).values()}
    assert not [
        process
        for process in psutil.process_iter(["cmdline"])
        if str(session.config) in (process.info["cmdline"] or [])
    ]
