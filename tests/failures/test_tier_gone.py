"""Tests a tier that is removed, loses its copies or becomes read-only while a job runs."""

from __future__ import annotations

import errno
import os
import shutil
import stat
import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest
from support.files import Files, Loop, check_all, digest, read_all, same_without
from support.mounts import Mounts
from support.session import MIB, Session, wait_until
from support.watch import assert_quiet, settle

from monarch_py.config.load import load_config
from monarch_py.daemon.server import Daemon
from monarch_py.storage.tiers import Tier, held_elsewhere, tier_root


@pytest.fixture
def files(tmp_path: Path) -> Files:
    return Files(tmp_path / "source").add_many(30, 50_000)


def level(mount_point: Path, **more: object) -> dict[str, object]:
    mount_point.mkdir(exist_ok=True)
    return {"mount_point": mount_point, "max_storage_quota": 16 * MIB, **more}


def add_late(session: Session, files: Files) -> None:
    """Adds files and reads them, so that the daemon writes to the tier."""
    for i in range(5):
        files.add(f"late{i}", 20_000)
    wait_until(  # the listing that a program gets may be up to a second old
        lambda: read_all(session, files.root).keys() == files.digests.keys(), what="the late names"
    )
    check_all(session, files)


def wait_late(session: Session, files: Files) -> None:
    """Reads all files again and again until all of them have copies. If a file was read before it
    was in the daemon's catalog, it is copied only when a program reads it again."""

    def all_present() -> bool:
        check_all(session, files)
        return bool(session.status()["sources"][0]["present"] == len(files.digests))

    wait_until(all_present, timeout=90, what="the late copies")


# Runs while no other test runs, because a new file of this test must not get the inode number of a
# file that another test removes.
@pytest.mark.usefixtures("alone")
@pytest.mark.parametrize("persistent", [False, True], ids=["lost", "kept"])
def test_the_directory_of_the_tier_is_removed(
    session_factory: Callable[..., Session], tmp_path: Path, files: Files, persistent: bool
) -> None:
    tiers = [level(tmp_path / "first", persistent=persistent), level(tmp_path / "second")]
    session = session_factory(files.root, tiers=tiers).start()
    assert settle(session) == {"present": 30}
    with Loop(session, files, tmp_path) as loop:
        loop.wait_passes(1)
        shutil.rmtree(tier_root(tmp_path / "first"))
        loop.wait_passes(2)
        add_late(session, files)
        loop.wait_passes(2)
        loop.end()
    # When the daemon notices that the directory is gone, it gives up the tier, and new copies go to
    # the other tier. Until then, fills may fail.
    wait_until(
        lambda: "was removed or replaced" in session.status()["tiers"][0]["why"],
        what="a tier that is given up",
    )
    wait_late(session, files)
    assert len(list((tier_root(tmp_path / "second") / "c").iterdir())) == 35
    check_all(session, files)
    why = session.status()["tiers"][0]["why"]
    verdict, clear = session.monarch("verify"), session.monarch("clear")
    assert (verdict.returncode, verdict.stdout) == (4, "35 copies checked, 0 damaged\n")
    assert (clear.returncode, clear.stdout) == (4, "35 copies dropped\n")
    assert verdict.stderr == clear.stderr == f"monarch: {why}\n"
    check_all(session, files)
    assert settle(session) == {"present": 35}
    assert len(list((tier_root(tmp_path / "second") / "c").iterdir())) == 35
    assert_quiet(session)


@pytest.mark.parametrize("is_known", [False, True])
def test_verify_and_clear_name_the_only_tier_when_it_is_gone(
    session_factory: Callable[..., Session], tmp_path: Path, files: Files, is_known: bool
) -> None:
    """If the only tier was removed, `verify` and `clear` name it, and report no copy as damaged,
    whether or not the daemon has noticed the removal."""
    session = session_factory(files.root, tiers=[level(tmp_path / "tier")]).start()
    settle(session)
    shutil.rmtree(tier_root(tmp_path / "tier"))
    if is_known:
        wait_until(lambda: not usable(session), what="a tier that is given up")
    for command in ("verify", "clear"):
        done = session.monarch(command)
        assert done.returncode == 4
        assert done.stderr.startswith(f"monarch: tier {tmp_path / 'tier'} goes unused: its dir")
        assert done.stderr.endswith("; run `monarch stop` and `monarch start` to make it again\n")
        if command == "verify":
            assert done.stdout == "0 copies checked, 0 damaged\n"


def test_a_persistent_tier_that_was_never_used_is_in_order(
    session_factory: Callable[..., Session], tmp_path: Path, files: Files
) -> None:
    session = session_factory(files.root, tiers=[level(tmp_path / "tier", persistent=True)])
    for command, said in (("verify", "checked, 0 damaged"), ("clear", "removed")):
        done = session.monarch(command)
        assert (done.returncode, done.stdout, done.stderr) == (0, f"0 copies {said}\n", "")


# Runs while no other test runs, because a new file of this test must not get the inode number of a
# file that another test removes.
@pytest.mark.usefixtures("alone")
@pytest.mark.parametrize("persistent", [False, True], ids=["lost", "kept"])
def test_the_tier_becomes_read_only(
    session_factory: Callable[..., Session],
    tmp_path: Path,
    files: Files,
    mounts: Mounts,
    persistent: bool,
) -> None:
    first = mounts.ext4("first", 32 * MIB)
    tiers = [level(first, persistent=persistent), level(tmp_path / "second")]
    session = session_factory(files.root, tiers=tiers).start()
    assert settle(session) == {"present": 30}
    # With the mount option `abort`, the kernel makes the file system read-only, as it does when the
    # device fails.
    mounts.remount(first, "abort")
    hits = session.totals()["hits"]
    check_all(session, files)
    assert session.totals()["hits"] == hits + 30
    add_late(session, files)
    wait_late(session, files)
    # A changed file must not be read from its copy, although the copy cannot be removed.
    changed = files.path("f00003")
    session.python("import sys; open(sys.argv[1], 'ab').write(b'more')", changed)
    files.digests["f00003"] = digest(changed.read_bytes())
    check_all(session, files)
    wait_until(
        lambda: session.status()["sources"][0]["bypass"] == {"changed": 1}, what="the changed file"
    )
    assert not session.status()["tiers"][0]["usable"]
    check_all(session, files)
    # The copies of the tier can still be read.
    done = session.monarch("verify")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == "34 copies checked, 0 damaged\n"
    why = (
        f"tier {first} goes unused: its file system returned an error; repair the file system, then"
        " run `monarch stop` and"
    )
    assert session.status()["tiers"][0]["why"].startswith(why)
    session.stop()


def used_bytes(session: Session) -> int:
    return int(session.status()["tiers"][0]["used_bytes"])


@pytest.mark.parametrize("is_gone", [True, False])
def test_the_room_of_a_dropped_copy_comes_back_when_it_is_gone(
    session_factory: Callable[..., Session],
    tmp_path: Path,
    files: Files,
    mounts: Mounts,
    is_gone: bool,
) -> None:
    """If a dropped copy no longer exists, its room counts as free. If the daemon cannot remove a
    dropped copy, the copy's room still counts as used, and the daemon gives up the tier."""
    session = session_factory(files.root, tiers=[level(tmp_path / "tier")]).start()
    assert settle(session) == {"present": 30}
    before = used_bytes(session)
    changed = files.path("f00003")
    copies = tuple((tier_root(session.tiers[0]) / "c").iterdir())
    (copy,) = (each for each in copies if each.read_bytes() == changed.read_bytes())
    if is_gone:
        copy.unlink()
    else:
        mounts.pin(copy)
    session.python("import sys; open(sys.argv[1], 'ab').write(b'more')", changed)
    tell = session.status
    wait_until(lambda: tell()["sources"][0]["bypass"] == {"changed": 1}, what="the changed file")
    wait_until(lambda: used_bytes(session) < before or not usable(session), what="the removal")
    assert usable(session) is is_gone
    assert (used_bytes(session) == before) is not is_gone
    said = (
        f"tier {session.tiers[0]} goes unused: {copy.parent}: Device or resource busy; repair its"
    )
    assert session.log.read_text().count(said) == (0 if is_gone else 1)


def usable(session: Session) -> bool:
    return bool(session.status()["tiers"][0]["usable"])


def test_the_room_of_a_fill_that_has_failed_is_taken_while_it_lies_there(
    session_factory: Callable[..., Session], tmp_path: Path, mounts: Mounts
) -> None:
    size = 8 * MIB
    files = Files(tmp_path / "source")
    large = files.add("large", size)
    tiers, slow = [level(tmp_path / "tier")], {"bandwidth": 2 * MIB}
    session = session_factory(files.root, tiers=tiers, source_limits=slow, prefetch="eager").start()
    directory = tier_root(session.tiers[0]) / "c"
    (copy,) = wait_until(lambda: tuple(directory.iterdir()), what="the beginning of the copy")
    mounts.pin(copy)
    os.truncate(large, 4 * MIB)
    wait_until(lambda: not usable(session), what="the end of the fill")
    assert used_bytes(session) == size


def test_a_tier_that_is_read_only_at_the_start_is_refused(
    session_factory: Callable[..., Session], tmp_path: Path, files: Files, mounts: Mounts
) -> None:
    first = mounts.tmpfs("first", 32 * MIB)
    tiers = [level(first), level(tmp_path / "second")]
    session = session_factory(files.root, tiers=tiers).start()
    session.stop()
    mounts.remount(first, "ro")
    done = session.monarch("start")
    assert done.returncode == 2
    assert done.stderr == (
        f"monarch: {session.config}:3: hierarchy[0].mount_point: '{first}' cannot be written to;"
        " give yourself the permission or choose another directory\n"
    )


@pytest.mark.parametrize("persistent", [False, True], ids=["lost", "kept"])
@pytest.mark.parametrize("used_before", [False, True], ids=["new", "used"])
def test_a_tier_that_is_full_to_the_last_byte_at_the_start(
    session_factory: Callable[..., Session],
    tmp_path: Path,
    files: Files,
    mounts: Mounts,
    persistent: bool,
    used_before: bool,
) -> None:
    first = mounts.ext4("first", 16 * MIB)
    tiers = [level(first, persistent=persistent), level(tmp_path / "second")]
    tiers[0]["max_storage_quota"] = 8 * MIB
    session = session_factory(files.root, tiers=tiers)
    if used_before:
        session.start().stop()
    with (first / "ballast").open("wb", buffering=0) as ballast, suppress(OSError):
        while ballast.write(bytes(4096)):
            pass
    done = session.monarch("start")
    try:
        assert done.returncode == 0, done.stderr
        assert settle(session) == {"present": 30}
        check_all(session, files)
    finally:
        assert session.monarch("stop").returncode == 0
    assert "Traceback" not in session.paths.log.read_text()


@pytest.mark.parametrize("persistent", [False, True], ids=["lost", "kept"])
def test_a_tier_that_cannot_be_listed_at_the_start_is_gone_without(
    session_factory: Callable[..., Session],
    tmp_path: Path,
    files: Files,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    persistent: bool,
) -> None:
    listing, first = Tier.listing, tmp_path / "first"

    def fails_on_the_first(tier: Tier) -> object:
        if tier.config.mount_point == first:
            raise OSError(errno.EIO, os.strerror(errno.EIO), tier.fd)
        return listing(tier)

    monkeypatch.setattr(Tier, "listing", fails_on_the_first)
    tiers = [level(first, persistent=persistent), level(tmp_path / "second")]
    session = session_factory(files.root, tiers=tiers)
    monkeypatch.setenv("MONARCH_SHM", str(session.shm))
    session.paths.make()
    daemon = Daemon(load_config(session.config), session.paths)
    try:
        assert [tier is not None for tier in daemon.tiers[:2]] == [False, True]
        assert not daemon.scanner.keepers
        assert not held_elsewhere(first, session.config)
        assert caplog.messages == [
            f"tier {first} goes unused: {tier_root(first) / 'c'}: Input/output error;"
            " repair its file system, then run `monarch stop` and `monarch start`"
        ]
    finally:
        daemon.close()


def test_copies_are_deleted_behind_our_back(
    session_factory: Callable[..., Session], tmp_path: Path, files: Files
) -> None:
    session = session_factory(files.root, tiers=[level(tmp_path / "first")]).start()
    assert settle(session) == {"present": 30}
    with Loop(session, files, tmp_path) as loop:
        loop.wait_passes(1)
        for copy in (tier_root(tmp_path / "first") / "c").iterdir():
            copy.unlink()
        loop.wait_passes(2)
        loop.end()
    check_all(session, files)
    verdict = session.monarch("verify")
    assert verdict.returncode == 1
    assert "30 copies checked, 30 damaged" in verdict.stdout
    assert settle(session) == {"present": 30}
    hits = session.totals()["hits"]
    check_all(session, files)
    assert session.totals()["hits"] == hits + 30


OWN_FILES = """
import os, sys
folder, count = sys.argv[1], int(sys.argv[2])
for i in range(count):
    path = os.path.join(folder, f"own{i}")
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o640)
    os.write(fd, b"checkpoint")
    found = os.fstat(fd)
    os.fchmod(fd, 0o600)
    again = os.open(f"/proc/self/fd/{fd}", os.O_WRONLY)
    os.write(again, b"CHECK")
    print(found.st_size, oct(found.st_mode), oct(os.stat(path).st_mode), os.pread(fd, 99, 0))
    os.close(again)
    os.close(fd)
"""


def test_a_file_that_gets_the_number_of_a_copy_that_is_gone_is_itself(
    session_factory: Callable[..., Session], files: Files, mounts: Mounts
) -> None:
    """A program's own file may get the inode number of a removed copy. Programs must then see the
    file's own attributes. If they change the file, no file of the source may be changed instead."""
    # The file system has so few inodes that it soon uses the numbers of removed files again.
    point = mounts.ext4("first", 8 * MIB, inodes=88)
    tier = level(point) | {"max_storage_quota": 5 * MIB}
    session = session_factory(files.root, tiers=[tier]).start()
    settle(session)
    numbers = {path.stat().st_ino for path in (tier_root(point) / "c").iterdir()}
    modes = {path.stat().st_mode for path in files.root.iterdir()}
    session.forget()
    wait_until(lambda: not list((tier_root(point) / "c").iterdir()), what="the copies' end")
    said = session.python(OWN_FILES, point, "45").splitlines()
    own = {path.stat().st_ino for path in point.glob("own*")}
    assert numbers & own, "no inode number was used again, so this test has tested nothing"
    expected = f"10 {oct(stat.S_IFREG | 0o640)} {oct(stat.S_IFREG | 0o600)} b'CHECKpoint'"
    assert said == [expected] * 45
    assert {path.stat().st_mode for path in files.root.iterdir()} == modes
    check_all(session, files)


HOLD = """
import json, os, sys
names = ("st_dev", "st_ino", "st_mode", "st_nlink", "st_uid", "st_size", "st_mtime_ns")
fds = [os.open(path, os.O_RDONLY) for path in sys.argv[1:]]
print("open", flush=True)
sys.stdin.readline()
for fd, path in zip(fds, sys.argv[1:]):
    found = os.fstat(fd)
    print([getattr(found, name) for name in names], len(os.pread(fd, 1 << 20, 0)))
"""


def test_a_descriptor_of_a_dropped_copy_is_still_its_file(
    session_factory: Callable[..., Session], tmp_path: Path, files: Files
) -> None:
    session = session_factory(files.root, tiers=[level(tmp_path / "first")]).start()
    settle(session)
    paths = [str(files.path(name)) for name in files.digests]
    with subprocess.Popen(
        [sys.executable, "-I", "-S", "-c", HOLD, *paths],
        env=session.env(),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "open\n"
        session.forget()
        assert settle(session) == {"present": 30}
        said, _ = holder.communicate("go on\n", timeout=30)
    names = ("st_dev", "st_ino", "st_mode", "st_nlink", "st_uid", "st_size", "st_mtime_ns")
    expected = [
        f"{[getattr(os.stat(path), name) for name in names]} {os.stat(path).st_size}"
        for path in paths
    ]
    assert said.splitlines() == expected
    same_without(session, ["sha256sum", *paths[:3]])
