"""Source files that change while they are copied. A copy is of one version, never a mixture."""

from __future__ import annotations

import ctypes
import hashlib
import mmap
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from support.draws import cases, sized
from support.epoch import make_files
from support.files import Files, check_all, digest, random_bytes, read_all
from support.manifests import copies_in
from support.mounts import Mounts
from support.session import MIB, Session, wait_until
from support.watch import assert_quiet

from monarch_py.demo.slowsource import SlowSource
from monarch_py.ipc.catalog import CatalogReader

SIZE = 6 * MIB + 11


def shrink(path: Path) -> None:
    os.truncate(path, SIZE // 2)


def empty(path: Path) -> None:
    os.truncate(path, 0)


def grow(path: Path) -> None:
    with path.open("ab") as file:
        file.write(random_bytes(MIB, "more"))


def rewrite(path: Path) -> None:
    """Overwrites the whole file in place; its modification time changes."""
    with path.open("r+b") as file:
        file.write(random_bytes(SIZE, "other"))


def rewrite_the_beginning(path: Path) -> None:
    """Overwrites, in place, the beginning of the file, which has been copied already."""
    with path.open("r+b") as file:
        file.write(random_bytes(1000, "other"))


def rewrite_with_the_old_time(path: Path) -> None:
    """Overwrites the file, and keeps its size and modification time. So only its change time shows
    the change."""
    before = path.stat()
    rewrite(path)
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))


def replace(path: Path) -> None:
    """Writes the new version to another file, and renames this file to the old name."""
    fresh = path.with_name("fresh")
    fresh.write_bytes(random_bytes(SIZE, "other"))
    os.replace(fresh, path)


def replace_by_a_directory(path: Path) -> None:
    path.unlink()
    path.mkdir()


def remove(path: Path) -> None:
    path.unlink()


CHANGES = [
    shrink,
    empty,
    grow,
    rewrite,
    rewrite_the_beginning,
    rewrite_with_the_old_time,
    replace,
    replace_by_a_directory,
    remove,
]


# One change for each possible result: a shorter file, a file of the same size, and no file. A test
# below replaces a file by another file.
SOME_CHANGES = [shrink, rewrite_with_the_old_time, replace_by_a_directory]


@pytest.mark.parametrize("change", cases(CHANGES, SOME_CHANGES), ids=lambda change: change.__name__)
def test_a_file_that_changes_in_the_middle_of_its_fill(
    session_factory: Callable[..., Session],
    source: SlowSource,
    change: Callable[[Path], None],
) -> None:
    behind = Files(source.backing)
    path = behind.add("large", SIZE)
    behind.add("other", 1000)
    session = session_factory(source.mountpoint).start()
    session.wait_scanned()
    source.rate(8 * MIB)
    source.reset()
    session.python("import sys; open(sys.argv[1]).close()", source.mountpoint / "large")
    wait_until(lambda: source.counts()["bytes_read"] > 2 * MIB, what="the middle of the fill")
    assert session.status()["sources"][0]["filling"] == 1
    change(path)
    source.rate(0)
    wait_until(lambda: not session.status()["sources"][0]["filling"], what="the end of the fill")
    del behind.digests["large"]
    if path.is_file():
        behind.digests["large"] = digest(path.read_bytes())
    session.wait_idle()
    for _ in range(2):  # the first pass may read from the source, so the copies are read once more
        check_all(session, behind, source.mountpoint)
        session.wait_idle()
    assert_quiet(session)


def test_a_file_that_changes_between_the_scan_and_its_fill(
    session_factory: Callable[..., Session], tmp_path: Path
) -> None:
    files = Files(tmp_path / "source").add_many(20, 50_000)
    session = session_factory(files.root).start()
    session.wait_scanned()
    for i, name in enumerate(list(files.digests)):
        files.add(name, 50_000 + 100 * (i % 3), version=1)
    # Until the fill has opened the new file, programs may get the old attributes for as long as
    # `revalidate` allows. But they must get the new bytes.
    found = read_all(session, files.root)
    assert {name: answer["sha256"] for name, answer in found.items()} == files.digests
    session.wait_all_present()
    assert session.status()["sources"][0]["present"] == 20
    hits = session.totals()["hits"]
    check_all(session, files)
    assert session.totals()["hits"] == hits + 20


def test_looks_at_many_changed_files_do_not_keep_the_loop_waiting(
    session_factory: Callable[..., Session], slow_factory: Callable[..., SlowSource]
) -> None:
    """All files have changed since the scan, on a mount that keeps no attributes. Each file is
    looked up at the source, which takes long, but not in the daemon's loop."""
    source = slow_factory(attr_timeout=0)
    make_files(source.backing, 400, 10)
    session = session_factory(source.mountpoint).start()
    session.wait_scanned()
    make_files(source.backing, 400, 20)
    source.latency(getattr=0.01)
    words = [sys.executable, "-m", "monarch_py", "warm", "-c", str(session.config)]
    longest_s = 0.0
    with subprocess.Popen([*words, str(source.mountpoint)], env=session.env(preload=False)) as warm:
        while warm.poll() is None:
            began_s = time.monotonic()
            session.status()
            longest_s = max(longest_s, time.monotonic() - began_s)
    assert warm.returncode == 0
    assert longest_s < 2
    assert session.status()["sources"][0]["present"] == 400


# Writes one version of a file after the other. Each version replaces the previous file by a rename,
# or overwrites it in place.
WRITER = """
import os, random, sys, time
path, how, versions = sys.argv[1], sys.argv[2], int(sys.argv[3])
for version in range(versions):
    data = random.Random(repr(version)).randbytes(300_000)
    if how == "rename":
        with open(path + ".new", "wb") as file: file.write(data)
        os.rename(path + ".new", path)
    else:
        with open(path, "r+b") as file: file.write(data)
    time.sleep(0.005)
"""


def versions(count: int) -> list[str]:
    return [hashlib.sha256(random_bytes(300_000, i)).hexdigest() for i in range(count)]


def test_a_file_that_is_replaced_all_the_time_is_always_a_whole_one(
    session_factory: Callable[..., Session], tmp_path: Path
) -> None:
    files = Files(tmp_path / "source")
    names = [f"f{i}" for i in range(4)]
    for name in names:
        (files.root / name).write_bytes(random_bytes(300_000, 0))
    count = sized(60, 150)
    known = versions(count)
    session = session_factory(files.root).start()
    session.wait_scanned()
    writers = [
        subprocess.Popen([sys.executable, "-c", WRITER, files.root / name, "rename", str(count)])
        for name in names
    ]
    seen: list[str] = []
    try:
        while any(writer.poll() is None for writer in writers):
            found = read_all(session, files.root)
            seen += [found[name]["sha256"] for name in names if "sha256" in found[name]]
            session.forget()
    finally:
        for writer in writers:
            writer.kill()
            writer.wait()
    assert len(seen) > 10
    assert set(seen) <= set(known)


# Reads a file with one call, and prints the checksum of the bytes that it got.
READER = """
import hashlib, os, sys
fd = os.open(sys.argv[1], os.O_RDONLY)
print(hashlib.sha256(os.read(fd, 1 << 20)).hexdigest())
"""


def test_a_read_under_way_goes_on_with_the_file_that_it_began_with(
    session_factory: Callable[..., Session], slow_factory: Callable[..., SlowSource]
) -> None:
    """While a program reads a file, the daemon learns that the name now belongs to another file.
    Then this other file is replaced too. The read still returns the bytes of the file that the
    program has opened."""
    slow = slow_factory(attr_timeout=0)
    behind = Files(slow.backing).add_many(1, 100_000)
    behind.wait_until_old()
    (name,) = behind.digests
    session = session_factory(slow.mountpoint, prefetch="none").start()
    session.wait_scanned()

    def replace(version: int) -> int:
        new = slow.backing / ".new"
        new.write_bytes(random_bytes(100_000, version))
        new.rename(slow.backing / name)
        return (slow.backing / name).stat().st_ino

    def known_inode() -> int:
        generation = session.connection.ask("where")["generation"]
        catalog = CatalogReader.open(session.paths, generation)
        return int(catalog.entries["ino"][catalog.find(0, name)])

    slow.latency(read=3)
    argv = [sys.executable, "-c", READER, str(slow.mountpoint / name)]
    with subprocess.Popen(argv, env=session.env(), stdout=subprocess.PIPE, text=True) as reader:
        wait_until(lambda: slow.counts()["read"] > 0, what="the read")
        second = replace(1)
        entries = session.connection.ask("look", paths=[[0, name]])["entries"]
        session.connection.ask("warm", entries=entries, ticket="test")
        wait_until(lambda: known_inode() == second, what="the new inode number")
        replace(2)
        assert reader.poll() is None, "the read was over too soon"
        slow.latency(read=0)
        assert reader.communicate(timeout=60)[0].strip() == behind.digests[name]


def test_a_file_that_was_written_all_the_time_is_its_last_version_in_the_end(
    session_factory: Callable[..., Session], tmp_path: Path
) -> None:
    files = Files(tmp_path / "source")
    path = files.root / "f"
    path.write_bytes(random_bytes(300_000, 0))
    session = session_factory(files.root).start()
    session.wait_scanned()
    count = sized(30, 60)
    writer = subprocess.Popen([sys.executable, "-c", WRITER, path, "in place", str(count)])
    try:
        while writer.poll() is None:
            read_all(session, files.root)
            session.forget()
    finally:
        writer.kill()
        writer.wait()
    session.forget()
    files.digests["f"] = versions(count)[-1]
    # Until the copy is made, `stat` may still answer with the attributes of an earlier version,
    # because the writer ran without the library.
    assert read_all(session, files.root)["f"]["sha256"] == files.digests["f"]
    session.wait_idle()
    check_all(session, files)


def test_a_file_that_a_program_holds_open_for_writing_is_left_to_the_source(
    session_factory: Callable[..., Session], tmp_path: Path
) -> None:
    """A file gets no copy while a program without the library has it open for writing, even if the
    program opened it before the daemon started."""
    files = Files(tmp_path / "source").add_many(3, 5000)
    with files.path("f00001").open("r+b", buffering=0) as writer:
        session = session_factory(files.root).start()
        session.wait_scanned()
        session.want_all()
        wait_until(lambda: session.status()["sources"][0]["present"] == 2, what="the other copies")
        writer.write(b"later")
        files.digests["f00001"] = digest(files.path("f00001").read_bytes())
        check_all(session, files)
        wait_until(
            lambda: session.status()["sources"][0]["bypass"] == {"changed": 1},
            what="the reason against a copy",
        )


def mapped(path: Path) -> Any:
    """Maps the first page of the file, writable and shared. Python's mmap is not used, because it
    would keep a descriptor open, and the daemon would see this descriptor."""
    libc = ctypes.CDLL(None)
    libc.mmap.restype = ctypes.c_void_p
    libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_long]
    with path.open("r+b") as file:
        both = mmap.PROT_READ | mmap.PROT_WRITE
        at = libc.mmap(None, mmap.PAGESIZE, both, mmap.MAP_SHARED, file.fileno(), 0)
    assert at != ctypes.c_void_p(-1).value
    return (ctypes.c_uint8 * mmap.PAGESIZE).from_address(at)


def test_a_change_that_no_time_tells_of_is_found_by_the_second_look(
    session_factory: Callable[..., Session], tmp_path: Path, mounts: Mounts
) -> None:
    """A store into a mapped page that is already writable changes the bytes, but not the file's
    times. So if a file was changed shortly before its fill, the daemon compares it with the copy
    once more before it records the copy."""
    files = Files(mounts.tmpfs("source", 16 * MIB))
    path = files.add("mapped", 50_000)
    files.add("other", 50_000)
    view = mapped(path)
    view[0] ^= 1
    # A time in the future makes the file count as just changed, however late its fill begins.
    os.utime(path, (time.time() + 3600,) * 2)
    times = (path.stat().st_mtime_ns, path.stat().st_ctime_ns)
    (tmp_path / "tier").mkdir()
    tier = {"mount_point": tmp_path / "tier", "max_storage_quota": 16 * MIB, "persistent": True}
    session = session_factory(files.root, tiers=[tier]).start()

    def is_found() -> bool:
        """Waits until the daemon has compared the file with the copy once more. Returns True if the
        daemon has found the change, and False if it has recorded the copy."""
        found = {"changed": 1}
        wait_until(
            lambda: (
                session.status()["sources"][0]["bypass"] == found or "mapped" in copies_in(session)
            ),
            what="the second comparison",
        )
        return bool(session.status()["sources"][0]["bypass"] == found)

    def is_found_between_the_looks() -> bool:
        """Lets the daemon make a copy, and then changes a byte of the source file through the
        mapping. Returns whether the daemon found this change when it compared the source file with
        the copy for the second time. On a busy machine, this comparison may come before the change.
        """
        session.forget()
        wait_until(lambda: not copies_in(session), what="an empty manifest")
        session.wait_all_present()
        view[1] ^= 1
        return is_found()

    assert any(is_found_between_the_looks() for _ in range(4))
    assert (path.stat().st_mtime_ns, path.stat().st_ctime_ns) == times
    files.digests["mapped"] = digest(path.read_bytes())
    check_all(session, files)


def test_a_link_that_comes_and_goes_while_it_is_looked_at(
    session_factory: Callable[..., Session], tmp_path: Path
) -> None:
    """The daemon must answer, and not crash, if a link is removed while the daemon reads it."""
    path = Files(tmp_path / "source").add("a", 100)
    link = path.parent / "link"
    session = session_factory(path.parent).start()
    ended = threading.Event()

    def flip() -> None:
        while not ended.is_set():
            link.symlink_to(".")
            link.unlink()

    flipping = threading.Thread(target=flip)
    flipping.start()
    try:
        for _ in range(sized(2, 10)):
            asked = [[0, "link/a"]] * 2000
            assert len(session.connection.ask("look", paths=asked)["entries"]) == len(asked)
    finally:
        ended.set()
        flipping.join()
