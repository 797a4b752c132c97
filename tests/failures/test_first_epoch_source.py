"""Tests fills and reads while the source returns errors, while its files change, or while its
bandwidth or its operations are limited. The last tests check which pages a fill leaves in the page
cache."""

from __future__ import annotations

import errno
import os
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.draws import cases
from support.epoch import Reader, content, make_files
from support.files import digest
from support.mounts import Mounts
from support.page_cache import cached_bytes, forget_pages
from support.session import IN_UNITS, MIB, Session, wait_until
from support.steps import Steps

from monarch_py.demo.slowsource import SlowSource

UNIT = 256 << 10
SIZE = 4 * MIB + 17
# The rate of the source [bytes/s]. It is so low that a file is still being filled when the test
# gets the file's state.
RATE = 2e6
Factory = Callable[..., Session]


@pytest.fixture
def source(slow_factory: Callable[..., SlowSource]) -> SlowSource:
    """A slow source whose attributes the kernel does not cache, so that a change behind the mount
    is visible at once."""
    return slow_factory(attr_timeout=0)


def told(session: Session) -> dict[str, Any]:
    found: dict[str, Any] = session.status()["sources"][0]
    return found


def read_again(epoch_reader: Path, session: Session, root: Path, *files: int) -> None:
    """Reads all files twice in new programs. Checks that the programs get the present content,
    whether or not the files have copies."""
    for _ in range(2):
        with Reader(epoch_reader, session, "pread", MIB, 1, root, files) as reader:
            reader.end()
        session.wait_idle()


# --- errors -------------------------------------------------------------------------------------

# Reads until it has got five errors, and reports them. Reads the rest when the source works again.
THROUGH_ERRORS = """
fd = os.open(sys.argv[1], 0)
UNIT = 1 << 18
def take(at):
    if sys.argv[2] == "pread": return os.pread(fd, UNIT, at)
    assert os.lseek(fd, 0, 1) == at
    if sys.argv[2] == "read": return os.read(fd, UNIT)
    part = bytearray(UNIT)
    return bytes(part[:os.readv(fd, [part])])
data = take(0)
step(len(data))
found = []
while len(found) < 5:
    try: part = take(len(data))
    except OSError as error: found.append(error.errno); continue
    data += part
    if not part: break
step(found, len(data))
while part := take(len(data)): data += part
step(sha(data))
"""


def test_the_source_gives_errors_for_a_while(
    session_factory: Factory, source: SlowSource, epoch_reader: Path
) -> None:
    """A program that has read a part of a file gets the errors of the source. When there are no
    more errors, it gets the rest of the file. A read that fails does not move the descriptor's
    offset."""
    ways = ("read", "pread", "readv")
    files = make_files(source.backing, len(ways), SIZE)
    session = session_factory(source.mountpoint, **IN_UNITS).start()
    session.wait_scanned()
    # At this rate, each file is still being filled when the last reader has read its part.
    source.rate(RATE)
    with ExitStack() as stack:
        readers = [
            stack.enter_context(Steps(session, THROUGH_ERRORS, source.mountpoint / str(file), way))
            for file, way in enumerate(ways, 1)
        ]
        for reader in readers:
            assert reader.wait() == [UNIT]
        source.fail(errno.EIO)
        for reader in readers:
            reader.go()
        for reader in readers:
            found, have = reader.wait()
            assert found == [errno.EIO] * 5
            assert UNIT <= have < SIZE
        source.fail(0)
        source.rate(0)
        for file, reader in enumerate(readers, 1):
            reader.go()
            assert reader.wait() == [digest(content(file, SIZE))]
            reader.go()
            reader.end()
    session.wait_idle()
    # This daemon makes no copies of the files whose fills have failed. The next daemon makes them.
    assert told(session)["bypass"] == {"failed": len(ways)}
    session.stop()
    session.start().wait_all_present()
    assert told(session)["present"] == len(files)
    read_again(epoch_reader, session, source.mountpoint, *files)


# --- changes ------------------------------------------------------------------------------------

# Reads the file twice: with explicit offsets, and at the descriptor's offset. Each time, the
# beginning is read before the change, and the rest after it. The program uses no file object of
# Python, because a file object would ask for the file's size.
OVER_CHANGE = """
fd, other = (os.open(sys.argv[1], 0) for _ in range(2))
UNIT = 1 << 18
first = [os.read(fd, UNIT), os.pread(other, UNIT, 0)]
step()
rest, at = b"", UNIT
while part := os.pread(other, UNIT, at): rest += part; at += len(part)
on = b""
while part := os.read(fd, UNIT): on += part
for name, data in (("first", first[0]), ("too", first[1]), ("rest", rest), ("on", on)):
    with open(sys.argv[2] + name, "wb") as file: file.write(data)
step(len(rest), len(on))
"""
REWRITE = (
    "import sys; file = open(sys.argv[1], sys.argv[2]); file.write(open(sys.argv[3],'rb').read())"
)
READ_ALL = """
import hashlib, sys
print(hashlib.sha256(open(sys.argv[1], "rb").read()).hexdigest())
"""
TRUNCATE = "import os,sys; os.truncate(sys.argv[1], int(sys.argv[2]))"


def is_of(found: bytes, at: int, *versions: bytes) -> bool:
    """Returns whether each byte of `found` equals the byte at the same offset in one of the
    versions.

    at : the offset in the file at which `found` was read"""
    data = np.frombuffer(found, np.uint8)
    right = np.zeros(len(data), bool)
    for version in versions:
        known = np.frombuffer(version, np.uint8)[at : at + len(data)]
        right[: len(known)] |= data[: len(known)] == known
    return bool(right.all())


def with_a_tier_of_its_own(
    session_factory: Factory, source: SlowSource, directory: Path, *, persistent: bool
) -> Session:
    """Makes two files, 1 and 2, and starts a session with a new tier."""
    make_files(source.backing, 2, SIZE)
    tier = directory / "tier"
    tier.mkdir()
    level = {"mount_point": tier, "max_storage_quota": 64 * MIB, "persistent": persistent}
    made = session_factory(source.mountpoint, tiers=[level], **IN_UNITS).start()
    made.wait_scanned()
    return made


# The case in which another program empties a file and writes it anew is not in this list: a test
# below covers it.
CHANGES = [
    ("the_library", "rewritten"),
    *(
        (who, what)
        for who in ("the_library", "another_program", "another_node")
        for what in ("replaced_in_place", "truncated")
    ),
]


# These cases cover each writer and each change once.
EACH = [
    ("the_library", "rewritten"),
    ("another_program", "truncated"),
    ("another_node", "replaced_in_place"),
]


@pytest.mark.parametrize("case", cases(CHANGES, EACH), ids="-".join)
def test_a_file_is_changed_in_the_middle_of_its_fill(
    session_factory: Factory, source: SlowSource, tmp_path: Path, case: tuple[str, str]
) -> None:
    who, what = case
    session = with_a_tier_of_its_own(session_factory, source, tmp_path, persistent=True)
    old, new = content(1, SIZE), content(1 << 20, SIZE)
    fresh = tmp_path / "fresh"
    fresh.write_bytes(new)
    root = source.backing if who == "another_node" else source.mountpoint
    preload = who == "the_library"
    source.rate(RATE)
    with Steps(session, OVER_CHANGE, source.mountpoint / "1", tmp_path / "got_") as reader:
        reader.wait()
        assert told(session)["filling"] == 1
        if what == "truncated":
            new = old[: UNIT + 5]
            session.python(TRUNCATE, root / "1", str(len(new)), preload=preload)
        else:
            mode = "wb" if what == "rewritten" else "r+b"
            session.python(REWRITE, root / "1", mode, fresh, preload=preload)
        source.rate(0)
        reader.go()
        reader.wait()
        got = {
            name: (tmp_path / f"got_{name}").read_bytes() for name in ("first", "too", "rest", "on")
        }
        assert got["first"] == got["too"] == old[:UNIT]
        for name in ("rest", "on"):
            if who == "the_library":  # the change is recorded before the writer's call returns
                assert got[name] == new[UNIT:], name
            else:
                assert is_of(got[name], UNIT, old, new)
        reader.go()
        reader.end()
    session.wait_idle()

    def is_new() -> bool:
        return session.python(READ_ALL, source.mountpoint / "1") == digest(new) + "\n"

    # A copy may be a mixture of old and new content, although the daemon finds the same attributes
    # before and after it makes the copy. This can happen if a program writes slowly enough. On a
    # persistent tier, the daemon compares the file with the copy once more when the file is two
    # seconds old.
    wait_until(is_new, timeout=8, what="the new content", every=0.2)
    session.wait_idle()
    assert is_new()
    assert session.python(READ_ALL, source.mountpoint / "2") == digest(content(2, SIZE)) + "\n"
    done = session.monarch("verify")
    assert done.returncode == 0, done.stdout + done.stderr


# On a persistent tier, the daemon always compares the copy with the file once more. So such a tier
# is tested only with --long.
@pytest.mark.parametrize("persistent", cases([False, True], [False]), ids=["lost", "kept"])
def test_a_file_that_is_still_being_written_is_not_believed_for_long(
    session_factory: Factory, source: SlowSource, tmp_path: Path, persistent: bool
) -> None:
    """Another program empties a file in the middle of its fill, and writes it anew later. The new
    content is served soon, although the daemon may have copied the file while it was empty."""
    session = with_a_tier_of_its_own(session_factory, source, tmp_path, persistent=persistent)
    source.rate(RATE)
    with Steps(session, OVER_CHANGE, source.mountpoint / "1", tmp_path / "got_") as reader:
        reader.wait()
        assert told(session)["filling"] == 1
        os.truncate(source.mountpoint / "1", 0)
        source.rate(0)
        # Wait until the fill has ended, with or without a copy, and no program wants another fill.
        wait_until(
            lambda: not told(session)["filling"] + told(session)["wanted"], what="the last fill"
        )
        new = content(1 << 20, SIZE)
        (source.mountpoint / "1").write_bytes(new)
        reader.go()
        reader.wait()
        reader.go()
        reader.end()

    def is_new() -> bool:
        return session.python(READ_ALL, source.mountpoint / "1") == digest(new) + "\n"

    wait_until(is_new, timeout=8, what="the new content", every=0.2)


# --- limits on requests to the source -----------------------------------------------------------


def test_bandwidth_is_limited(
    session_factory: Factory, source: SlowSource, epoch_reader: Path
) -> None:
    limit = 6e6
    files = make_files(source.backing, 4, 8 * MIB)
    session = session_factory(
        source.mountpoint, source_limits={"bandwidth": int(limit)}, **IN_UNITS
    ).start()
    session.wait_scanned()
    with Reader(epoch_reader, session, "read", UNIT, 4, source.mountpoint, files):
        wait_until(lambda: source.counts()["bytes_read"] > 0, what="the first bytes")
        start, before = time.monotonic(), source.counts()["bytes_read"]
        wait_until(
            lambda: source.counts()["bytes_read"] - before > 2 * limit, what="enough requests"
        )
        elapsed, served = time.monotonic() - start, source.counts()["bytes_read"] - before
    # Up to 5 MiB more than the limit are allowed, because each thread may have begun a read of
    # 1 MiB before the measurement started.
    assert served <= limit * elapsed + 5 * MIB
    assert session.totals()["fallbacks"] == 0


def test_operations_are_limited(session_factory: Factory, source: SlowSource) -> None:
    limit = 80
    make_files(source.backing, 400, 3000)
    session = session_factory(
        source.mountpoint, source_limits={"operations": limit}, prefetch="eager"
    )
    session.start().wait_scanned()

    def asked() -> int:
        counts = source.counts()
        return counts["open"] + counts["read"]

    wait_until(lambda: asked() > 0, what="the first operation")
    start, before = time.monotonic(), asked()
    wait_until(lambda: asked() - before > 2 * limit, what="enough requests")
    assert asked() - before <= limit * (time.monotonic() - start) + 15


ASKS = """
fd = os.open(sys.argv[1], 0)
UNIT, size = 1 << 18, os.fstat(fd).st_size
for share in (0.4, 0.6):
    while (at := os.lseek(fd, 0, 1)) + UNIT <= share * size: os.read(fd, UNIT)
    step(at)
"""


def test_a_file_is_filled_after_a_share_of_it_was_asked_for(
    session_factory: Factory, source: SlowSource
) -> None:
    one, two = make_files(source.backing, 2, 4 * MIB).values()
    session = session_factory(source.mountpoint, fill_after=0.5).start()
    session.wait_scanned()
    with Steps(session, ASKS, source.mountpoint / one.name) as reader:
        (asked,) = reader.wait()
        assert asked < 2 * MIB
        # Another program then reads more than half of another file, which gets a complete copy. If
        # the first file were to be filled, its fill would have begun by now.
        with Steps(session, ASKS, source.mountpoint / two.name) as other:
            other.wait()
            other.go()
            other.wait()
            wait_until(lambda: told(session)["present"] == 1, what="the copy of the other file")
            assert told(session)["wanted"] + told(session)["filling"] == 0
            wait_until(lambda: session.totals()["fills"] >= 1, what="the fill to be counted")
            assert session.totals()["fills"] == 1
            other.go()
            other.end()
        reader.go()
        reader.wait()
        wait_until(lambda: told(session)["present"] == 2, what="two copies")
        reader.go()
        reader.end()


# --- the page cache -----------------------------------------------------------------------------


@pytest.mark.parametrize("way", cases(["warm", "read", "pread"], ["warm", "read"]))
def test_the_pages_of_a_filled_file_are_given_back(
    session_factory: Factory, mounts: Mounts, epoch_reader: Path, way: str
) -> None:
    size = 24 * MIB
    point = mounts.ext4("plain", 64 * MIB)
    files = make_files(point / "data", 1, size)
    forget_pages(files[1])
    session = session_factory(point / "data").start()
    session.wait_scanned()
    if way == "warm":
        assert session.monarch("warm").returncode == 0
    else:
        with Reader(epoch_reader, session, way, UNIT, 2, point / "data", files) as reader:
            reader.end()
    wait_until(lambda: told(session)["present"] == 1, what="the copy")
    assert cached_bytes(files[1]) <= size / 20


def test_small_files_leave_no_pages_and_those_that_others_have_read_stay(
    session_factory: Factory, mounts: Mounts
) -> None:
    if tuple(map(int, os.uname().release.split(".")[:2])) < (6, 16):
        pytest.skip("dropping pages behind a read needs Linux 6.16")
    size = 100_000
    point = mounts.ext4("plain", 64 * MIB)
    files = make_files(point / "data", 20, size)
    for file in files.values():
        forget_pages(file)
    files[7].read_bytes()
    with session_factory(point / "data").start() as session:
        session.wait_scanned()
        assert session.monarch("warm").returncode == 0
        wait_until(lambda: told(session)["present"] == 20, what="the copies")
        assert cached_bytes(files[7]) >= size
        assert not any(cached_bytes(file) for number, file in files.items() if number != 7)
