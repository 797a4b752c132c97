"""The option `prefetch`: which files are filled although no program has read them, and in which
order."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from daemon.old_files import OldFiles
from support.files import Files, check_all
from support.session import MIB, Session, wait_until
from support.watch import assert_quiet

from monarch_py.config.load import load_config
from monarch_py.daemon.fill.prefetch_queue import PrefetchQueue
from monarch_py.daemon.server import Daemon
from monarch_py.demo.slowsource import SlowSource
from monarch_py.ipc import word
from monarch_py.ipc.catalog import CatalogReader
from monarch_py.native import Kind, State
from monarch_py.storage.tiers import copy_name

MANY = 60
Factory = Callable[..., Session]
READ = "import sys; print(len(open(sys.argv[1], 'rb').read()))"


@pytest.fixture
def slow(tmp_path: Path, slowsource_binary: Path) -> Iterator[SlowSource]:
    """A slow source of three directories with files; each open takes 10 ms."""
    mountpoint, backing = tmp_path / "mount", tmp_path / "backing"
    mountpoint.mkdir()
    backing.mkdir()
    for i in range(3):
        Files(backing).add_many(MANY // 3, 5000, prefix=f"d{i}/f")
    with SlowSource(backing, mountpoint, binary=slowsource_binary) as mounted:
        mounted.latency(open=0.01)
        yield mounted


def source_of(session: Session) -> dict[str, int]:
    told: dict[str, int] = session.status()["sources"][0]
    return told


def wait_present(session: Session, files: int) -> None:
    wait_until(lambda: source_of(session)["present"] == files, what=f"{files} copies")


def catalog_of(session: Session) -> CatalogReader:
    return CatalogReader.open(session.paths, session.connection.ask("where")["generation"])


def copies_in_order_of_the_scan(session: Session) -> list[Path]:
    catalog = catalog_of(session)
    files = np.flatnonzero(catalog.entries["kind"] == Kind.FILE)
    assert (word.state(catalog.words[files]) == State.PRESENT).all()
    (place,) = session.tiers[0].glob("monarch-*/c")
    return [place / copy_name(int(number)) for number in word.copy(catalog.words[files])]


def test_eager_fills_everything_in_the_order_of_the_scan(
    session_factory: Factory, slow: SlowSource
) -> None:
    session = session_factory(slow.mountpoint, prefetch="eager", shared_tpool_size=1).start()
    wait_present(session, MANY)
    times = [copy.stat().st_ctime_ns for copy in copies_in_order_of_the_scan(session)]
    assert times == sorted(times)
    assert slow.counts()["open"] == MANY
    assert session.totals()["opens"] == 0
    assert_quiet(session)


def test_files_in_use_come_before_all_that_is_filled_ahead(
    session_factory: Factory, slow: SlowSource
) -> None:
    slow.latency(open=0.1)  # slow enough for several programs to start during the fills
    session = session_factory(slow.mountpoint, prefetch="eager", shared_tpool_size=1).start()
    session.wait_scanned()
    catalog = catalog_of(session)
    files = np.flatnonzero(catalog.entries["kind"] == Kind.FILE)
    for entry in files[:-4:-1].tolist():
        path = slow.mountpoint / catalog.path(entry)
        assert session.python(READ, path) == "5000\n"
        wait_until(
            lambda e=entry: word.state(catalog_of(session).words[e]) == State.PRESENT,  # type: ignore[misc]
            what="the copy of a file in use",
        )
        assert source_of(session)["present"] < MANY - 10
    slow.latency(open=0)
    wait_present(session, MANY)
    assert session.totals()["fills"] == MANY


@pytest.mark.parametrize("settings", [{"prefetch": "none"}, {"fill_after": 0.9}])
def test_what_comes_after_the_scan_is_filled_as_the_rest(
    session_factory: Factory, tree: Path, settings: dict[str, object]
) -> None:
    """The first open of a new file makes the file known to the daemon, but is no reason to copy the
    file."""
    session = session_factory(tree, **settings).start()
    session.wait_scanned()
    files = source_of(session)["files"]
    (tree / "new").write_bytes(bytes(100_000))
    open_only = "import os, sys; os.close(os.open(sys.argv[1], os.O_RDONLY))"
    session.python(open_only, tree / "new")
    wait_until(lambda: source_of(session)["files"] == files + 1, what="the new file")
    assert_quiet(session)
    assert source_of(session)["present"] == 0


def test_none_fills_nothing_that_is_read(session_factory: Factory, tree: Path) -> None:
    session = session_factory(tree, prefetch="none").start()
    session.wait_scanned()
    session.want_all()
    assert session.python(READ, tree / "large") == f"{256 * 20000}\n"
    assert_quiet(session)
    told = source_of(session)
    assert told["absent"] == told["files"]
    assert session.totals()["fills"] == 0


def test_eager_has_files_that_the_scan_did_not_meet(session_factory: Factory, tree: Path) -> None:
    session = session_factory(tree, prefetch="eager").start()
    session.wait_scanned()
    files = source_of(session)["files"]
    wait_present(session, files)
    Files(tree).add("later", 1000)
    assert session.python(READ, tree / "later") == "1000\n"
    wait_present(session, files + 1)


def test_eager_without_room_for_all(session_factory: Factory, tmp_path: Path) -> None:
    files = Files(tmp_path / "source").add_many(40, 20_000)
    tier = tmp_path / "small"
    tier.mkdir()
    tiers = [{"mount_point": tier, "max_storage_quota": 400_000}]
    session = session_factory(files.root, tiers=tiers, prefetch="eager").start()

    def refused() -> int:
        told = session.status()["sources"][0]
        present, refused = told["present"], told["bypass"].get("no_room", 0)
        return int(refused) if present + refused == 40 else 0

    assert 20 < wait_until(refused, what="a decision about every file") < 30
    check_all(session, files)
    assert_quiet(session)


def test_copies_of_an_earlier_session_are_not_made_again(
    session_factory: Factory, tmp_path: Path, old_files: OldFiles
) -> None:
    files = old_files.one_tests.wait_until_old()
    tier = tmp_path / "kept"
    tier.mkdir()
    tiers = [{"mount_point": tier, "max_storage_quota": 64 * MIB, "persistent": True}]
    session = session_factory(files.root, tiers=tiers, prefetch="eager").start()
    wait_present(session, 30)
    wait_until(lambda: not session.status()["pending"], what="the end of all fills")
    session.stop()
    files.add("f00000", 999, version=1)
    # A copy of a file that has just changed is not recorded until two seconds later.
    files.wait_until_old(2.1)
    # After a crash, the daemon first checks the copies, and replaces a damaged one.
    ends: list[Callable[[], None]] = [
        session.stop,
        session.stop,
        session.kill,
        partial(damage, session),
    ]
    for end, made in zip(ends, (1, 0, 0, 1), strict=True):
        end()
        session.start()
        wait_present(session, 30)
        assert session.totals()["fills"] == made
    check_all(session, files)


def damage(session: Session) -> None:
    session.kill()
    copy = next(session.tiers[0].glob(f"monarch-{os.geteuid()}/c/*"))
    copy.chmod(0o600)
    with copy.open("r+b") as file:
        file.write(b"\0damage\0")


# --- the queue ----------------------------------------------------------------------------------


def test_commands_have_their_turn_before_the_scan() -> None:
    queue = PrefetchQueue(eager=True)
    ids = np.arange(10, dtype=np.uint64)
    queue.add(ids[:3])
    queue.add(ids[3:6], "a")
    queue.add(ids[6:], "b")
    queue.add_first(ids[:1])
    assert len(queue) == 11
    sizes = np.full(10, 100, dtype=np.uint64)
    assert queue.next(0, 2, sizes, 1e9).tolist() == [3, 4]
    assert sorted(queue.take_back("a").tolist()) == [3, 4, 5]
    assert queue.take_back("a").tolist() == []
    turns = [(0, 100, 99), (0, 100, 200), (1, 100, 0), (-3, 100, 1e9), *[(0, 100, 1e9)] * 3]
    taken = [queue.next(least, most, sizes, room).tolist() for least, most, room in turns]
    assert taken == [[], [6, 7], [8], [9], [0], [0, 1, 2], []]


def test_files_that_had_their_turn_are_their_commands_until_they_are_settled() -> None:
    queue, ids = PrefetchQueue(eager=False), np.arange(6, dtype=np.uint64)
    sizes = np.zeros(6, dtype=np.uint64)
    queue.add(ids[:4], "a")
    assert queue.next(0, 3, sizes, 1e9).tolist() == [0, 1, 2]
    assert queue.had_turn(ids).tolist() == [True, True, True, False, False, False]
    queue.add_first(ids[1:2])  # file 1 found no room in its turn, so it gets another turn
    assert queue.settle(lambda some: some != 0).tolist() == [1, 2]
    queue.add(ids[2:3], "b")
    assert sorted(queue.take_back("a").tolist()) == [1, 1, 2, 3]
    assert [some.tolist() for some in queue.meant()] == [[2]]


def test_the_scan_is_met_a_part_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("monarch_py.daemon.fill.prefetch_queue.MEETS", 4)
    queue = PrefetchQueue(eager=True)
    met = [queue.meet(6), queue.meet(6), queue.meet(6), queue.meet(7)]
    assert [(ids.tolist(), more) for ids, more in met] == [
        ([0, 1, 2, 3], True),
        ([4, 5], False),
        ([], False),
        ([6], False),
    ]
    assert len(PrefetchQueue(eager=False).meet(100)[0]) == 0


def test_a_file_that_is_named_twice_is_filled_once(
    monkeypatch: pytest.MonkeyPatch, session_factory: Factory, tmp_path: Path
) -> None:
    """In the same turn of the daemon's loop, one reader reports a file by its name and another
    reader hands the file over. Only one copy is made: a second copy would take room, and no entry
    would lead to the second copy."""
    root = Files(tmp_path / "source").add_many(3, 5000).root
    session = session_factory(root, prefetch="none")
    monkeypatch.setenv("MONARCH_SHM", str(session.shm))
    session.paths.make()
    daemon = Daemon(load_config(session.config), session.paths)
    try:
        wait_until(lambda: [daemon._turn()] and daemon.scanner.scanned, what="the scan")
        catalog = daemon.shared.catalog
        first, second = (catalog.find(0, name) for name in ("f00000", "f00001"))
        ids = np.array([first, second, first], dtype=np.uint64)
        daemon.filler.requests.want(ids)
        wait_until(
            lambda: [daemon._turn()] and (word.state(catalog.words[ids]) == State.PRESENT).all(),
            what="the copies",
        )
        # A copy serves readers before the daemon's loop has taken the result of the fill and has
        # counted the copy. So wait until the loop has taken all results.
        wait_until(lambda: [daemon._turn()] and not daemon.filler.pending, what="the last result")
        assert daemon.filler.copies.tier(0).files == 2
    finally:
        daemon.close()
