"""Tests of the slow source on real mounts: its bytes, attributes, counters, rates and errors."""

from __future__ import annotations

import errno
import hashlib
import mmap
import os
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from contextlib import ExitStack, nullcontext
from pathlib import Path
from typing import Any

import pytest
from support.slowsource import MOUNT_AND_READ, REPOSITORY

from monarch_py.demo import slowsource
from monarch_py.demo.slowsource import (
    SlowSource,
    SlowSourceError,
    why_unavailable,
)

MIB = 1 << 20


def is_mounted(path: Path) -> bool:
    return f" {path} " in Path("/proc/self/mountinfo").read_text()


def wait_until(condition: Callable[[], bool], limit_s: float = 10.0) -> bool:
    deadline = time.monotonic() + limit_s
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.005)
    return True


# ---- bytes and counters ----


@pytest.mark.parametrize("size", [0, 1, 4095, 4096, 131072, 131073, 3 * MIB + 7])
def test_every_way_of_reading_gives_the_bytes_of_the_backing_file(
    source: SlowSource, size: int
) -> None:
    content = os.urandom(size)
    (source.backing / "f").write_bytes(content)
    path = source.mountpoint / "f"
    assert path.read_bytes() == content
    with path.open("rb") as file:
        assert os.pread(file.fileno(), 5000, size // 2) == content[size // 2 : size // 2 + 5000]
        assert os.pread(file.fileno(), 10, size) == b""
        if size:
            with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as view:
                assert view[:] == content


def test_each_operation_counts_once(binary: Path, backing: Path, tmp_path: Path) -> None:
    for i in range(5):
        (backing / f"f{i}").write_bytes(bytes(1000 + i))
    (tmp_path / "mount").mkdir()
    with SlowSource(backing, tmp_path / "mount", binary=binary, attr_timeout=600) as source:
        os.stat(source.mountpoint)
        source.reset()
        for i in range(5):
            (source.mountpoint / f"f{i}").read_bytes()
        # The kernel reports a close to the file system only after the close has returned.
        assert wait_until(lambda: source.counts()["release"] == 5)
        expected = dict.fromkeys(source.counts(), 0)
        expected |= {"getattr": 5, "open": 5, "read": 5, "release": 5, "bytes_read": 5010}
        assert source.counts() == expected

        source.reset()
        assert set(source.counts().values()) == {0}
        with (source.mountpoint / "new").open("wb") as file:
            file.write(bytes(10_000))
            file.flush()
            os.fsync(file.fileno())
        os.listdir(source.mountpoint)
        counts = source.counts()
        assert (counts["create"], counts["fsync"], counts["bytes_written"]) == (1, 1, 10_000)
        assert counts["readdir"] >= 1
        assert counts["open"] == counts["bytes_read"] == 0


@pytest.mark.parametrize("keep_pages", [False, True])
def test_pages_live_from_one_open_to_the_next_only_if_asked(
    binary: Path, backing: Path, tmp_path: Path, keep_pages: bool
) -> None:
    (backing / "f").write_bytes(bytes(MIB))
    (tmp_path / "mount").mkdir()
    with SlowSource(backing, tmp_path / "mount", binary=binary, keep_pages=keep_pages) as source:
        for _ in range(3):
            (source.mountpoint / "f").read_bytes()
        assert source.counts()["bytes_read"] == (MIB if keep_pages else 3 * MIB)


@pytest.mark.parametrize(("timeout_s", "lookups"), [(0.0, 10), (600.0, 1)])
def test_the_kernel_trusts_attributes_as_long_as_asked(
    binary: Path, backing: Path, tmp_path: Path, timeout_s: float, lookups: int
) -> None:
    (backing / "f").touch()
    (tmp_path / "mount").mkdir()
    with SlowSource(backing, tmp_path / "mount", binary=binary, attr_timeout=timeout_s) as source:
        os.stat(source.mountpoint)
        source.reset()
        for _ in range(10):
            os.stat(source.mountpoint / "f")
        counted = source.counts()["getattr"]
    assert counted == 1 if lookups == 1 else counted >= lookups


def test_many_readers_at_once_all_get_their_bytes(source: SlowSource) -> None:
    digests = {}
    for i in range(40):
        content = os.urandom(50_000 + i)
        (source.backing / f"{i}").write_bytes(content)
        digests[i] = hashlib.sha256(content).digest()
    source.latency(open=0.002, read=0.002)
    wrong: list[int] = []

    def read_all(start: int) -> None:
        for i in [*range(start, 40), *range(start)]:
            if hashlib.sha256((source.mountpoint / f"{i}").read_bytes()).digest() != digests[i]:
                wrong.append(i)

    readers = [threading.Thread(target=read_all, args=(5 * i,)) for i in range(8)]
    for reader in readers:
        reader.start()
    for reader in readers:
        reader.join()
    assert wrong == []
    assert source.counts()["open"] == 8 * 40


# ---- rate, latency, errors ----


def test_readers_share_one_rate(source: SlowSource) -> None:
    for name in "ab":
        (source.backing / name).write_bytes(os.urandom(2 * MIB))
    source.rate(20 * MIB)
    readers = [
        threading.Thread(target=(source.mountpoint / name).read_bytes) for name in ("a", "b")
    ]
    start = time.monotonic()
    for reader in readers:
        reader.start()
    for reader in readers:
        reader.join()
    # 4 MiB at 20 MiB/s take 0.2 s. The readers are never faster; a busy machine makes them slower.
    assert 0.19 <= time.monotonic() - start < 15


def test_several_mounts_share_one_link(binary: Path, backing: Path, tmp_path: Path) -> None:
    (backing / "f").write_bytes(os.urandom(2 * MIB))
    with ExitStack() as stack:
        readers = []
        for name in "ab":
            mountpoint = tmp_path / name
            mountpoint.mkdir()
            source = SlowSource(backing, mountpoint, binary=binary, link=tmp_path / "link")
            stack.enter_context(source).rate(20 * MIB)
            readers.append(threading.Thread(target=(mountpoint / "f").read_bytes))
        start = time.monotonic()
        for reader in readers:
            reader.start()
        for reader in readers:
            reader.join()
        assert 0.19 <= time.monotonic() - start < 15


def test_writes_pay_the_rate_too(source: SlowSource) -> None:
    source.rate(10 * MIB)
    start = time.monotonic()
    (source.mountpoint / "f").write_bytes(bytes(2 * MIB))
    assert time.monotonic() - start >= 0.19


def test_a_latency_is_paid_by_its_kind_alone(source: SlowSource) -> None:
    (source.backing / "f").write_bytes(bytes(10))
    source.latency(open=0.05)
    start = time.monotonic()
    for _ in range(4):
        os.close(os.open(source.mountpoint / "f", os.O_RDONLY))
    opened = time.monotonic() - start
    assert 0.2 <= opened < 15
    source.latency(open=0, getattr=30)
    start = time.monotonic()
    os.listdir(source.mountpoint)
    assert time.monotonic() - start < 30


def test_a_latency_ends_for_those_who_wait_when_it_is_set_back(source: SlowSource) -> None:
    (source.backing / "f").write_bytes(b"late")
    source.latency(read=600)
    read: list[bytes] = []
    reader = threading.Thread(
        target=lambda: read.append((source.mountpoint / "f").read_bytes()), daemon=True
    )
    reader.start()
    assert wait_until(lambda: source.counts()["read"] >= 1)
    assert read == []
    source.latency(read=0)
    reader.join(10)
    assert read == [b"late"]


@pytest.mark.parametrize("number", [errno.EIO, errno.ESTALE, errno.ENOSPC])
def test_every_operation_answers_the_error_asked_for(source: SlowSource, number: int) -> None:
    (source.backing / "f").write_bytes(b"content")
    calls: list[Callable[[Path], object]] = [
        lambda root: os.stat(root / "not looked up before"),
        lambda root: (root / "f").read_bytes(),
        os.listdir,
        lambda root: (root / "new").touch(),
        lambda root: (root / "dir").mkdir(),
        os.statvfs,
    ]
    with (source.mountpoint / "f").open("rb", buffering=0) as already_open:
        source.fail(number)
        calls.append(lambda _: already_open.read())
        for call in calls:
            with pytest.raises(OSError, match=re.escape(os.strerror(number))) as raised:
                call(source.mountpoint)
            assert raised.value.errno == number
        source.fail(0)
        assert already_open.read() == b"content"
    assert os.listdir(source.backing) == ["f"]


# ---- the end ----


def test_it_is_unmounted_and_its_process_gone_also_after_an_error(
    binary: Path, backing: Path, tmp_path: Path
) -> None:
    mountpoint = tmp_path / "mount"
    mountpoint.mkdir()
    (backing / "f").write_bytes(b"x")
    source = SlowSource(backing, mountpoint, binary=binary)

    def use_and_break() -> None:
        with source:
            assert source.process is not None
            used.append(source.process.pid)
            assert is_mounted(mountpoint)
            used.append((mountpoint / "f").open("rb"))
            source.latency(getattr=60, other=60)
            source.fail(errno.EIO)
            raise KeyError

    used: list[Any] = []
    with pytest.raises(KeyError):
        use_and_break()
    pid, left_open = used
    left_open.close()
    assert not is_mounted(mountpoint)
    assert os.listdir(mountpoint) == []
    assert not Path(f"/proc/{pid}").exists()
    with pytest.raises(SlowSourceError, match="not mounted"):
        source.counts()


def test_one_object_can_mount_again_and_starts_from_nothing(
    binary: Path, backing: Path, tmp_path: Path
) -> None:
    (tmp_path / "mount").mkdir()
    source = SlowSource(backing, tmp_path / "mount", binary=binary)
    for _ in range(2):
        with source:
            assert set(source.counts().values()) == {0}
            (source.mountpoint / "f").touch()
            source.latency(other=1)


def test_it_unmounts_itself_when_the_starter_is_killed(binary: Path, tmp_path: Path) -> None:
    shutil.copy(binary, tmp_path)
    for name in ("b", "m"):
        (tmp_path / name).mkdir()
    (tmp_path / "b" / "f").write_text("read")
    ran = subprocess.run(
        [sys.executable, "-c", MOUNT_AND_READ, str(REPOSITORY), str(tmp_path), "die"],
        stdout=subprocess.PIPE,
        text=True,
        check=False,
    )
    assert (ran.returncode, ran.stdout) == (-signal.SIGKILL, "read 1\n")
    assert wait_until(lambda: not is_mounted(tmp_path / "m"))


def test_what_is_wrong_is_refused_in_a_sentence(
    source: SlowSource, binary: Path, tmp_path: Path
) -> None:
    with pytest.raises(ValueError, match="unknown kind 'stat'; use one of getattr, open"):
        source.latency(stat=1)
    with pytest.raises(ValueError, match="negative"):
        source.rate(-1)
    with pytest.raises(ValueError, match="99999 is not an error number"):
        source.fail(99999)
    with pytest.raises(SlowSourceError, match="nowhere is not a directory"):
        SlowSource(tmp_path / "nowhere", tmp_path, binary=binary).__enter__()
    with pytest.raises(SlowSourceError, match="cannot be started"):
        SlowSource(tmp_path, tmp_path, binary=tmp_path / "none").__enter__()


def test_why_unavailable_says_what_is_missing(
    binary: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert why_unavailable(binary) is None
    refuses = tmp_path / "refuses"
    layout = f'[ "$1" = --layout ] && exec "{binary}" --layout'
    refuses.write_text(f"#!/bin/sh\n{layout}\necho fuse: mount failed >&2\nexit 1\n")
    refuses.chmod(0o755)
    assert "cannot be mounted: fuse: mount failed" in (why_unavailable(refuses) or "")
    monkeypatch.setattr(slowsource, "find_slowsource", lambda: None)
    assert "was not built; install libfuse3" in (why_unavailable() or "")
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert why_unavailable(binary) == "fusermount3 is missing; install the package fuse3"


@pytest.mark.parametrize("user, may_mount", [(0, True), (1, False), (1000, False)])
def test_only_root_mounts_without_fusermount3(
    user: int, may_mount: bool, binary: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: user)
    monkeypatch.setattr(shutil, "which", lambda _: None)
    monkeypatch.setattr(slowsource, "SlowSource", lambda *_, **__: nullcontext())
    assert (why_unavailable(binary) is None) == may_mount
