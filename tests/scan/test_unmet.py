"""Files that programs open before the scan has found them."""

from __future__ import annotations

import threading
from collections.abc import Callable

import pytest
from support.files import Files
from support.session import Session, wait_until

from monarch_py.daemon.scan.unlisted import FEW, THREADS, WAITING, UnlistedFiles
from monarch_py.demo.slowsource import SlowSource
from monarch_py.ipc.catalog import CatalogReader

# The source answers each request after this time [s]. The test's program ends earlier, even on a
# busy machine.
LATENCY_S = 1.5


def test_the_loop_turns_while_the_source_is_asked(
    session_factory: Callable[..., Session], slow_factory: Callable[..., SlowSource]
) -> None:
    slow = slow_factory()
    session = session_factory(slow.mountpoint).start()
    session.wait_scanned()
    Files(slow.backing).add("late", 1000)
    slow.latency(getattr=LATENCY_S)

    def is_known() -> bool:
        generation = session.connection.ask("where")["generation"]
        try:
            catalog = CatalogReader.open(session.paths, generation)
        except FileNotFoundError:  # the daemon has published a newer catalog since it answered
            return False
        return catalog.find(0, "late") >= 0

    session.python("import sys; open(sys.argv[1]).close()", slow.mountpoint / "late")
    # The daemon's loop answers while the source is still being asked about `late`.
    assert not is_known()
    wait_until(is_known, what="the file")


OPENS = """
import ctypes, os, sys
libc = ctypes.CDLL(None)
libc.fopen.restype = libc.fopen64.restype = libc.freopen.restype = ctypes.c_void_p
null = ctypes.c_void_p(libc.fopen(b"/dev/null", b"r"))
ways = {
    "open": lambda path: os.open(path, os.O_RDONLY),
    "open_at": lambda path: os.open(b"late", os.O_RDONLY, dir_fd=os.open(".", os.O_RDONLY)),
    "open_relative": lambda path: os.open(b"late", os.O_RDONLY),
    "fopen": lambda path: libc.fopen(path, b"r"),
    "fopen64": lambda path: libc.fopen64(path, b"rb"),
    "fopen_relative": lambda path: libc.fopen(b"late", b"r"),
    "freopen": lambda path: libc.freopen(path, b"r", null),
}
for way in sys.argv[2:]:
    os.chdir(os.path.join(sys.argv[1], way))
    opened = ways[way](os.path.join(os.getcwdb(), b"late"))
    if way.startswith("open"):
        assert len(os.read(opened, 2000)) == 1000
        os.close(opened)
    else:
        stream, memory = ctypes.c_void_p(opened), ctypes.create_string_buffer(2000)
        assert libc.fread(memory, 1, 2000, stream) == 1000
        libc.fclose(stream)
"""
WAYS = ("open", "open_at", "open_relative", "fopen", "fopen64", "fopen_relative", "freopen")


def test_every_way_to_open_tells_of_a_file(
    session_factory: Callable[..., Session], slow_factory: Callable[..., SlowSource]
) -> None:
    """The daemon must learn of a file when a program opens it, whichever call the program uses.
    Each way to open has a directory of its own. If all the files were in one directory, the scan
    would list this directory and so find the files without the opens."""
    slow = slow_factory()
    for way in WAYS:
        Files(slow.backing).add(f"{way}/early", 1000)
    session = session_factory(slow.mountpoint).start()
    session.wait_scanned()
    for way in WAYS:
        Files(slow.backing).add(f"{way}/late", 1000)
    slow.latency(open=0.01)
    session.python(OPENS, slow.mountpoint, *WAYS)

    def unknown() -> list[str]:
        generation = session.connection.ask("where")["generation"]
        catalog = CatalogReader.open(session.paths, generation)
        return [way for way in WAYS if catalog.find(0, f"{way}/late") < 0]

    wait_until(lambda: not unknown(), what="all files")


class Source:
    """A source that answers one look-up each time `lets` is released."""

    def __init__(self) -> None:
        self.lets = threading.Semaphore(0)
        self.asked: list[str] = []
        self.rung = threading.Semaphore(0)
        self.unmet: UnlistedFiles[str] = UnlistedFiles(self.look, self.rung.release)

    def look(self, number: int, path: str) -> str | None:
        self.asked.append(path)
        assert self.lets.acquire(timeout=30)
        return None if path.startswith("no") else f"{number}:{path}"


def nowhere(number: int, path: str) -> int:
    return -1


def test_few_are_asked_for_at_a_time_and_what_is_none_is_forgotten() -> None:
    source = Source()
    unmet = source.unmet
    unmet.add((0, name) for name in ("a", "none", "b", "c", "d", "e"))
    unmet.ask(is_scanned=True)
    wait_until(lambda: len(source.asked) == THREADS, what="the threads")
    unmet.add([(0, "a")])  # `a` is being looked up already, and must not be looked up twice
    unmet.ask(is_scanned=True)
    assert unmet.take_answers() == []
    for _ in range(THREADS):
        source.lets.release()
        assert source.rung.acquire(timeout=30)
    assert sorted(unmet.take_answers()) == [((0, n), f"0:{n}") for n in ("a", "b", "c")]
    unmet.ask(is_scanned=True)
    for _ in range(2):
        source.lets.release()
        assert source.rung.acquire(timeout=30)
    assert sorted(unmet.take_answers()) == [((0, n), f"0:{n}") for n in ("d", "e")]
    assert len(unmet) == 0
    unmet.close()


def test_a_scan_under_way_may_meet_them_first() -> None:
    source = Source()
    unmet = source.unmet
    unmet.add([(0, "a"), (0, "b")])
    unmet.ask(is_scanned=False)
    assert unmet.take_met(lambda _, path: {"a": 7}.get(path, -1), is_scanned=False) == [7]

    def is_asked() -> bool:
        unmet.ask(is_scanned=False)
        return source.asked == ["b"]

    wait_until(is_asked, what="the end of the scan's time")
    source.lets.release()
    assert source.rung.acquire(timeout=30)
    assert unmet.take_met(nowhere, is_scanned=False) == []
    assert unmet.take_answers() == [((0, "b"), "0:b")]
    unmet.close()


def test_many_that_wait_are_looked_up_when_their_time_has_come() -> None:
    source = Source()
    unmet = source.unmet
    looked: list[str] = []

    def find(_: int, path: str) -> int:
        looked.append(path)
        return 1

    unmet.add((0, str(number)) for number in range(FEW + 1))
    assert unmet.take_met(find, is_scanned=False) == [] == looked
    met = wait_until(
        lambda: unmet.take_met(find, is_scanned=False), what="the time of the waiting files"
    )
    assert len(met) == len(looked) == FEW + 1
    unmet.add([(0, "later")])
    assert unmet.take_met(find, is_scanned=False) == [1], "one file alone is answered at once"
    unmet.close()


def test_what_waits_is_bounded() -> None:
    source = Source()
    source.unmet.add((0, str(number)) for number in range(2 * WAITING))
    assert len(source.unmet) == WAITING
    source.unmet.close()


def test_nobody_rings_after_the_end() -> None:
    source = Source()
    source.unmet.add([(0, "a")])
    source.unmet.ask(is_scanned=True)
    wait_until(lambda: source.asked == ["a"], what="the thread")
    source.unmet.close()
    source.lets.release()
    assert not source.rung.acquire(timeout=0.2)


def test_looks_that_fail_keep_no_other_waiting() -> None:
    def look(number: int, path: str) -> str:
        if path.startswith("bad"):
            raise ValueError(path)
        return path

    unmet: UnlistedFiles[str] = UnlistedFiles(look, lambda: None)
    unmet.add([*((0, f"bad{i}") for i in range(2 * THREADS)), (0, "good")])
    answers: list[tuple[tuple[int, str], str]] = []

    def is_answered() -> bool:
        unmet.ask(is_scanned=True)
        answers.extend(unmet.take_answers())
        return bool(answers)

    wait_until(is_answered, what="the answer about the good file")
    assert answers == [((0, "good"), "good")]
    unmet.close()


def test_threads_that_cannot_be_started_are_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    start, refuses = threading.Thread.start, [True] * 3

    def sometimes(thread: threading.Thread) -> None:
        if refuses:
            refuses.pop()
            raise RuntimeError("can't start new thread")
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", sometimes)
    unmet: UnlistedFiles[str] = UnlistedFiles(lambda _, path: path, lambda: None)
    unmet.add([(0, "a")])
    for _ in range(3):
        unmet.ask(is_scanned=True)
        assert unmet.take_answers() == []
    unmet.ask(is_scanned=True)
    wait_until(lambda: bool(unmet.take_answers()), what="the answer")
    unmet.close()
