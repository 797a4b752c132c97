"""`prefetch: auto` fills the files that lie beside the files that programs read."""

from __future__ import annotations

import os
import random
import re
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.draws import sized
from support.files import Files, check_all
from support.nodes import Nodes
from support.session import MIB, Session, wait_until
from support.watch import assert_quiet

from monarch_py.arrays import Ids
from monarch_py.config.load import load_config
from monarch_py.daemon.control import Control
from monarch_py.daemon.fill import unused
from monarch_py.daemon.fill.directory_prefetch import NAMES, Directories
from monarch_py.daemon.plans.manager import PlanManager
from monarch_py.daemon.server import Daemon
from monarch_py.demo.slowsource import SlowSource
from monarch_py.ipc import word
from monarch_py.ipc.catalog import CatalogReader
from monarch_py.native import Kind, State

MANY, SIZE = 40, 20_000
KIB = 1024
Factory = Callable[..., Session]

# Ways in which programs get all bytes of a file (READS), or only some of them (PARTS).
READS = {
    "read": "f = open(path, 'rb', 0)\nwhile f.read(8192): pass",
    "pread": "for at in range(0, size, 8192): os.pread(fd, 8192, at)",
    "readv": "while os.readv(fd, [bytearray(5000), bytearray(5000)]): pass",
    "preadv": "for at in range(0, size, 9000): os.preadv(fd, [bytearray(9000)], at)",
    "sendfile": "os.sendfile(os.open('/dev/null', os.O_WRONLY), fd, 0, size)",
    "mmap": "mmap.mmap(fd, 0, prot=mmap.PROT_READ).close()",
    "stream": "f = c.fopen(path, b'rb')\nc.fread(room, 1, size, f)\nc.fclose(f)",
}
PARTS = {
    "read": "open(path, 'rb', 0).read(4096)",
    "pread": "os.pread(fd, 4096, 0); os.pread(fd, 8, size - 8)",
    "mmap": "mmap.mmap(fd, 4096, prot=mmap.PROT_READ).close()",
    "stream": "f = c.fopen(path, b'rb')\nc.fread(room, 1, 4096, f)\nc.fclose(f)",
    "stat": "os.stat(path)",
}
PROGRAM = """
import ctypes, mmap, os, sys
c = ctypes.CDLL(None)
c.fopen.restype = ctypes.c_void_p
c.fopen.argtypes = [ctypes.c_char_p, ctypes.c_char_p]
c.fread.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_size_t, ctypes.c_void_p]
c.fclose.argtypes = [ctypes.c_void_p]
for path in map(os.fsencode, sys.argv[2:]):
    size = os.stat(path).st_size
    room = ctypes.create_string_buffer(size)
    fd = os.open(path, os.O_RDONLY) if 'fd' in sys.argv[1] else -1
    exec(sys.argv[1])
    if fd >= 0: os.close(fd)
"""


def present(session: Session) -> int:
    return int(session.status()["sources"][0]["present"])


def unused_files(session: Session) -> int:
    return int(session.status()["ahead"]["unused_files"])


def names_present(session: Session) -> set[str]:
    catalog = CatalogReader.open(session.paths, session.connection.ask("where")["generation"])
    files = np.flatnonzero(catalog.entries["kind"] == Kind.FILE)
    return {catalog.path(i) for i in files[word.state(catalog.words[files]) == State.PRESENT]}


def read(session: Session, *paths: Path, how: str = READS["read"]) -> None:
    session.python(PROGRAM, how, *paths)


def auto(session_factory: Factory, root: Path | list[Any], **settings: object) -> Session:
    session = session_factory(root, **{"prefetch": "auto", **settings}).start()
    session.wait_scanned()
    return session


@pytest.fixture
def flat(tmp_path: Path) -> Files:
    return Files(tmp_path / "source").add_many(MANY, SIZE)


def some(files: Files, count: int, first: int = 0) -> list[Path]:
    return [files.path(name) for name in list(files.digests)[first : first + count]]


# --- which directories --------------------------------------------------------------------------


def test_a_directory_of_which_some_files_were_read_is_filled(
    session_factory: Factory, flat: Files
) -> None:
    session = auto(session_factory, flat.root)
    read(session, *some(flat, NAMES))
    wait_until(lambda: present(session) == MANY, what="all copies")
    assert unused_files(session) == MANY - NAMES
    page = (Path(__file__).parents[2] / "docs" / "status.md").read_text()
    section = page.partition("\n## `ahead`\n")[2].partition("\n## ")[0]
    assert re.findall(r"^\| `(\w+)`", section, re.M) == list(session.status()["ahead"])
    said = f"Ahead: {MANY - NAMES} copies (703.1 KiB) that no program has opened yet"
    assert session.monarch("status").stdout.splitlines()[-1] == said
    check_all(session, flat)
    wait_until(lambda: unused_files(session) == 0, what="the opens")
    assert session.totals()["fills"] == MANY
    assert_quiet(session)
    # After `clear` nothing is filled until programs read again.
    session.forget()
    wait_until(lambda: not session.status()["dropping"], what="no copy")
    assert_quiet(session)
    assert (present(session), unused_files(session)) == (0, 0)
    read(session, *some(flat, NAMES, first=NAMES))
    wait_until(lambda: present(session) == MANY, what="all copies")


def test_however_they_were_read(session_factory: Factory, tmp_path: Path) -> None:
    sources = [Files(tmp_path / how).add_many(MANY, SIZE) for how in READS]
    session = auto(session_factory, [files.root for files in sources])
    for files, how in zip(sources, READS.values(), strict=True):
        read(session, *some(files, NAMES), how=how)

    def filled() -> list[str]:
        told = session.status()["sources"]
        return [Path(each["path"]).name for each in told if each["present"] == MANY]

    wait_until(lambda: filled() == list(READS), what="all copies")


def test_who_reads_a_part_of_each_file_has_none_filled_ahead(
    session_factory: Factory, tmp_path: Path
) -> None:
    files = Files(tmp_path / "source").add_many(MANY, MIB)
    session = auto(session_factory, files.root)
    for number, how in enumerate(PARTS.values()):
        read(session, *some(files, NAMES + 1, first=number * (NAMES + 1)), how=how)
    read(session, *some(files, NAMES - 1, first=MANY - NAMES))
    # The library does not see how much of a mapping or stream a program reads. So a file that is
    # mapped or opened as a stream is copied.
    copied = NAMES - 1 + (NAMES + 1) * len({"mmap", "stream"} & PARTS.keys())
    wait_until(lambda: present(session) == copied, what="copies of what was read")
    assert_quiet(session)
    assert present(session) == copied


def test_what_lies_beside_a_file_is_its_directory_or_all_below_one(
    session_factory: Factory, tmp_path: Path
) -> None:
    """Reads of four files in one directory make the daemon fill that directory. Reads in four
    subdirectories of a directory make the daemon fill everything below that directory."""
    files = Files(tmp_path / "source")
    for group in "ab":
        for label in range(6):
            files.add_many(6, 1000, prefix=f"{group}/{label}/f")
    files.add_many(6, 1000, prefix="a/f").add_many(6, 1000, prefix="f")
    session = auto(session_factory, files.root)

    def all_of(*prefixes: str) -> set[str]:
        return {name for name in files.digests if name.startswith(prefixes)}

    def expect(names: set[str]) -> None:
        wait_until(lambda: names_present(session) == names, what="the copies")
        assert_quiet(session)
        assert names_present(session) == names

    read(session, *(files.path(f"a/0/f0000{i}") for i in range(4)))
    expect(all_of("a/0/"))
    read(session, *(files.path(f"b/{i}/f00000") for i in range(3)))
    expect(all_of("a/0/") | {f"b/{i}/f00000" for i in range(3)})
    read(session, files.path("b/5/f00005"))
    expect(all_of("a/0/", "b/"))
    read(session, *(files.path(f"a/f0000{i}") for i in range(4)))
    expect(all_of("a/0/", "b/", "a/f"))


def test_directories_are_known_by_four_names() -> None:
    directories = Directories()

    def filled() -> list[tuple[int, str, bool]]:
        return [(*each.place, each.is_deep) for each in directories.filled]

    def note(source: int, *paths: str) -> bool:
        """Tells `directories` that these files were read. All paths lie in the same directory."""
        above = {os.path.dirname(path) for path in paths}
        names = [os.path.basename(path).encode() for path in paths]
        return directories.note((source, above.pop()), names)

    assert not any(note(0, "a/x/1") for _ in range(9))
    assert [note(0, f"a/x/{i}") for i in range(2, 5)] == [False, False, True]
    assert not note(0, "a/x/9")  # its directory is filled already
    assert not note(1, "a/x/9")
    assert [note(0, f"a/{i}/1") for i in "yzw"] == [False, False, True]
    assert filled() == [(0, "a", True)]  # `a` now includes a/x
    assert not note(0, "a/b/c/d")
    assert not note(0, "1", "2", "1", "2")
    assert note(0, "2", "3", "4")
    assert filled() == [(0, "", False), (0, "a", True)]
    assert not any(note(0, f"{d}/1/2/3/4") for d in "bc")
    assert note(0, "d/1")  # the fourth directory, beside a, b and c
    assert filled() == [(0, "", True)]


def test_what_the_scan_finds_later_joins(session_factory: Factory, tmp_path: Path) -> None:
    """If a long scan finds a file only after the daemon has begun to fill the file's directory,
    this file is filled too."""
    files = Files(tmp_path / "source").add_many(MANY, SIZE)
    settings = {"prefetch": "auto", "scan_rate": 30, "scan_threads": 1}
    session = session_factory(files.root, **settings).start()
    read(session, *some(files, NAMES))
    wait_until(lambda: unused_files(session) > 0, what="copies")
    assert not session.status()["scanned"]
    wait_until(lambda: present(session) == MANY, what="all copies")


# --- how much -----------------------------------------------------------------------------------


@contextmanager
def served_here(monkeypatch: pytest.MonkeyPatch, session: Session) -> Iterator[Daemon]:
    """Runs the daemon in this process, so that a test can change the daemon's limits."""
    monkeypatch.setenv("MONARCH_SHM", str(session.shm))
    session.paths.make()
    daemon = Daemon(load_config(session.config), session.paths)
    Control(daemon, session.paths).begin()
    thread = threading.Thread(target=daemon.run)
    thread.start()
    try:
        session.wait_scanned()
        yield daemon
    finally:
        daemon.stop_now()
        thread.join()


@pytest.fixture
def little(monkeypatch: pytest.MonkeyPatch) -> int:
    """Limits how many files of SIZE bytes the daemon fills ahead before programs use any of the
    copies. Returns this limit."""
    files = 5
    monkeypatch.setattr(unused, "BYTES_AT_FIRST", files * SIZE + 1)
    return files


def test_no_more_is_filled_ahead_than_may_lie_there_unused(
    monkeypatch: pytest.MonkeyPatch, session_factory: Factory, tmp_path: Path, little: int
) -> None:
    many = 200
    files = Files(tmp_path / "source").add_many(many, SIZE)
    session = session_factory(files.root, prefetch="auto")
    with served_here(monkeypatch, session) as daemon:
        used = NAMES

        def expect() -> None:
            ahead = little + unused.BYTES_FOR_EACH_READ * used
            wait_until(lambda: present(session) == used + ahead, what=f"{ahead} copies ahead")
            assert_quiet_here(daemon)
            assert (present(session), unused_files(session)) == (used + ahead, ahead)

        read(session, *some(files, NAMES))
        expect()
        read(session, *some(files, NAMES))  # reading them again adds nothing
        expect()
        # When programs use copies that were filled ahead, the daemon may fill more files ahead.
        names = sorted(names_present(session) - {path.name for path in some(files, NAMES)})
        read(session, *(files.path(name) for name in names[:6]))
        used += 6
        expect()
        assert session.totals()["fills"] == present(session)


def assert_quiet_here(daemon: Daemon) -> None:
    """Asserts that the daemon's engine is idle after some more turns of the loop."""
    turns = int(daemon.shared.control.heartbeat)
    wait_until(lambda: int(daemon.shared.control.heartbeat) >= turns + 3, what="some turns")
    assert daemon.filler.engine.idle


@pytest.fixture
def small(tmp_path: Path) -> list[dict[str, object]]:
    """A tier with room for a third of the files."""
    tier = tmp_path / "small"
    tier.mkdir()
    return [{"mount_point": tier, "max_storage_quota": MANY // 3 * 20480 + 40960}]


def wait_full(session: Session) -> int:
    """Waits until the tier has no room for one more file. Returns how many copies there are."""
    wait_until(lambda: session.status()["tiers"][0]["free_bytes"] < SIZE, what="a full tier")
    wait_until(lambda: session.status()["pending"] == 0, what="the end of the fills")
    return present(session)


def test_copies_that_nobody_used_give_way_to_what_programs_read(
    monkeypatch: pytest.MonkeyPatch,
    session_factory: Factory,
    flat: Files,
    small: list[dict[str, object]],
) -> None:
    """The daemon has filled a tier with copies that no program uses. A program then reads other
    files of the same directory, which would fit into the tier if the unused copies were dropped.
    When the program reads these files again, all of them get copies."""
    monkeypatch.setattr(unused, "ONE_USE_S", sized(0.4, 1.0))
    session = session_factory(flat.root, tiers=small, prefetch="auto")
    with served_here(monkeypatch, session) as daemon:
        give_way(session, daemon, flat)


def give_way(session: Session, daemon: Daemon, flat: Files) -> None:
    read(session, *some(flat, NAMES))
    own = some(flat, wait_full(session) - NAMES, first=MANY // 2)
    wanted = {path.name for path in own}
    assert wanted - names_present(session)
    read(session, *own)
    refused_at = time.monotonic()
    session.wait_idle()
    # The eviction of unused copies, and the fills that take their room, may still be under way.
    wait_until(
        lambda: (
            session.status()["sources"][0]["bypass"]
            == {"no_room": len(wanted - names_present(session))}
        ),
        what="a report of `no_room` for each file that is left out",
    )
    wait_until(lambda: time.monotonic() - refused_at > 2 * unused.ONE_USE_S, what="another use")
    read(session, *own)
    wait_until(lambda: wanted <= names_present(session), what="copies of what is read")
    assert_quiet_here(daemon)
    assert session.status()["sources"][0]["bypass"] == {}
    check_all(session, flat)


def test_opens_are_heard_of_before_the_first_copy_is_there(
    monkeypatch: pytest.MonkeyPatch, session_factory: Factory, flat: Files
) -> None:
    """The daemon begins to follow opens before it orders fills ahead. Otherwise, it would miss an
    open that comes as soon as a copy exists, and this copy would always count as unused."""
    session, heard = session_factory(flat.root, prefetch="auto"), []
    with served_here(monkeypatch, session) as daemon:
        fill_ahead = daemon.filler.requests.fill_ahead

        def fill(ids: Ids, ticket: str = "") -> None:
            if len(ids):
                heard.append(bool(daemon.shared.control.follow_opens))
            fill_ahead(ids, ticket)

        monkeypatch.setattr(daemon.filler.requests, "fill_ahead", fill)
        read(session, *some(flat, NAMES))
        wait_until(lambda: present(session) == MANY, what="all copies")
    assert heard and all(heard)


def test_what_no_tier_has_room_for_is_not_filled_ahead_and_read_once(
    session_factory: Factory, flat: Files, small: list[dict[str, object]]
) -> None:
    session = auto(session_factory, flat.root, tiers=small)
    read(session, *some(flat, NAMES))
    full = wait_full(session)
    assert_quiet(session)
    told = session.status()["sources"][0]
    assert (told["present"], told["absent"], told["bypass"]) == (full, MANY - full, {})
    # Reading the rest of the files starts no fills. So none of them is read from the source twice.
    rest = [path for path in some(flat, MANY) if path not in some(flat, NAMES)]
    random.Random(1).shuffle(rest)
    read(session, *rest)
    session.wait_idle()
    totals = session.totals()
    assert totals["fills"] == full
    # Readers may have handed over the first files. Then no fill reads them from the source.
    assert (full - NAMES) * SIZE <= totals["source_bytes_read_by_fills"] <= full * SIZE
    assert_quiet(session)


def test_a_file_larger_than_may_lie_there_unused_keeps_none_behind_it_waiting(
    session_factory: Factory, tmp_path: Path
) -> None:
    files = Files(tmp_path / "source").add_many(MANY, SIZE)
    for number in range(3):
        with files.path(f"f00010.large{number}").open("wb") as large:
            large.truncate(4 << 30)
    session = auto(session_factory, files.root)
    read(session, *some(files, NAMES))
    wait_until(lambda: present(session) == MANY, what="all copies but those of the large files")


# --- beside other orders ------------------------------------------------------------------------


def test_the_newest_directory_comes_first(
    monkeypatch: pytest.MonkeyPatch, session_factory: Factory, tmp_path: Path, little: int
) -> None:
    """If a program goes on to a second directory, the daemon fills files of this directory before
    it fills the rest of the first directory."""
    files = Files(tmp_path / "source")
    for directory in "ab":
        files.add_many(MANY, SIZE, prefix=f"{directory}/f")
    session = session_factory(files.root, prefetch="auto")
    with served_here(monkeypatch, session):

        def wait_for(read_files: int) -> tuple[int, int]:
            """Waits until as many files are filled as the limit allows. Returns how many copies
            each directory then has."""
            all_ = read_files + little + unused.BYTES_FOR_EACH_READ * read_files
            wait_until(lambda: present(session) == all_, what=f"{all_} copies")
            of_a = sum(name.startswith("a/") for name in names_present(session))
            return of_a, all_ - of_a

        read(session, *(files.path(f"a/f{i:05d}") for i in range(NAMES)))
        wait_for(NAMES)
        read(session, *(files.path(f"b/f{i:05d}") for i in range(NAMES)))
        of_a, of_b = wait_for(2 * NAMES)
        assert of_a < MANY
        used = [name for name in sorted(names_present(session)) if name.startswith("b/")][-3:]
        read(session, *(files.path(name) for name in used))
        assert wait_for(2 * NAMES + 3) == (of_a, of_b + 3 * unused.BYTES_FOR_EACH_READ + 3)


def test_files_are_filled_in_the_order_of_the_scan(session_factory: Factory, flat: Files) -> None:
    session = auto(session_factory, flat.root, shared_tpool_size=1)
    catalog = CatalogReader.open(session.paths, session.connection.ask("where")["generation"])
    files = np.flatnonzero(catalog.entries["kind"] == Kind.FILE)
    last = [flat.root / catalog.path(int(i)) for i in files[-NAMES:]]
    read(session, *last)
    wait_until(lambda: present(session) == MANY, what="all copies")
    numbers = word.copy(catalog.words[files[:-NAMES]])
    assert (np.diff(numbers.astype(np.int64)) > 0).all()


def test_what_a_command_gives_up_is_filled_ahead_all_the_same(
    session_factory: Factory, slow_factory: Callable[..., SlowSource]
) -> None:
    slow = slow_factory()
    files = Files(slow.backing).add_many(MANY, SIZE)
    session = auto(session_factory, slow.mountpoint, shared_tpool_size=1)
    slow.latency(open=0.02)
    names = list(files.digests)[:NAMES]
    # The daemon fills a directory ahead only if the library reports reads of files there. The
    # library does not report reads of files that have copies. So `warm` must leave out the files
    # that the program reads.
    catalog = CatalogReader.open(session.paths, session.connection.ask("where")["generation"])
    others = [entry for entry in range(MANY + 1) if catalog.path(entry) not in names]
    session.connection.ask("warm", entries=others, ticket="t")
    read(session, *(slow.mountpoint / name for name in names))
    assert session.connection.ask("take_back", ticket="t")["files"] > 0
    wait_until(lambda: present(session) == MANY, what="all copies")


def test_a_plan_has_an_order_of_its_own(
    monkeypatch: pytest.MonkeyPatch, session_factory: Factory, flat: Files
) -> None:
    session = session_factory(flat.root, prefetch="auto")
    with served_here(monkeypatch, session) as daemon:
        with monkeypatch.context() as followed:
            followed.setattr(PlanManager, "is_active", property(lambda _: True))
            read(session, *some(flat, NAMES))
            wait_until(lambda: present(session) == NAMES, what="copies of the opened files")
            assert_quiet_here(daemon)
            assert present(session) == NAMES
        wait_until(lambda: present(session) == MANY, what="all copies")


# Runs while no other test runs, because fills from a fast source wait for an idle core.
@pytest.mark.usefixtures("alone")
def test_each_node_fills_ahead_what_it_keeps(tmp_path: Path, flat: Files) -> None:
    """From the source, each node fills only the files that it keeps. From the other node, it
    fetches as many of that node's files as it has room for."""
    quotas: list[int] = [MANY * 20480 * 3 // 4] * 2
    with Nodes(
        tmp_path, [flat.root] * 2, quotas, prefetch="auto", handover_size=0
    ).start() as nodes:
        one, other = nodes.all
        read(one, *some(flat, NAMES))
        kept = wait_until(lambda: int(one.nodes()["kept_files"]), what="the nodes' agreement")
        wait_until(
            lambda: len(one.copies()) == kept, timeout=60, what="the files that the node keeps"
        )
        assert_quiet(one)
        assert len(one.copies()) == kept < MANY
        given = len(other.copies())
        assert 0 < given < MANY
        read(other, *some(flat, NAMES, first=NAMES))
        kept = int(other.nodes()["kept_files"])
        wait_until(
            lambda: len(other.copies()) == kept > given, what="the files that the other node keeps"
        )
        assert sum(node.totals()["source_bytes_read_by_fills"] for node in nodes.all) == MANY * SIZE


@pytest.mark.parametrize("settings", [{"prefetch": "on_demand"}, {"switch_file": "off"}])
def test_nothing_is_filled_ahead_unless_it_is_wanted(
    session_factory: Factory, flat: Files, tmp_path: Path, settings: dict[str, str]
) -> None:
    if "switch_file" in settings:
        settings = {"switch_file": str(tmp_path / "off")}
        (tmp_path / "off").touch()
    session = auto(session_factory, flat.root, **settings)
    read(session, *some(flat, 2 * NAMES))
    expected = 0 if "switch_file" in settings else 2 * NAMES
    wait_until(lambda: present(session) == expected, what="copies of the opened files")
    assert_quiet(session)
    assert present(session) == expected


def test_excluded_files_are_left_out(session_factory: Factory, tmp_path: Path) -> None:
    files = Files(tmp_path / "source").add_many(MANY, SIZE).add_many(MANY, SIZE, prefix="g")
    source = {"path": str(files.root), "exclude": ["g*"]}
    session = auto(session_factory, [source])
    read(session, *(files.path(f"f{i:05d}") for i in range(NAMES)))
    wait_until(lambda: present(session) == MANY, what="the copies")
    assert_quiet(session)
    assert session.status()["sources"][0]["bypass"] == {"excluded": MANY}
