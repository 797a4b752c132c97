"""A daemon that follows a plan evicts copies from tiers. In these tests, the second half of a
training run uses other files than the first half."""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from support.draws import sized
from support.epoch import Reader, make_files
from support.manifests import copies_in
from support.session import MIB, Session, wait_until
from support.watch import QuotaWatch, assert_quiet

from monarch_py.config.load import load_config
from monarch_py.daemon.copies import eviction as rules
from monarch_py.demo.slowsource import SlowSource
from monarch_py.plan import Plan, PlanPart
from monarch_py.plan.index import Index
from monarch_py.plan.loader import Loader
from monarch_py.plan.position import NOT_SOON, PositionEstimator
from monarch_py.plan.samplers import DistributedSampler, Listed
from monarch_py.plan.timeline import Run, Timeline
from monarch_py.policies.node import NodePolicy

# The first EPOCHS epochs use one half of the files, and the next EPOCHS epochs use the other half.
# The staging area holds WINDOW files.
HALF, SIZE, EPOCHS = 160, 50_000, sized(2, 3)
AREA = 2 * MIB
WINDOW = AREA // SIZE


class Training:
    """Reads the files of a plan, epoch by epoch, and compares every byte."""

    def __init__(
        self, program: Path, session: Session, source: SlowSource, orders: list[list[int]]
    ) -> None:
        self._program, self.session, self.source, self.orders = program, session, source, orders

    @property
    def plan(self) -> dict[str, Any]:
        (plan,) = self.session.status()["plans"]
        return dict(plan)

    @property
    def tier(self) -> dict[str, Any]:
        return dict(self.session.status()["tiers"][0])

    def reader(self, epoch: int, first: int = 0, count: int = HALF) -> Reader:
        root, order = self.source.mountpoint, self.orders[epoch][first : first + count]
        return Reader(self._program, self.session, "read", MIB, 1, root, order)

    def run(self, first: int, last: int) -> None:
        """Runs the epochs from `first` up to, but not including, `last`."""
        for epoch in range(first, last):
            with self.reader(epoch) as reader:
                reader.end()
            # The daemon learns of opens late, so wait only until the plan's position is in the
            # middle of the epoch.
            self.wait_position((epoch + 1) * HALF - HALF // 2)

    def run_in_step(self, first: int, last: int) -> None:
        """Does the same as `run`, but reads each epoch in parts, and waits after each part until
        the daemon has caught up."""
        part = WINDOW // 2
        for epoch in range(first, last):
            for at in range(0, HALF, part):
                with self.reader(epoch, at, part) as reader:
                    reader.end()
                self.wait_position(epoch * HALF + at + part - HALF // 2)
                self.session.wait_idle()

    def wait_position(self, least: int) -> None:
        wait_until(lambda: self.plan["position"] >= least, what="the plan's progress")

    def start(self) -> None:
        self.session.start()
        self.session.wait_scanned()
        wait_until(lambda: self.plan["state"] == "following", what="the plan's files")


Make = Callable[..., Training]


@pytest.fixture
def make(
    session_factory: Callable[..., Session],
    slow_factory: Callable[..., SlowSource],
    epoch_reader: Path,
    tmp_path: Path,
) -> Make:
    """Returns the function make(eviction, **settings), which starts a daemon whose tier has these
    settings, and returns a training run that the daemon serves."""
    source = slow_factory()
    make_files(source.backing, 2 * HALF, SIZE)
    names = sorted(path.name for path in source.backing.iterdir())
    index = Index.of("files", source.mountpoint, names, [SIZE] * len(names))
    rng = np.random.default_rng(3)
    epochs = [rng.permutation(HALF) + HALF * (e >= EPOCHS) for e in range(2 * EPOCHS)]
    loader = Loader(Listed(2 * HALF, np.array(epochs)), 1, 4, workers=1)
    plan = tmp_path / "plan.npz"
    Plan((index,), (PlanPart("training", 0, loader),), 2 * EPOCHS, 1).save(plan)
    orders = [[int(names[i]) for i in epoch] for epoch in epochs]

    def made(eviction: str, **more: Any) -> Training:
        place = tmp_path / f"with-{eviction}"
        for name in ("tier", "area"):
            (place / name).mkdir(parents=True)
        quota = HALF * (SIZE + 8192) + MIB
        tier = {"mount_point": place / "tier", "max_storage_quota": quota, "eviction": eviction}
        staging = {"mount_point": str(place / "area"), "max_storage_quota": AREA}
        session = session_factory(
            source.mountpoint,
            directory=place,
            tiers=[{**tier, **more}],
            staging=staging,
            plan=str(plan),
            # Of the files that are no longer used, the daemon first evicts those that the scan
            # found first. Those that the scan found last may stay until the training run ends.
            scan_threads=1,
        )
        source.rate(0)
        source.latency(open=0, read=0)
        source.reset()
        training = Training(epoch_reader, session, source, orders)
        training.start()
        # The source is so slow that the daemon looks for copies to evict many times per epoch, even
        # on a busy machine.
        source.rate(20e6)
        source.latency(open=0.001, read=0.001)
        return training

    return made


def test_other_files_take_the_places_of_those_that_are_used_no_more(make: Make) -> None:
    read, dataset = {}, 2 * HALF * SIZE
    # The run without eviction is made only with --long. It shows that a training run without
    # eviction reads more bytes than the bound at the end of this test permits.
    for eviction in ("planned", *sized((), ("none",))):
        training = make(eviction)
        place = training.session.tiers[0]
        with QuotaWatch(place) as watch:
            training.run_in_step(0, EPOCHS - 1)
            assert training.tier["evicted"] == 0, "a file was evicted that is used again"
            training.run_in_step(EPOCHS - 1, 2 * EPOCHS)
            training.session.wait_idle()
        assert watch.most_bytes <= training.tier["quota_bytes"]
        read[eviction] = training.source.counts()["bytes_read"]
        if eviction == "planned":
            # The training run now uses the other HALF files. Most of them replace a file in the
            # tier. Up to 3 * WINDOW of them do not: those that the staging area holds, those for
            # which the tier has room left, and those that were fetched into the staging area before
            # the daemon knew that they are used again.
            assert HALF - 3 * WINDOW <= training.tier["evicted"] <= HALF
        else:
            assert training.tier["evicted"] == 0
        assert training.plan["others"] == 0
        assert_quiet(training.session)
        training.session.stop()
    # Each file is read once. Up to 3 * WINDOW files of the second half are read a second time:
    # 2 * WINDOW files that were fetched into the staging area before the daemon knew that they are
    # used again, and WINDOW files around the plan's position.
    assert read["planned"] <= dataset + 3 * WINDOW * SIZE
    # Without eviction, the tier gets no room for the files of the second half. The first epoch that
    # uses these files reads them from the source. Each later epoch reads more than half of them
    # from the source again.
    if "none" in read:
        assert read["none"] >= dataset + 2 * (HALF * SIZE) / 2


HOLD = """
import os, sys
fd = os.open(sys.argv[1], os.O_RDONLY)
print(os.readlink(f"/proc/self/fd/{fd}"), flush=True)
sys.stdin.readline()
now = os.fstat(fd)
print(now.st_ino, now.st_mtime_ns, len(os.pread(fd, 1 << 20, 0)), flush=True)
"""


@contextmanager
def held(training: Training, seed: int) -> Iterator[subprocess.Popen[str]]:
    """Runs a program that keeps the file with this seed open."""
    path = training.source.mountpoint / str(seed)
    words = ["python3", "-c", HOLD, str(path)]
    pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    with subprocess.Popen(words, env=training.session.env(), **pipes) as program:
        try:
            yield program
        finally:
            program.kill()


def test_a_file_that_is_open_stays_what_it_is(make: Make) -> None:
    training = make("planned")
    training.run(0, 1)
    training.session.wait_idle()
    seed = training.orders[0][0]
    with held(training, seed) as program:
        assert program.stdout is not None
        copy = program.stdout.readline().strip()
        assert copy.startswith(str(training.session.tiers[0]))
        (said,) = [
            each
            for each in training.session.connection.ask("open")["open"]
            if each["pid"] == program.pid
        ]
        assert (said["served_by"], Path(said["path"]).name) == ("tier 0", str(seed))
        training.run(1, EPOCHS + 2)
        wait_until(lambda: not Path(copy).exists(), what="the end of the copy")
        source = (training.source.mountpoint / str(seed)).stat()
        answer, _ = program.communicate("\n", timeout=30)
    assert answer.split() == [str(source.st_ino), str(source.st_mtime_ns), str(SIZE)]


def test_a_daemon_that_is_killed_while_it_evicts(make: Make) -> None:
    training = make("planned", persistent=True)
    session = training.session
    training.run(0, EPOCHS - 1)
    session.wait_idle()
    wait_until(lambda: len(copies_in(session)) == training.tier["files"], what="all rows")
    before = copies_in(session)
    assert len(before) > HALF // 2
    with training.reader(EPOCHS - 1) as reader:
        wait_until(lambda: training.tier["evicted"] > 0, what="the first eviction", every=0.001)
        session.kill()
        reader.end()
    training.start()

    def is_settled() -> bool:
        status = session.status()
        return not (status["pending"] or status["dropping"] or status["sources"][0]["filling"])

    wait_until(is_settled, what="the end of all checks")
    (folder,) = session.tiers[0].glob("monarch-*/c")
    wait_until(
        lambda: sorted(copies_in(session).values()) == sorted(folder.iterdir()),
        what="a manifest of exactly the present copies",
    )
    after = copies_in(session)
    assert len(after) == training.tier["files"] > 0
    done = session.monarch("verify")
    assert done.returncode == 0, done.stdout + done.stderr
    # Copies made by either daemon are used, and are evicted.
    training.run(EPOCHS, 2 * EPOCHS)
    session.wait_idle()
    assert training.tier["used_bytes"] <= training.tier["quota_bytes"]
    now = copies_in(session)
    assert len(set(map(int, now)) & set(training.orders[-1])) >= HALF - 3 * WINDOW
    # All copies of the second daemon have higher numbers than the copies of the first daemon.
    new = {int(path.name, 16) for path in set(now.values()) - set(before.values())}
    assert min(new) > max(int(path.name, 16) for path in before.values())
    assert_quiet(session)


def test_without_a_plan_nothing_goes(
    session_factory: Callable[..., Session], epoch_reader: Path, tmp_path: Path
) -> None:
    root, tier = tmp_path / "source", tmp_path / "tier"
    made = make_files(root, 40, SIZE)
    tier.mkdir()
    level = {"mount_point": tier, "max_storage_quota": 20 * SIZE + MIB // 8, "eviction": "planned"}
    session = session_factory(root, tiers=[level]).start()
    (warning,) = load_config(session.config).warnings
    assert warning.endswith("hierarchy[0].eviction: has no effect without a 'plan'")
    session.wait_scanned()
    for _ in range(2):
        with Reader(epoch_reader, session, "read", MIB, 2, root, made) as reader:
            reader.end()
        session.wait_idle()
    assert session.status()["tiers"][0]["evicted"] == 0
    assert session.status()["sources"][0]["bypass"]["no_room"] > 0


# --- how often the daemon looks for copies to evict ---------------------------------------------


class SlowTiers:
    """Stands for the daemon's copies. The configuration allows evictions from the only tier, but
    this tier has failed. A search for copies to evict takes `look_s`."""

    def __init__(self, look_s: float) -> None:
        self.look_s, self.now_s, self.asked = look_s, 1000.0, 0
        self.tiers = self
        self.scanner = SimpleNamespace(config=SimpleNamespace(evicting=[0]))

    def __getitem__(self, number: int) -> None:
        self.now_s += self.look_s

    def monotonic(self) -> float:
        return self.now_s

    def uses(self) -> Future[Any]:
        self.asked += 1
        done: Future[Any] = Future()
        done.set_result((np.zeros(0, np.int64), np.zeros(0, np.int64)))
        return done


@pytest.mark.parametrize("look_s", [0.0, 0.001, 0.1, 2.0])
def test_looks_take_a_small_part_of_the_time(
    monkeypatch: pytest.MonkeyPatch, look_s: float
) -> None:
    copies: Any = SlowTiers(look_s)
    monkeypatch.setattr(rules, "time", copies)
    evictions = rules.Evictions(copies, NodePolicy(), copies.uses, lambda ids: ids == ids)
    evictions.step()
    ended_s, next_s = copies.now_s, 1000.0 + max(rules.LOOK_S, look_s / rules.SHARE)
    assert copies.asked == 1
    copies.now_s = next_s - 0.01
    evictions.step()
    assert copies.asked == 1, f"looked again within {copies.now_s - ended_s} s"
    copies.now_s = next_s + 0.01
    evictions.step()
    assert copies.asked == 2


# --- the next uses of files ---------------------------------------------------------------------


@pytest.mark.parametrize("done", [0, 1, 30, 100])
def test_the_next_use_and_the_one_after_it(done: int) -> None:
    count = 100
    timeline = Timeline.of(Loader(DistributedSampler(count, 1, 5), 1, 4, workers=1), 3, 1)
    runs = [Run.of(timeline.section(epoch), 0, count) for epoch in range(3)]
    follower = PositionEstimator(runs[0])
    follower.following = runs[1]
    for i in range(done):
        follower.observe(runs[0].units[i : i + 1])
    if done == count:
        follower.following = runs[2]
    coming = [*runs[0].units[done:].tolist(), *runs[1].units.tolist()]
    if done == count:
        coming = [*runs[1].units.tolist(), *runs[2].units.tolist()]
    first, second = follower.foresee()()
    for unit in range(count):
        places = [i for i, each in enumerate(coming) if each == unit]
        expected = [*places, NOT_SOON, NOT_SOON][:2]
        assert [first[unit], second[unit]] == expected
