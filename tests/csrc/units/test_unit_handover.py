"""Tests what the library does after a program has read a file at the source: when it hands the
file's descriptor over to the daemon, and what it does in other cases."""

from __future__ import annotations

import os
import shutil
import socket
import struct
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from csrc.units.loading import ffi
from csrc.units.place import Place, open_descriptors
from csrc.units.serving import Served

from monarch_py.native import SessionState, State
from monarch_py.native import lib as native

DIRECT, HANDED, FORKED, SHARED = 1 << 62, 1 << 63, 1 << 61, 2
UNIT, CLAIMS, SOCKETS = native.MONARCH_UNIT, native.MONARCH_CLAIMS, native.MONARCH_HANDOVER_SOCKETS
SIZE = 1000
SECOND = 10**9


class Handed(NamedTuple):
    """A message that hands a descriptor over to the daemon.

    number : number of the file
    is_read : whether the program has read the file to its end
    path : path of the file if the file has no entry, otherwise empty
    inode : inode of the file to which the descriptor in the message refers
    """

    number: int
    is_read: bool
    path: str
    inode: int


class Readers:
    """A source with the file f, which has no copy yet. The test acts as the daemon: it receives
    handovers at the daemon's sockets."""

    def __init__(self, lib: Any, place: Place, root: Path, tier: Path) -> None:
        self.lib, self.path = lib, root / "f"
        root.mkdir()
        tier.mkdir(mode=0o700)
        self.path.write_bytes(b"x" * SIZE)
        self.served = Served(lib, place, root, tier)
        self.s, self.clients, self.entry = (
            self.served.s,
            self.served.clients,
            self.served.entry("f"),
        )
        self.entry.word, self.served.control.handed_bytes = State.ABSENT, 64 * UNIT
        self.id = self.served.id("f")
        self.made: list[int] = []
        self.sockets: list[socket.socket] = []
        at = os.open(place.directory, os.O_PATH)
        for i in range(SOCKETS):
            one = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK)
            one.bind(f"/proc/self/fd/{at}/handovers.{i}")
            self.sockets.append(one)
        os.close(at)
        self.directory = place.directory
        self.before = open_descriptors()

    def open(self, flags: int = DIRECT, path: Path | None = None) -> int:
        fd = os.open(path or self.path, os.O_RDONLY)
        self.made.append(fd)
        self.lib.track_track(self.s, fd, self.id, DIRECT)
        if extra := flags & ~DIRECT:
            self.lib.track_set(fd, self.lib.track_word(fd) | extra)
        self.lib.claims_file(self.s, self.id)
        self.lib.progress_begin_again(self.id)
        return fd

    def open_unmet(self, path: Path) -> int:
        """Opens a file that has no entry."""
        fd = os.open(path, os.O_RDONLY)
        self.made.append(fd)
        assert self.lib.handover_read_unmet(self.s, fd)
        return fd

    def read(self, fd: int, n: int, at: int = -1) -> None:
        """Acts as if a program had read `n` bytes at the offset `at`, or at the descriptor's own
        offset if `at` is -1."""
        if at < 0:
            os.lseek(fd, n, os.SEEK_CUR)
        self.lib.handover_note_read(fd, n, at)

    def close(self, fd: int) -> None:
        self.lib.handover_close(fd)

    def handed(self) -> list[Handed]:
        """Returns the messages that have come since the last call."""
        found = []
        for i, one in enumerate(self.sockets):
            while True:
                try:
                    message, fds, _, _ = socket.recv_fds(one, 4096, 4)
                except BlockingIOError:
                    break
                number, is_read = struct.unpack_from("QI", message)
                assert number % SOCKETS == i and len(fds) == 1
                path = ""
                if len(message) > self.lib.handover_head(0):
                    n = struct.unpack_from("I", message, self.lib.handover_head(1) - 4)[0]
                    path = message[self.lib.handover_head(1) :][:n].decode()
                found.append(Handed(number, bool(is_read), path, os.fstat(fds[0]).st_ino))
                os.close(fds[0])
        return found

    def is_wanted(self) -> bool:
        """Returns whether a fill of f was requested since the last call."""
        word, bit = self.id // 64, 1 << self.id % 64
        found = bool(self.clients.wanted.word[word] & bit)
        self.clients.wanted.word[word] = 0
        return found

    def is_claimed(self, number: int | None = None) -> bool:
        number = self.id if number is None else number
        return bool(self.clients.claim[number % CLAIMS])

    def is_in_transit(self) -> bool:
        claim = int(self.clients.claim[self.id % CLAIMS])
        return bool(self.lib.claims_is_in_transit(claim, self.lib.shared_now()))

    def is_handed(self, fd: int) -> bool:
        return bool(self.lib.track_word(fd) & HANDED)

    def stop(self) -> None:
        """Makes the daemon take no more handovers."""
        for one in self.sockets:
            one.close()
        self.sockets = []


@pytest.fixture(params=["short", "long"])
def readers(
    lib: Any, place: Place, tmp_path: Path, request: Any, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Readers]:
    """If the parameter is "long", the paths of the daemon's sockets are too long for a socket's
    address."""
    shm = Path(tempfile.mkdtemp(prefix="m", dir="/tmp"))
    if request.param == "long":
        shm = shm / ("l" * 100)
        shm.mkdir()
    monkeypatch.setenv("MONARCH_SHM", str(shm))
    place.directory = Path(os.fsdecode(ffi.string(lib.place_of(bytes(place.config)))))
    lib.track_forget()
    lib.backing_forget()
    lib.progress_forget()
    lib.locked_forget()
    one = Readers(lib, place, tmp_path / "data", tmp_path / "tier")
    lib.track_number(one.s, 0, 1)
    yield one
    assert one.handed() == []
    for fd in one.made:
        os.close(fd)
    if one.sockets:
        assert open_descriptors() == one.before
    one.stop()
    one.served.end()
    lib.track_forget()
    lib.locked_forget()
    shutil.rmtree(shm if request.param == "short" else shm.parent)


def test_a_file_that_was_read_to_its_end_is_handed_over(readers: Readers) -> None:
    """The file is handed over once, in whatever order the program reads its parts. The claim lasts
    until the daemon has closed the descriptor."""
    fd = readers.open()
    readers.read(fd, 400)
    readers.read(fd, 599, 401)
    assert readers.handed() == [] and readers.is_claimed() and not readers.is_in_transit()
    readers.read(fd, 1)
    inode = readers.path.stat().st_ino
    assert readers.handed() == [Handed(readers.id, True, "", inode)]
    assert readers.is_handed(fd) and readers.is_in_transit() and not readers.is_wanted()
    readers.read(fd, SIZE, 0)
    assert not readers.is_handed(fd), "the copy will serve further reads"
    readers.close(fd)


@pytest.mark.parametrize(
    ("n", "is_sent", "is_wanted"), [(0, False, True), (1, False, False), (499, False, False),
                                    (500, True, False), (999, True, False)],
)  # fmt: skip
def test_at_its_close_a_file_of_which_half_was_read_is_handed_over(
    readers: Readers, n: int, is_sent: bool, is_wanted: bool
) -> None:
    """If the library has seen no read at all, it requests a copy, because the program may have read
    the file unseen. If it has seen reads, but of less than half of the file, the file is not worth
    a copy now. The claim ends at the close, unless the descriptor was handed over."""
    fd = readers.open()
    readers.read(fd, n)
    readers.close(fd)
    inode = readers.path.stat().st_ino
    assert readers.handed() == [Handed(readers.id, False, "", inode)] * is_sent
    assert readers.is_wanted() == is_wanted
    assert readers.is_claimed() == readers.is_in_transit() == is_sent


def test_reads_that_the_library_has_not_seen_move_the_offset(readers: Readers) -> None:
    """The library does not see some reads, such as libc's reads through a duplicate of the
    descriptor. When the descriptor is closed, its offset shows how much was read."""
    for flags in (0, SHARED):
        fd = readers.open(DIRECT | flags)
        os.lseek(fd, SIZE, os.SEEK_SET)
        readers.close(fd)
        found = readers.handed()
        assert [one.is_read for one in found] == [True]
        readers.lib.claims_end(readers.s, readers.id)
    fd = readers.open(DIRECT | SHARED)
    os.lseek(fd, 700, os.SEEK_SET)
    readers.read(fd, 10, 0)
    readers.close(fd)
    assert [one.is_read for one in readers.handed()] == [False]
    readers.lib.claims_end(readers.s, readers.id)


@pytest.mark.parametrize("case", ["forked", "locked", "stopped"])
def test_a_descriptor_that_must_not_be_sent_leads_to_a_fill(readers: Readers, case: str) -> None:
    """Instead of sending the descriptor, the library requests a fill in three cases: the open file
    may be shared with a forked child; the file may have locks; the daemon takes no handovers."""
    fd = readers.open(DIRECT | (FORKED if case == "forked" else 0))
    if case == "locked":
        readers.lib.locked_note(fd)
    elif case == "stopped":
        readers.stop()
    readers.read(fd, SIZE)
    assert readers.handed() == [] and readers.is_wanted() and not readers.is_in_transit()


def test_only_one_descriptor_of_a_file_is_sent(readers: Readers) -> None:
    """While one descriptor is on its way to the daemon, the library does nothing about a second
    descriptor of the same file. If another file's claim occupies the slot that this file's claim
    needs, the library sends no descriptor, and asks the daemon to fill this file."""
    first, second = readers.open(), readers.open()
    readers.read(first, SIZE)
    assert len(readers.handed()) == 1
    readers.lib.progress_begin_again(readers.id)
    readers.read(second, SIZE)
    assert readers.handed() == [] and not readers.is_wanted() and readers.is_in_transit()
    readers.lib.claims_end(readers.s, readers.id)
    readers.lib.claims_begin(readers.s, readers.id + CLAIMS)
    third = readers.open()
    readers.read(third, SIZE)
    assert readers.handed() == [] and readers.is_wanted()
    readers.lib.claims_end(readers.s, readers.id + CLAIMS)


def test_after_the_end_of_the_daemon_nothing_is_sent(readers: Readers) -> None:
    fd = readers.open()
    readers.served.control.state = SessionState.CLOSED
    readers.read(fd, SIZE)
    readers.served.control.state = SessionState.SERVING
    assert readers.handed() == [] and not readers.is_wanted()


def test_a_descriptor_whose_file_has_a_copy_is_direct_no_longer(readers: Readers) -> None:
    fd = readers.open()
    assert not readers.lib.handover_is_over(fd)
    readers.entry.word = State.PRESENT | 9 << 12
    readers.read(fd, SIZE)
    assert len(readers.handed()) == 1 and not readers.lib.handover_is_over(fd)
    other = readers.open()
    assert readers.lib.handover_is_over(other)
    assert not readers.lib.track_word(other) & DIRECT


def test_the_close_of_a_descriptor_that_was_handed_over_needs_nothing(readers: Readers) -> None:
    new = readers.path.with_name("new")
    new.write_bytes(b"x" * 10)
    fd, unmet = readers.open(), readers.open_unmet(new)
    readers.read(fd, SIZE)
    readers.read(unmet, 10)
    assert len(readers.handed()) == 2
    for one in (fd, unmet):
        os.lseek(one, 0, os.SEEK_SET)
        readers.close(one)
    assert readers.is_in_transit() and not readers.is_wanted()
    assert not readers.clients.scan_hint[0].path_len


def test_each_read_of_a_large_file_renews_its_claim(readers: Readers) -> None:
    """A read of a large file renews the file's claim, because a program may read such a file for
    longer than a claim lasts. A read of a small file does not renew the claim: the file is read
    before its claim expires."""
    new = readers.path.with_name("new")
    for size, is_renewed in ((UNIT, False), (UNIT + 1, True)):
        readers.entry.size = size
        fd = readers.open()
        readers.clients.claim[readers.id % CLAIMS] = 0
        readers.read(fd, 10)
        assert readers.is_claimed() == is_renewed
        readers.clients.claim[readers.id % CLAIMS] = 0
        new.touch()
        os.truncate(new, size)
        number = int(readers.lib.claims_unmet(new.stat().st_ino))
        unmet = readers.open_unmet(new)
        readers.clients.claim[number % CLAIMS] = 0
        readers.read(unmet, 10)
        assert readers.is_claimed(number) == is_renewed
        readers.clients.claim[number % CLAIMS] = 0


@pytest.mark.parametrize(
    ("before", "at", "is_direct"), [(0, 0, True), (4 * UNIT, 4 * UNIT, False), (0, 8, False)]
)
def test_a_large_file_that_is_read_at_random_is_filled_by_the_daemon(
    readers: Readers, before: int, at: int, is_direct: bool
) -> None:
    """As soon as the library finds that the program reads at random, the program's reads are no
    longer direct. A fill is requested, and each read demands the part of the copy that it needs."""
    readers.entry.size = 8 * UNIT
    fd = readers.open()
    os.lseek(fd, before, os.SEEK_SET)
    readers.read(fd, UNIT, at)
    assert bool(readers.lib.track_word(fd) & DIRECT) == is_direct
    assert readers.is_wanted() == (not is_direct) and readers.is_claimed() == is_direct


@pytest.mark.parametrize(("n", "stays"), [(0, False), (499, False), (500, True)])
def test_before_a_lock_a_file_of_which_little_was_read_is_given_up(
    readers: Readers, n: int, stays: bool
) -> None:
    """If less than half of the file was read, the program gives up its claim before the lock call.
    The file's fill is not requested before the program has the lock: until then, another process
    may hold the lock and change the file."""
    fd = readers.open()
    readers.read(fd, n)
    readers.lib.handover_keep(fd)
    assert bool(readers.lib.track_word(fd) & DIRECT) == readers.is_claimed() == stays
    assert not readers.is_wanted()


def test_a_file_without_an_entry_is_handed_over_with_its_path(readers: Readers) -> None:
    """The message contains the file's path, because the daemon may not know yet that the file
    exists."""
    path = readers.path.with_name("new")
    path.write_bytes(b"x" * 10)
    number = int(readers.lib.claims_unmet(path.stat().st_ino))
    fd = readers.open_unmet(path)
    readers.read(fd, 9)
    assert readers.handed() == [] and readers.is_claimed(number)
    readers.read(fd, 1)
    assert readers.handed() == [Handed(number, True, "new", path.stat().st_ino)]
    assert readers.is_handed(fd)
    readers.lib.claims_end(readers.s, number)
    for n, is_sent in ((4, False), (5, True)):
        fd = readers.open_unmet(path)
        readers.read(fd, n)
        readers.close(fd)
        assert readers.handed() == [Handed(number, False, "new", path.stat().st_ino)] * is_sent
        assert readers.is_claimed(number) == is_sent
        readers.lib.claims_end(readers.s, number)


@pytest.mark.parametrize("case", ["forked", "locked", "stopped", "at hand"])
def test_of_a_file_without_an_entry_at_least_the_path_is_told(readers: Readers, case: str) -> None:
    """In each case, the library sends the path, but not the descriptor. In the case "at hand", the
    source is as fast as the page cache, so the daemon can read the file itself."""
    path = readers.path.with_name("new")
    path.write_bytes(b"x" * 10)
    fd = readers.open_unmet(path)
    hint = readers.clients.scan_hint[0]
    if case == "forked":
        readers.lib.track_set(fd, readers.lib.track_word(fd) | FORKED)
    elif case == "locked":
        readers.lib.locked_note(fd)
    elif case == "stopped":
        readers.stop()
    elif case == "at hand":
        for _ in range(100):
            readers.lib.progress_took(1, 1)
        while not readers.lib.progress_is_at_hand():
            pass
    readers.read(fd, 10)
    assert readers.handed() == [] and not readers.is_in_transit()
    assert hint.path_len == 3 and not hint.is_part
