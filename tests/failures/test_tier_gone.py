"""A tier that goes away, loses its copies or becomes read-only while a job runs."""

from __future__ import annotations

import os
import shutil
import stat
import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest
from support.files import Files, Loop, check_all, digest, same_without
from support.mounts import Mounts
from support.session import MIB, Session, wait_until
from support.watch import assert_quiet, settle

from monarch_py.tiers import tier_root


@pytest.fixture
def files(tmp_path: Path) -> Files:
    return Files(tmp_path / "source").add_many(30, 50_000)


def level(mount_point: Path, **more: object) -> dict[str, object]:
    mount_point.mkdir(exist_ok=True)
    return {"mount_point": mount_point, "max_storage_quota": 16 * MIB, **more}


def add_late(session: Session, files: Files) -> None:
    """Files that appear now and are wanted now, so that the tier is written to."""
    for i in range(5):
        files.add(f"late{i}", 20_000)
    check_all(session, files)


def wait_late(session: Session, files: Files) -> None:
    """What was read before the daemon knew of it is wanted by who reads it again."""

    def all_present() -> bool:
        check_all(session, files)
        return bool(session.status()["sources"][0]["present"] == len(files.digests))

    wait_until(all_present, what="the late copies")


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
    wait_late(session, files)
    assert len(list((tier_root(tmp_path / "second") / "c").iterdir())) == 5
    check_all(session, files)
    assert session.monarch("clear").returncode == 0
    check_all(session, files)
    assert settle(session) == {"present": 35}
    assert len(list((tier_root(tmp_path / "second") / "c").iterdir())) == 35
    assert_quiet(session)


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
    # What the kernel does by itself when the device fails.
    mounts.remount(first, "abort")
    hits = session.totals()["hits"]
    check_all(session, files)
    assert session.totals()["hits"] == hits + 30
    add_late(session, files)
    wait_late(session, files)
    # What is changed now must not come from a copy, although that cannot be removed.
    changed = files.path("f00003")
    session.python("import sys; open(sys.argv[1], 'ab').write(b'more')", changed)
    files.digests["f00003"] = digest(changed.read_bytes())
    check_all(session, files)
    wait_until(
        lambda: session.status()["sources"][0]["bypass"] == {"changed": 1}, what="the changed file"
    )
    assert not session.status()["tiers"][0]["usable"]
    check_all(session, files)
    session.stop()


def test_a_tier_that_is_read_only_at_the_start_is_gone_without(
    session_factory: Callable[..., Session], tmp_path: Path, files: Files, mounts: Mounts
) -> None:
    first = mounts.tmpfs("first", 32 * MIB)
    tiers = [level(first), level(tmp_path / "second")]
    session = session_factory(files.root, tiers=tiers).start()
    session.stop()
    mounts.remount(first, "ro")
    done = session.monarch("start")
    # Refused by the configuration, with the line to mend, or gone without; never a traceback.
    assert "Traceback" not in done.stderr
    if done.returncode == 0:
        assert session.monarch("stop").returncode == 0
    else:
        assert done.stderr.count("\n") == 1
        assert str(first) in done.stderr


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
    """File systems give an inode's number again: a program's own file must not look like the
    dataset's then, nor its changes go to the source."""
    # So small that its few inodes lie together and are given again at once.
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
    assert numbers & own, "no number was given again: the test says nothing"
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
