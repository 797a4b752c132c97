"""How far the scan runs ahead of programs while they read."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.epoch import make_files
from support.segments import newest_generation
from support.session import MIB, Session, wait_until

from monarch_py.config.load import load_config
from monarch_py.daemon.scan.pace import (
    AHEAD_S,
    AWAIT_S,
    IDLE_S,
    LEAST,
    LOOK_S,
    MOST_S,
    OPENS_A_NAME,
    RISE,
    ScanPace,
)
from monarch_py.daemon.scan.scanner import FIT_AFTER_S
from monarch_py.daemon.server import Daemon
from monarch_py.demo.slowsource import SlowSource
from monarch_py.ipc.catalog import Catalog, CatalogReader
from monarch_py.ipc.session import SessionDir
from monarch_py.native import Kind, ffi, lib
from monarch_py.peers.handshake import new_secret
from monarch_py.peers.membership import Cluster, Member
from monarch_py.peers.server import listen
from monarch_py.scan.walk import ALL_NAMES, Walk

Factory = Callable[..., Session]
FILES = 200


def step(pace: ScanPace, now_s: float, **more: int) -> tuple[int, int]:
    counts = {"opens": 0, "filled": 0, "waiting": 0, "found": 0}
    return pace.step(now_s, **{**counts, "size_bytes": 1, "opened_bytes": 1, **more})


# --- the rule -------------------------------------------------------------------------------


def test_without_programs_all_is_looked_at() -> None:
    assert step(ScanPace(0.0, awaits_s=0.0), 0.0) == ALL_NAMES


def test_a_program_that_is_about_to_begin_is_awaited_for_a_moment() -> None:
    pace = ScanPace(0.0, awaits_s=AWAIT_S)
    assert step(pace, 0.1) == (0, 0)
    assert step(pace, AWAIT_S - 0.1) == (0, 0)
    assert step(pace, AWAIT_S) == ALL_NAMES


@pytest.mark.parametrize(("size", "least"), [(1, LEAST), (4 << 20, 2), (1 << 30, 1)])
def test_few_names_of_large_files_are_looked_at_before_any_is_filled(size: int, least: int) -> None:
    pace = ScanPace(0.0, awaits_s=AWAIT_S)
    assert step(pace, 0.1, opens=8, opened_bytes=size) == (least, 0)


def test_names_are_lacking_until_the_scan_has_found_some() -> None:
    pace = ScanPace(0.0, awaits_s=0.0)
    assert not pace.lacks_names
    for now_s, allowed in ((0.1, LEAST), (0.1 + LOOK_S / 2, 0)):
        assert step(pace, now_s, opens=8) == (allowed, 0)
        assert pace.lacks_names
    step(pace, 0.1 + LOOK_S / 2, opens=8, found=LEAST, waiting=LEAST)
    assert not pace.lacks_names
    # If the scan has found nothing for 2 * LOOK_S, there may be no more names, so `lacks_names`
    # becomes False.
    last_s = 0.1 + LOOK_S / 2
    for ago_s, lacks in ((1.9 * LOOK_S, True), (2.1 * LOOK_S, False)):
        step(pace, last_s + ago_s, opens=8, filled=int(100 * ago_s), found=LEAST)
        assert pace.lacks_names == lacks


def test_names_are_expected_to_last_less_long_while_the_rate_of_fills_rises() -> None:
    pace = ScanPace(0.0, awaits_s=0.0)
    for now_s in np.arange(0.0, 1.5 * AHEAD_S, 0.01).tolist():
        step(pace, now_s, opens=8, filled=int(1000 * now_s))
        if 0.1 * AHEAD_S < now_s < AHEAD_S:
            assert pace.lasts_s(100) == pytest.approx(0.1 / RISE, rel=0.3)
    assert pace.lasts_s(100) == pytest.approx(0.1, rel=0.3)
    # After a pause of the programs, the scan measures the rate of fills anew. As at the beginning,
    # it assumes that the rate will rise.
    later_s, filled = 2 * AHEAD_S + IDLE_S, int(2000 * AHEAD_S)
    step(pace, AHEAD_S, opens=8, filled=filled)
    assert step(pace, later_s, opens=8, filled=filled) == ALL_NAMES
    step(pace, later_s + 0.01, opens=9, filled=filled + 20)
    assert pace.lasts_s(100) == pytest.approx(0.05 / RISE)


def test_programs_that_stop_opening_files_leave_the_source_to_the_scan() -> None:
    pace = ScanPace(0.0, awaits_s=0.0)
    assert step(pace, 0.1, opens=1) != ALL_NAMES
    assert step(pace, IDLE_S, opens=1) != ALL_NAMES
    assert step(pace, 0.1 + IDLE_S, opens=1) == ALL_NAMES
    assert step(pace, 0.2 + IDLE_S, opens=2) != ALL_NAMES


def test_programs_that_never_stop_do_not_keep_it_for_ever() -> None:
    pace = ScanPace(0.0, awaits_s=0.0)
    assert step(pace, MOST_S - 0.1, opens=1) != ALL_NAMES
    assert step(pace, MOST_S, opens=2) == ALL_NAMES


def test_it_goes_as_far_ahead_of_fills_as_they_come_in_a_while() -> None:
    pace = ScanPace(0.0, awaits_s=0.0)
    rate, at = 1000, 0.0
    for turn in range(10):
        at = 0.1 * (turn + 1)
        allowed = step(pace, at, filled=rate * (turn + 1) // 10, waiting=100, found=turn)
    assert allowed[0] == pytest.approx(rate * AHEAD_S - 100, abs=1)
    full = int(rate * AHEAD_S)
    assert step(pace, at + 0.1, filled=rate, waiting=full, found=99)[0] == 0
    # If no file has been filled for AHEAD_S, the number of files by which the scan may be ahead of
    # the fills falls to half or less.
    later = step(pace, at + 0.1 + AHEAD_S, opens=1, filled=rate, waiting=0, found=100)
    assert later[0] <= full / 2


@pytest.mark.parametrize(("size", "more"), [(64 << 10, True), (8 << 20, False)])
def test_only_small_files_that_end_together_send_it_far_ahead(size: int, more: bool) -> None:
    pace = ScanPace(0.0, awaits_s=AWAIT_S)
    step(pace, 0.05, opens=1)
    at_once = LEAST // 2
    allowed, _ = step(pace, 0.1, opens=1, filled=at_once, found=1, size_bytes=size)
    assert allowed == (int(at_once / 0.05 * AHEAD_S) if more else LEAST)


def test_what_is_being_looked_at_is_not_allowed_again() -> None:
    pace = ScanPace(0.0, awaits_s=AWAIT_S)
    assert step(pace, 0.01, opens=1, found=5) == (LEAST, 0)
    assert step(pace, 0.02, opens=1, found=5) == (0, 0)
    assert step(pace, 0.03, opens=1, found=6) == (LEAST, 0)
    assert step(pace, 0.03 + LOOK_S, opens=1, found=6) == (LEAST, 0)


def test_other_names_are_few_beside_what_programs_open() -> None:
    pace = ScanPace(0.0, awaits_s=AWAIT_S)
    others = sum(step(pace, 0.01 * n, opens=3 * n)[1] for n in range(1, 100))
    assert others == 3 * 99 // OPENS_A_NAME


# --- the walk -------------------------------------------------------------------------------


@contextmanager
def walking(root: Path, **more: Any) -> Iterator[Walk]:
    fd = os.open(root, os.O_RDONLY)
    walk = Walk(fd, 0, 3, 0, ffi.new("uint32_t *"), **more)
    try:
        yield walk
    finally:
        walk.close()
        os.close(fd)


def names(walk: Walk, most: float = float("inf"), for_s: float = 60.0) -> list[str]:
    """Returns the files that a walk finds. Stops when the walk has found `most` files or has ended,
    or after `for_s` [s]."""
    found: list[str] = []
    until = time.monotonic() + for_s
    while len(found) < most and not walk.is_finished and time.monotonic() < until:
        if (batch := walk.take()) is None:
            time.sleep(0.001)
            continue
        for entry in batch.entries[batch.entries["kind"] == Kind.FILE]:
            raw = ffi.buffer(batch.pool + int(entry["path"]), int(entry["path_len"]))[:]
            found.append(os.fsdecode(raw))
    return found


def make_tree(root: Path) -> None:
    for directory in "abcd":
        (root / directory).mkdir()
        for i in range(FILES):
            (root / directory / str(i)).touch()


def test_only_wanted_directories_are_listed_without_allowance(tmp_path: Path) -> None:
    make_tree(tmp_path)
    with walking(tmp_path, allowed=(0, 0)) as walk:
        walk.want("c", is_deep=False)
        assert not names(walk, for_s=0.2)
        walk.allow(50, 0)
        some = names(walk, for_s=0.3)
        # The walk is allowed to examine 50 names. The names in the root count too, so the walk can
        # find fewer than 50 names below `c`. It can also find more, because it completes a portion
        # of names (PORTION in csrc/scan/scan.h) that it has begun.
        assert 30 <= len([name for name in some if name.startswith("c/")]) <= 50 + 16
        walk.allow(-1, 0)
        more = names(walk, for_s=0.3)
        assert sorted(some + more) == sorted(f"c/{i}" for i in range(FILES))
        walk.allow(-1, -1)
        rest = names(walk)
        assert walk.is_finished and walk.errors() == (0, 0)
        assert sorted(rest) == sorted(f"{d}/{i}" for d in "abd" for i in range(FILES))


def test_others_add_up(tmp_path: Path) -> None:
    for i in range(1000):
        (tmp_path / str(i)).touch()
    with walking(tmp_path, allowed=(0, 1)) as walk:
        before = names(walk, for_s=0.2)
        for _ in range(10):
            walk.allow(0, 16)
        some = names(walk, for_s=0.3)
        assert 160 - 16 <= len(before + some) <= 160 + 2 * 16
        walk.allow(-1, -1)
        assert sorted(before + some + names(walk)) == sorted(map(str, range(1000)))


def test_a_walk_that_may_not_go_on_ends_all_the_same(tmp_path: Path) -> None:
    make_tree(tmp_path)
    with walking(tmp_path, allowed=(16, 0)) as walk:
        walk.want("c", is_deep=False)
        assert names(walk, most=16, for_s=0.2)
        assert walk.close() == 0


def test_known_files_are_not_looked_at(
    slow_factory: Callable[..., SlowSource], tmp_path: Path
) -> None:
    """The scan does not examine files that the catalog knows, unless their directory has changed
    since the time `since_ns`. In a changed directory a file may have been replaced, even by a file
    with the same inode number."""
    slow = slow_factory(attr_timeout=0.0)
    make_files(slow.backing, FILES, 10)
    (tmp_path / "shm").mkdir()
    generation = ffi.new("uint64_t *")
    catalog = Catalog(SessionDir(tmp_path / "shm"), generation)
    with walking(slow.mountpoint) as walk:
        while not walk.is_finished:
            if (batch := walk.take()) is not None:
                catalog.add(batch.entries.copy(), batch.pool)
    known = catalog.entries.copy()
    for age_s, is_looked_at in ((60.0, False), (0.0, True)):
        changed_ns = time.time_ns() - int(age_s * 1e9)
        os.utime(slow.backing, ns=(changed_ns, changed_ns))
        since_ns = slow.backing.stat().st_ctime_ns + (10**10 if age_s else 0)
        slow.reset()
        with walking(slow.mountpoint, known=(catalog.writer, ffi.NULL, since_ns)) as walk:
            seen = 0
            while not walk.is_finished:
                if (batch := walk.take()) is not None:
                    files = batch.entries[batch.entries["kind"] == Kind.FILE]
                    seen += len(files)
                    assert (files["place"] != lib.MONARCH_NO_PLACE).all()
                    catalog.add(batch.entries.copy(), batch.pool)
        assert seen == FILES
        looks = slow.counts()["getattr"]
        # If no file is examined, the only requests are those for the root.
        assert looks >= FILES if is_looked_at else looks <= 20
        assert np.array_equal(catalog.entries["ino"][: len(known)], known["ino"])


def test_of_a_file_that_is_being_read_the_server_is_not_asked(
    slow_factory: Callable[..., SlowSource],
) -> None:
    """In this test, names and attributes in the kernel's cache expire at once. So the scan makes
    two requests for a file that no program reads: one for the name, and one for the attributes. For
    a file that a program reads, the scan must request only the name. It takes the attributes from
    the cache, although they have expired, because the program's open has just requested them."""
    slow = slow_factory(attr_timeout=0.0)
    make_files(slow.backing, FILES, 10)
    clients = ffi.new("struct monarch_clients *")
    inodes = [path.stat().st_ino for path in slow.mountpoint.glob("*")]

    def looks() -> int:
        slow.reset()
        sizes: dict[int, int] = {}
        with walking(slow.mountpoint, known=(ffi.NULL, clients, 0)) as walk:
            while not walk.is_finished:
                if (batch := walk.take()) is not None:
                    entries = batch.entries
                    sizes |= dict(zip(entries["ino"], entries["size"], strict=True))
        assert {sizes[ino] for ino in inodes} == {10}
        return slow.counts()["getattr"]

    without_readers = looks()
    ticks = time.monotonic_ns() >> lib.MONARCH_CLAIM_TICK & (lib.MONARCH_CLAIM_RECALLED - 1)
    for ino in inodes:
        number = lib.MONARCH_MAX_ENTRIES + 1 + ino % (lib.MONARCH_MAX_ENTRIES - 1)
        clients.claim[number % lib.MONARCH_CLAIMS] = (number + 1) << 32 | ticks
    assert looks() <= without_readers - FILES


# --- a first epoch --------------------------------------------------------------------------

READ = "import os, sys\nfor p in sys.argv[1:]:\n with open(p, 'rb', buffering=0) as f: f.read()"


@pytest.mark.usefixtures("alone")
def test_a_first_epoch_asks_for_each_file_once_more_than_its_open(
    session_factory: Factory, slow_factory: Callable[..., SlowSource]
) -> None:
    """In a first epoch, the source gets two requests for each file: an open requests the name, and
    the attributes are requested after the last byte was read. If the scan ran ahead of the reads,
    it would make a third request for most files."""
    source = slow_factory(keep_pages=True)
    make_files(source.backing, FILES, 20_000)
    source.latency(open=0.002, read=0.002, getattr=0.002)
    session = session_factory(source.mountpoint)
    paths = [source.mountpoint / str(seed) for seed in range(1, FILES + 1)]
    source.reset()
    done = session.monarch("run", "-q", "--", sys.executable, "-c", READ, *map(str, paths[::-1]))
    assert done.returncode == 0
    counts = source.counts()
    assert counts["open"] <= 1.02 * FILES
    assert counts["bytes_read"] <= 1.02 * FILES * 20_000
    # Besides the two requests for each file, there are a few for the root and a few of the session.
    assert counts["getattr"] <= 2.2 * FILES + 20


@pytest.mark.usefixtures("alone")
def test_a_source_that_nobody_reads_does_not_keep_another_back(
    session_factory: Factory, slow_factory: Callable[..., SlowSource], tmp_path: Path
) -> None:
    """Of two sources, the one that no program reads is scanned first. This must not delay the fills
    of the other source. While a job reads a source, the scan of this source is slow: for every
    sixteen opens, it examines one name in directories that no program reads. If the scan of the
    unread source were as slow, the scan of the other source would begin so late that none of its
    files could be filled ahead."""
    quiet, source = tmp_path / "quiet", slow_factory(keep_pages=True)
    make_files(quiet, 4 * FILES, 10)
    make_files(source.backing, FILES, 20_000)
    source.latency(open=0.005, read=0.005, getattr=0.005)
    session = session_factory([quiet, source.mountpoint], prefetch="auto")
    paths = [str(source.mountpoint / str(seed)) for seed in range(1, FILES + 1)]
    report = tmp_path / "report.json"
    words = ["run", "-q", "--json", str(report), "--", sys.executable, "-c", READ, *paths]
    assert session.monarch(*words).returncode == 0
    assert json.loads(report.read_text())["run"]["totals"]["hits"] >= FILES // 4


@pytest.mark.usefixtures("alone")
def test_a_warm_beside_a_job_does_not_wait_for_its_end(
    session_factory: Factory, slow_factory: Callable[..., SlowSource]
) -> None:
    source = slow_factory(keep_pages=True)
    make_files(source.backing, FILES, 20_000)
    source.latency(open=0.002, read=0.002, getattr=0.002)
    (source.backing / "never.raw").write_bytes(b"copied")
    session = session_factory([{"path": str(source.mountpoint), "exclude": ["*.raw"]}]).start()
    # The job opens a file at the source every 20 ms, for longer than the test takes.
    script = (
        "import sys, time\n"
        "for _ in range(3000):\n"
        "    with open(sys.argv[1], 'rb', buffering=0) as file: file.read()\n"
        "    time.sleep(0.02)\n"
    )
    read = str(source.mountpoint / "never.raw")
    with subprocess.Popen([sys.executable, "-c", script, read], env=session.env()) as job:
        try:
            wait_until(lambda: session.totals()["misses"] > 0, what="the job's first open")
            warmed = session.monarch("warm", timeout=60)
            assert job.poll() is None
        finally:
            job.kill()
    assert warmed.returncode == 0, warmed.stderr
    assert session.status()["sources"][0]["present"] == FILES


def test_the_catalog_is_shrunk_only_some_time_after_the_scan(
    session_factory: Factory, tmp_path: Path
) -> None:
    """A scan often ends just before an epoch. The catalog is shrunk later, so that the work does
    not slow down that epoch."""
    root = tmp_path / "source"
    make_files(root, FILES, 10)
    session = session_factory(root, prefetch="auto")
    began_s = time.monotonic()
    session.start()
    session.wait_scanned()
    first = CatalogReader.open(session.paths, newest_generation(session))
    wait_until(lambda: newest_generation(session) > 1, what="the catalog is shrunk")
    assert time.monotonic() - began_s >= FIT_AFTER_S
    shrunk = CatalogReader.open(session.paths, newest_generation(session))
    assert len(shrunk) == len(first)
    assert shrunk.c.bytes < first.c.bytes


@pytest.mark.parametrize("nodes", [1, 2])
def test_the_scan_of_a_cluster_does_not_stay_behind_programs(
    monkeypatch: pytest.MonkeyPatch, session_factory: Factory, tmp_path: Path, nodes: int
) -> None:
    """The scan of a daemon in a cluster must not wait for programs, because the daemon must have
    scanned all files before it knows which node keeps which file. The scan of a single daemon
    waits."""
    root = tmp_path / "source"
    make_files(root, FILES, 10)
    session = session_factory(root, prefetch="auto")
    monkeypatch.setenv("MONARCH_SHM", str(session.shm))
    session.paths.make()
    members = tuple(Member(f"node{i}", "127.0.0.1", 1, (MIB,)) for i in range(nodes))
    cluster = Cluster(0, members, new_secret()) if nodes > 1 else None
    with listen("127.0.0.1") as listener:
        daemon = Daemon(
            load_config(session.config), session.paths, cluster, listener, awaits_s=3600
        )
        try:
            if cluster is not None:
                wait_until(lambda: [daemon._turn()] and daemon.scanner.scanned)
                return
            for _ in range(50):
                daemon._turn()
            assert not daemon.scanner.scanned
        finally:
            daemon.close()
