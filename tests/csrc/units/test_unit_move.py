"""Tests in which cases the library replaces a mapping of a source's file by a mapping of its copy,
and in which cases it keeps the mapping as it is."""

from __future__ import annotations

import ctypes
import mmap
import os
import resource
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from csrc.units.place import Place, open_descriptors
from csrc.units.serving import SECOND, Served
from support.session import wait_until

from monarch_py.native import State

PAGE = mmap.PAGESIZE
SOURCE, COPY = b"S" * 4 * PAGE, b"C" * 4 * PAGE
SHARED, PRIVATE, ANONYMOUS, FIXED = 1, 2, 0x20, 0x10
SOON, LATER, NONE = 10_000_000, 20_000_000, 0  # until the next look [ns]
WAITING, REPLACING = 1, 2
SEQUENTIAL = 2
TRIES = 500
libc = ctypes.CDLL(None)
libc.mmap.restype = ctypes.c_size_t
libc.mmap.argtypes = [*[ctypes.c_size_t] * 2, *[ctypes.c_int] * 3, ctypes.c_size_t]
libc.munmap.argtypes = [ctypes.c_size_t] * 2
libc.mprotect.argtypes = [*[ctypes.c_size_t] * 2, ctypes.c_int]


class Mapped:
    """A mapping of a source's file. Once the file has a copy, the library replaces the mapping."""

    def __init__(self, lib: Any, served: Served) -> None:
        self.lib, self.served, self.at, self.n = lib, served, 0, 0
        self.path = served.root / "f"

    def wait(self, flags: int = SHARED, first: int = 0, pages: int = 4, advice: int = 0) -> None:
        self.end()
        self.n = pages * PAGE
        with self.path.open("rb") as file:
            self.at = libc.mmap(0, self.n, mmap.PROT_READ, flags, file.fileno(), first * PAGE)
        self.lib.move_forget()
        number = self.served.id("f")
        self.lib.move_wait(self.served.s, number, self.at, self.n, first * PAGE, flags, advice)
        assert self.lib.table_waiting() == 1

    def look(self) -> int:
        """Looks at the mapping as the replacing thread does. Returns the time until the next look
        [ns], or NONE if nothing waits any more."""
        before = open_descriptors()
        ns = int(self.lib.move_look())
        assert open_descriptors() <= before
        assert not self.lib.move_is_locked()
        assert (ns == NONE) == (self.lib.table_waiting() == 0)
        return ns

    def content(self) -> bytes:
        return ctypes.string_at(self.at, self.n)

    def lines(self) -> list[str]:
        """Returns the lines of /proc/self/maps that describe mappings of the source's file or of a
        copy."""
        text = Path("/proc/self/maps").read_text().splitlines()
        return [line for line in text if str(self.served.root.parent) in line]

    def end(self) -> None:
        if self.n:
            libc.munmap(self.at, self.n)
        self.n = 0

    def promotions(self) -> int:
        return sum(int(one.promotions) for one in self.served.clients.stats)


@pytest.fixture
def mapped(lib: Any, place: Place, tmp_path: Path) -> Iterator[Mapped]:
    root, tier = tmp_path / "data", tmp_path / "tier"
    root.mkdir()
    tier.mkdir(mode=0o700)
    (root / "f").write_bytes(SOURCE)
    served = Served(lib, place, root, tier)
    lib.move_are_guarded()  # forgets the descriptors that tests in other files have left
    one = Mapped(lib, served)
    yield one
    one.end()
    lib.move_forget()
    assert lib.move_are_guarded()
    served.end()


def test_a_mapping_becomes_one_of_the_complete_copy(mapped: Mapped) -> None:
    """The new mapping contains the same bytes of the file as the old one. It is shared or private
    as before, and has the advice that the program gave."""
    copy = mapped.served.copy("f", b"".join(bytes([i]) * PAGE for i in b"0123"))
    done = 0
    for flags in (SHARED, PRIVATE):
        for first, pages in ((0, 4), (1, 1), (2, 2)):
            for advice in (0, SEQUENTIAL):
                mapped.wait(flags, first, pages, advice)
                mapped.lib.move_helper(1)
                assert mapped.look() == NONE
                assert mapped.content() == copy.read_bytes()[first * PAGE :][: pages * PAGE]
                (line,) = mapped.lines()
                kind = "s" if flags == SHARED else "p"
                assert line.split()[1] == f"r--{kind}" and line.endswith(str(copy))
                smaps = Path("/proc/self/smaps").read_text().partition(str(copy))[2]
                vm_flags = smaps.partition("VmFlags:")[2].partition("\n")[0].split()
                assert ("sr" in vm_flags) == bool(advice)
                done += 1
                assert mapped.promotions() == done
                assert not mapped.lib.move_helper(0), "the thread ends"


@pytest.mark.parametrize("state", [State.ABSENT, State.WANTED, State.FILLING])
def test_a_mapping_waits_while_its_copy_is_made(mapped: Mapped, state: State) -> None:
    mapped.wait()
    mapped.served.entry("f").word = state
    mapped.lib.move_helper(1)
    assert mapped.look() == (SOON if state == State.FILLING else LATER)
    assert mapped.lib.move_helper(0) and mapped.content() == SOURCE
    mapped.served.copy("f", COPY)
    assert mapped.look() == NONE and mapped.content() == COPY


def test_a_mapping_waits_while_monarch_is_off_or_another_thread_has_it(mapped: Mapped) -> None:
    mapped.served.copy("f", COPY)
    mapped.wait()
    mapped.served.control.off = 1
    assert mapped.look() == LATER
    mapped.served.control.off = 0
    mapped.lib.table_set_state(0, REPLACING)
    assert mapped.look() == LATER and mapped.content() == SOURCE
    mapped.lib.table_set_state(0, WAITING)
    assert mapped.look() == NONE and mapped.content() == COPY


CASES = ["bypass", "version", "changed", "closed", "no_session", "other_session", "silent",
         "size", "inode", "device", "link", "directory", "locked"]  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_a_mapping_that_can_have_no_copy_stays_on_the_source(mapped: Mapped, case: str) -> None:
    """The library stops looking for a copy once there is no hope that one can be mapped."""
    served, lib = mapped.served, mapped.lib
    copy = served.copy("f", COPY + b"x" if case == "size" else COPY)
    entry = served.entry("f")
    mapped.wait()
    if case == "bypass":
        entry.word = State.BYPASS
    elif case == "version":
        entry.version = 2
    elif case == "changed":
        served.known.mark_changed(mapped.path)
    elif case == "closed":
        served.control.state = 2
    elif case == "no_session":
        lib.move_leave(lib.served_none())
    elif case == "other_session":
        lib.move_leave(other := lib.served_other(served.s))
    elif case == "silent":
        lib.move_silent_for(served.s, 59 * SECOND)
        served.control.off = 1
        assert mapped.look() == LATER
        served.control.off = 0
        lib.move_silent_for(served.s, 60 * SECOND)
    elif case == "inode":
        setattr(entry, "copy_ino", entry.copy_ino + 1)  # noqa: B010
    elif case == "device":
        served.control.tier[0].dev += 1
    elif case in ("link", "directory"):
        copy.unlink()
        copy.mkdir() if case == "directory" else copy.symlink_to(mapped.path)
        setattr(entry, "copy_ino", copy.lstat().st_ino)  # noqa: B010
    elif case == "locked":
        found = copy.stat()
        lib.handover_note_locks(found.st_dev, found.st_ino)
    assert mapped.look() == NONE
    assert mapped.content() == SOURCE and mapped.promotions() == 0
    lib.move_leave(served.s)
    if case == "other_session":
        lib.served_free(other)


def test_a_daemon_whose_heart_beats_is_waited_for(mapped: Mapped) -> None:
    mapped.wait()
    mapped.lib.move_silent_for(mapped.served.s, 100 * SECOND)
    mapped.served.control.heartbeat += 1
    assert mapped.look() == LATER


@pytest.mark.parametrize("case", ["missing", "descriptors"])
def test_a_copy_that_cannot_be_opened_is_tried_again(mapped: Mapped, case: str) -> None:
    """The library tries 500 times to open the copy. After that, the mapping stays on the source."""
    copy = mapped.served.copy("f", COPY)
    mapped.wait()
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if case == "missing":
        copy.rename(copy.with_name("hidden"))
    free = os.dup(0)
    os.close(free)
    if case == "descriptors":
        resource.setrlimit(resource.RLIMIT_NOFILE, (free, hard))
    try:
        results = [int(mapped.lib.move_look()) for _ in range(3)]
        tries = mapped.lib.move_tries(TRIES - 2)
        results += [int(mapped.lib.move_look()) for _ in range(2)]
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert tries == 3
    assert results == [LATER] * 4 + [NONE]
    assert mapped.content() == SOURCE


@pytest.mark.parametrize("case", ["other", "writable", "gap", "anonymous"])
def test_memory_that_is_no_longer_the_files_is_left_alone(mapped: Mapped, case: str) -> None:
    """The program may have changed a mapping by a system call that the library did not see. Then
    the library does not replace the mapping."""
    mapped.served.copy("f", COPY)
    mapped.wait(PRIVATE)
    page = mapped.at + PAGE
    if case == "other":
        with Path(__file__).open("rb") as file:
            libc.mmap(page, PAGE, mmap.PROT_READ, PRIVATE | FIXED, file.fileno(), 0)
    elif case == "writable":
        libc.mprotect(page, PAGE, mmap.PROT_READ | mmap.PROT_WRITE)
        ctypes.memset(page, ord("W"), 1)
    elif case == "anonymous":
        libc.mmap(page, PAGE, mmap.PROT_READ, PRIVATE | FIXED | ANONYMOUS, -1, 0)
    else:
        libc.munmap(page, PAGE)
    before = mapped.lines()
    assert mapped.look() == NONE
    assert mapped.lines() == before and mapped.promotions() == 0
    if case == "gap":  # by now, other memory may be at the addresses of the unmapped page
        libc.munmap(mapped.at, PAGE)
        libc.munmap(page + PAGE, 2 * PAGE)
        mapped.n = 0


@pytest.mark.parametrize(
    ("mmap_call", "mremap_call", "is_moved"), [(1, 0, False), (2, 0, True), (2, 1, False)]
)
def test_without_memory_for_a_mapping_the_old_one_stays(
    mapped: Mapped, mmap_call: int, mremap_call: int, is_moved: bool
) -> None:
    """The library maps the copy at another address first, and then again over the old mapping. If
    the kernel has no memory for the second mapping, the library moves the first one over the old
    mapping. If that fails too, the old mapping stays and goes on waiting."""
    copy = mapped.served.copy("f", COPY)
    mapped.wait()
    mapped.lib.move_fail(mmap_call, mremap_call)
    assert mapped.look() == (NONE if is_moved else LATER)
    assert mapped.content() == (COPY if is_moved else SOURCE)
    assert len(mapped.lines()) == 1, "nothing else is mapped"
    assert mapped.lib.move_tries(-1) == 1
    mapped.lib.move_fail(0, 0)
    if not is_moved:
        assert mapped.look() == NONE
    assert mapped.content() == copy.read_bytes()


def test_a_slot_is_not_taken_once_the_lock_is_given_up(mapped: Mapped) -> None:
    mapped.wait()
    mapped.lib.move_lose(1)
    assert mapped.lib.move_take(0) == 0
    mapped.lib.move_lose(0)
    assert mapped.lib.move_take(0) == 1


def test_only_the_slot_that_was_seen_is_taken_or_given_up(mapped: Mapped) -> None:
    """Another thread may have changed the slot since this thread looked at it. The slot is then
    neither taken nor given up."""
    lib = mapped.lib
    mapped.wait()
    lib.move_drop(1, 1)
    assert lib.table_waiting() == 1 and lib.move_tries(-1) == 0
    lib.move_drop(0, 0)
    assert lib.table_waiting() == 1 and lib.move_tries(TRIES - 1) == 1
    assert not lib.move_take(1)
    assert lib.move_take(0) and not lib.move_take(0)
    lib.move_drop(0, 1)
    assert lib.table_waiting() == 1, "it is being replaced"
    lib.table_set_state(0, WAITING)
    lib.move_drop(0, 0)
    assert lib.table_waiting() == 0
    assert not lib.move_take(0)


def test_a_thread_replaces_the_mappings_until_none_waits(mapped: Mapped) -> None:
    """The thread that replaces mappings must not handle the program's signals. It blocks all
    signals but one: the signal with which libc's setuid interrupts all threads."""
    lib = mapped.lib
    mapped.wait()
    assert lib.move_start() == 1
    try:
        wait_until(lib.move_thread, what="the thread's number")
        task = Path(f"/proc/self/task/{lib.move_thread()}")
        wait_until(
            lambda: (task / "comm").read_text() == "monarch-maps\n", what="the thread's name"
        )
        status = dict(line.split(":\t", 1) for line in (task / "status").read_text().splitlines())
        setxid, unblockable = 33, (9, 19)  # SIGKILL and SIGSTOP
        blocked = ~sum(1 << (one - 1) for one in (setxid, *unblockable))
        assert int(status["SigBlk"], 16) == blocked & (2**64 - 1)
        assert mapped.content() == SOURCE and lib.move_has_helper()
    finally:
        mapped.served.copy("f", COPY)
        wait_until(lambda: not task.exists(), what="the end of the thread")
    assert mapped.content() == COPY
    assert not lib.move_has_helper() and lib.table_waiting() == 0
