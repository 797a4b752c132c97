"""`monarch pack` writes a tar and the tar's index, and PackDataset reads the tar's members."""

from __future__ import annotations

import errno
import os
import pickle
import re
import socket
import subprocess
import sys
import tarfile
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import BinaryIO

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.command_line import run_monarch
from support.files import age, random_bytes

from monarch_py.demo.slowsource import SlowSource
from monarch_py.errors import ConfigError, MonarchError
from monarch_py.loaders.records.packs import PackDataset
from monarch_py.packs import tar as packing
from monarch_py.packs.index import PackIndex, index_path
from monarch_py.packs.tar import index_pack, write_pack

NAMES = ["a/0", "a/1", "b/deep/er/2", "b/" + "long" * 60, "empty", "large", "ä ö\n", "x\udcff"]
SIZES = dict(zip(NAMES, [10, 4096, 513, 512, 0, 1_200_000, 1, 1023], strict=True))


def content(name: str) -> bytes:
    return random_bytes(SIZES[name], name)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """Returns a directory of files with unusual names and sizes, and times with nanoseconds."""
    root = tmp_path / "data"
    for number, name in enumerate(NAMES):
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content(name))
        os.utime(path, ns=(0, 1_700_000_000_123_456_789 + number))
    (root / "link").symlink_to("a/0")
    (root / "to_directory").symlink_to("b")
    os.chmod(root / "a/0", 0o640)
    return root


def monarch(*words: str | Path) -> subprocess.CompletedProcess[str]:
    return run_monarch(["pack", *map(str, words)], dict(os.environ))


# --- the tar --------------------------------------------------------------------------------------


def test_tar_reads_what_was_packed(root: Path, tmp_path: Path) -> None:
    pack, out = tmp_path / "train.tar", tmp_path / "out"
    packed = write_pack(root, pack)
    assert (packed.files, packed.changed) == (len(NAMES), ())
    out.mkdir()
    subprocess.run(["tar", "-xf", pack, "-C", out], check=True)
    assert (
        subprocess.run(["diff", "-r", "--no-dereference", root, out], check=False).returncode == 0
    )
    assert os.readlink(out / "link") == "a/0"
    assert (out / "a/0").stat().st_mode & 0o777 == 0o640
    assert (out / "a/1").stat().st_mtime_ns == 1_700_000_000_000_000_000
    assert list(tmp_path.glob(".*")) == []


def test_the_index_says_where_every_file_lies(root: Path, tmp_path: Path) -> None:
    pack = tmp_path / "train.tar"
    write_pack(root, pack)
    index, whole = PackIndex.load(pack), pack.read_bytes()
    assert sorted(index.names()) == sorted(NAMES)
    assert (np.diff(index.offsets) >= 0).all()
    for name, offset, size, mtime_ns in zip(
        index.names(), index.offsets, index.sizes, index.mtimes_ns, strict=True
    ):
        assert whole[offset : offset + size] == content(name)
        assert mtime_ns == (root / name).stat().st_mtime_ns


def test_a_directory_without_files(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    assert write_pack(tmp_path / "data", tmp_path / "train.tar").files == 0
    assert len(PackIndex.load(tmp_path / "train.tar")) == 0
    with pytest.raises(MonarchError):
        PackDataset(tmp_path / "train.tar")


def test_a_small_file_that_changes_is_left_out_and_a_large_one_ends_it(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A writer appends to a file while the file is being packed. If the file is small, it is left
    out of the pack. If it is large, packing fails."""
    chosen, write_to, look = "a/1", tmp_path / "train.tar", os.fstat

    def writing(fd: int) -> os.stat_result:
        found = look(fd)
        if os.readlink(f"/proc/self/fd/{fd}") == str(root / chosen):
            with (root / chosen).open("ab") as writer:
                writer.write(b"more")
        return found

    monkeypatch.setattr(os, "fstat", writing)
    packed = write_pack(root, write_to)
    assert packed.changed == (chosen,)
    assert packed.files == len(NAMES)
    assert sorted(PackIndex.load(write_to).names()) == sorted(set(NAMES) - {chosen})
    with tarfile.open(write_to) as written:
        assert chosen not in written.getnames()
    chosen, old = "large", write_to.read_bytes()
    with pytest.raises(MonarchError, match=r"large: it .*; pack it while no program writes to it"):
        write_pack(root, write_to)
    assert write_to.read_bytes() == old
    assert list(tmp_path.glob(".*")) == []


def test_what_cannot_be_read_or_written_is_one_sentence(root: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="lies in the directory that is packed"):
        write_pack(root, root / "train.tar")
    with pytest.raises(ConfigError, match=r"none/train.tar: cannot be written"):
        write_pack(root, tmp_path / "none/train.tar")
    with pytest.raises(MonarchError, match=r"train.tar: No such file or directory"):
        index_pack(root, tmp_path / "train.tar")
    (tmp_path / "train.tar").write_bytes(b"no tar" * 1000)
    with pytest.raises(MonarchError, match=r"train.tar: .*name a tar that is not compressed"):
        index_pack(root, tmp_path / "train.tar")


def test_a_large_file_that_shrinks_is_one_sentence(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    look = os.fstat

    def cutting(fd: int) -> os.stat_result:
        found = look(fd)
        if os.readlink(f"/proc/self/fd/{fd}") == str(root / "large"):
            os.truncate(root / "large", 1000)
        return found

    monkeypatch.setattr(os, "fstat", cutting)
    with pytest.raises(
        MonarchError, match=r"large: it has changed; pack it while no program writes"
    ):
        write_pack(root, tmp_path / "train.tar")


def test_what_is_neither_a_file_nor_a_link_is_left_out(root: Path, tmp_path: Path) -> None:
    os.mkfifo(root / "fifo")
    with socket.socket(socket.AF_UNIX) as bound:
        bound.bind(str(root / "socket"))
    words = [str(root), "-o", str(tmp_path / "train.tar")]
    done = subprocess.run(
        [sys.executable, "-m", "monarch_py", "pack", *words],
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert sorted(PackIndex.load(tmp_path / "train.tar").names()) == sorted(NAMES)


@pytest.mark.parametrize("failing", ["open", "read"])
def test_a_large_file_that_cannot_be_read_is_named(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, failing: str
) -> None:
    opened = packing._opened

    def opening(path: Path, buffering: int = -1) -> BinaryIO:
        if path.name != "large":
            return opened(path, buffering)
        if failing == "open":
            raise PermissionError(errno.EACCES, "Permission denied")
        return os.fdopen(os.open(path, os.O_WRONLY), "rb")  # each read fails

    monkeypatch.setattr(packing, "_opened", opening)
    said = r"large: (Permission denied|Bad file descriptor); check the path and its permissions"
    with pytest.raises(MonarchError, match=said):
        write_pack(root, tmp_path / "train.tar")


@pytest.mark.parametrize(
    ("modes", "expected"),
    [([0o644, 0o664], 0o644), ([0o644, 0o640], 0o640), ([0o604, 0o644], 0o600), ([0o600], 0o600)],
)
def test_the_tar_is_closed_to_whom_a_file_is_closed(
    tmp_path: Path, modes: list[int], expected: int
) -> None:
    (tmp_path / "data").mkdir()
    for number, mode in enumerate(modes):
        path = tmp_path / "data" / f"{number}"
        path.touch()
        path.chmod(mode)
    age(tmp_path / "data")
    old = os.umask(0o022)
    try:
        write_pack(tmp_path / "data", tmp_path / "train.tar")
    finally:
        os.umask(old)
    assert (tmp_path / "train.tar").stat().st_mode & 0o777 == expected
    # Now the last file gets another group than the tar. The tar's group has no access to this file,
    # so the group must lose its access to the tar.
    if modes[-1] == 0o640 and os.geteuid() == 0:
        os.chown(path, 0, 65532)
        write_pack(tmp_path / "data", tmp_path / "train.tar")
        assert (tmp_path / "train.tar").stat().st_mode & 0o777 == 0o600


def test_a_file_that_has_just_changed_is_read_when_its_time_would_tell_a_change(
    root: Path, tmp_path: Path
) -> None:
    os.utime(root / "a/0")
    packed = write_pack(root, tmp_path / "train.tar")
    written = (tmp_path / "train.tar").stat().st_mtime_ns
    age_s = (written - (root / "a/0").stat().st_mtime_ns) / 1e9
    assert age_s > packing.TIME_STEP_S - 0.1  # the kernel's clock for files may lag by a tick
    assert packed.changed == ()


# --- an existing tar ------------------------------------------------------------------------------


def foreign(root: Path, pack: Path, *words: str) -> None:
    subprocess.run(["tar", "-cf", pack, "-C", root, *words, "."], check=True)


def test_the_index_of_a_tar_of_whole_seconds(root: Path, tmp_path: Path) -> None:
    """In this tar, the names begin with ./, and the times are whole seconds. The index leaves out
    files that are missing, and files whose size or time (in whole seconds) has changed."""
    pack = tmp_path / "train.tar"
    foreign(root, pack, "--format=gnu")
    changed = ["a/0", "a/1", "b/deep/er/2"]
    os.utime(root / changed[0], ns=(0, 1_700_000_001_000_000_000))
    (root / changed[1]).unlink()
    kept = root / changed[2]
    kept.write_bytes(kept.read_bytes() + b"!")
    os.utime(kept, ns=(0, 1_700_000_000_123_456_789))
    os.utime(root / "empty", ns=(0, 1_700_000_000_999_999_999))
    packed = index_pack(root, pack)
    assert sorted(packed.changed) == [f"./{name}" for name in changed]
    assert packed.files == len(NAMES)
    index, whole = PackIndex.load(pack), pack.read_bytes()
    assert sorted(index.names()) == sorted(set(NAMES) - set(changed))
    for name, offset, size, mtime_ns in zip(
        index.names(), index.offsets, index.sizes, index.mtimes_ns, strict=True
    ):
        assert whole[offset : offset + size] == content(name)
        assert mtime_ns == (root / name).stat().st_mtime_ns


def test_the_index_of_a_tar_with_nanoseconds(root: Path, tmp_path: Path) -> None:
    pack = tmp_path / "train.tar"
    foreign(root, pack, "--format=posix")
    os.utime(root / "a/0", ns=(0, (root / "a/0").stat().st_mtime_ns + 1))
    packed = index_pack(root, pack)
    assert packed.changed == ("./a/0",)
    assert sorted(packed.index.names()) == sorted(set(NAMES) - {"a/0"})


def test_a_member_outside_the_directory_is_left_out(root: Path, tmp_path: Path) -> None:
    (tmp_path / "beside").write_bytes(b"beside")
    (tmp_path / "far").write_bytes(b"far")
    age(tmp_path)
    pack = tmp_path / "train.tar"
    outside = ["../beside", str(tmp_path / "far")]
    subprocess.run(["tar", "-cPf", str(pack), "-C", str(root), "a/0", *outside], check=True)
    packed = index_pack(root, pack)
    assert packed.index.names() == ["a/0"]
    assert list(packed.changed) == outside


def test_a_hard_link_of_a_tar_is_left_out_and_told(root: Path, tmp_path: Path) -> None:
    pack = tmp_path / "train.tar"
    os.link(root / "a/0", root / "twin")
    subprocess.run(["tar", "-cf", pack, "-C", root, "a/0", "twin"], check=True)
    packed = index_pack(root, pack)
    assert (packed.files, packed.changed) == (2, ("twin",))
    assert packed.index.names() == ["a/0"]


def test_of_two_members_with_one_name_the_last_one_counts(root: Path, tmp_path: Path) -> None:
    pack = tmp_path / "train.tar"
    foreign(root, pack, "--format=gnu")
    changed = root / "a/1"
    when = changed.stat().st_mtime_ns
    changed.write_bytes(bytes(4096))
    os.utime(changed, ns=(0, when))
    subprocess.run(["tar", "-rf", pack, "-C", root, "a/1"], check=True)
    index_pack(root, pack)
    dataset = PackDataset(pack)
    assert dataset[list(dataset.names).index("a/1")] == bytes(4096)


# --- the index ------------------------------------------------------------------------------------


def overwrite(pack: Path) -> None:
    with pack.open("ab") as file:
        file.write(b"more")


def touch(pack: Path) -> None:
    os.utime(pack)


def damage(pack: Path) -> None:
    content = bytearray(index_path(pack).read_bytes())
    for at in range(len(content) // 2, len(content) // 2 + 100):
        content[at] ^= 1
    index_path(pack).write_bytes(content)


def cut(pack: Path) -> None:
    index_path(pack).write_bytes(index_path(pack).read_bytes()[:-100])


def empty(pack: Path) -> None:
    index_path(pack).write_bytes(b"")


def remove(pack: Path) -> None:
    index_path(pack).unlink()


def altered(column: str, at: int, value: int) -> Callable[[Path], None]:
    def alter(pack: Path) -> None:
        index = PackIndex.load(pack)
        getattr(index, column)[at] = value
        index.save(pack)

    return alter


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (overwrite, "train.tar: has changed since its index was made"),
        (touch, "train.tar: has changed since its index was made"),
        (damage, "train.tar.monarch: not the index of a pack"),
        (cut, "train.tar.monarch: not the index of a pack"),
        (empty, "train.tar.monarch: not the index of a pack"),
        (remove, "train.tar.monarch: cannot be read"),
        (altered("offsets", -1, 1 << 40), "a member lies outside the tar"),
        (altered("offsets", 0, -1), "a member lies outside the tar"),
        (altered("sizes", 0, 1 << 40), "a member lies outside the tar"),
        (altered("sizes", 0, 5000), "its members overlap"),
    ],
)
def test_an_index_that_does_not_fit_is_refused(
    root: Path, tmp_path: Path, change: Callable[[Path], None], said: str
) -> None:
    pack = tmp_path / "train.tar"
    write_pack(root, pack)
    change(pack)
    with pytest.raises(ConfigError, match=re.escape(said)):
        PackDataset(pack)


@settings(max_examples=50, deadline=None)
@given(data=st.data())
def test_no_damage_gives_other_bytes(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    """If any byte of an index is changed, the index is either refused or read as before."""
    pack = tmp_path_factory.getbasetemp() / "any.tar"
    if not pack.exists():
        root = tmp_path_factory.mktemp("any")
        for number in range(5):
            (root / f"f{number}").write_bytes(random_bytes(600, number))
        age(root)
        write_pack(root, pack)
    right = PackIndex.load(pack)
    stored = bytearray(index_path(pack).read_bytes())
    at = data.draw(st.integers(0, len(stored) - 1))
    stored[at] ^= data.draw(st.integers(1, 255))
    changed = pack.with_name("changed.tar")
    changed.write_bytes(pack.read_bytes())
    os.utime(changed, ns=(0, right.pack_mtime_ns))
    index_path(changed).write_bytes(stored)
    try:
        found = PackIndex.load(changed)
    except ConfigError:
        return
    for column in ("hashes", "offsets", "sizes", "mtimes_ns"):
        assert (getattr(found, column) == getattr(right, column)).all()
    assert found.names() == right.names()


@pytest.mark.parametrize("record", [b"PK\x01\x02", b"PK\x03\x04"])
def test_any_bit_of_a_record_of_the_archive_may_be_wrong(
    root: Path, tmp_path: Path, record: bytes
) -> None:
    """If a bit of a zip header in the index is wrong, either the index is refused, or the names
    that are read from it are right. The headers say how a column is stored: the method, the
    version, the flags."""
    pack = tmp_path / "train.tar"
    write_pack(root, pack)
    stored = index_path(pack).read_bytes()
    first = stored.index(record)
    for bit in range(8 * 46):
        changed = bytearray(stored)
        changed[first + bit // 8] ^= 1 << bit % 8
        index_path(pack).write_bytes(changed)
        with suppress(ConfigError):
            assert sorted(PackIndex.load(pack).names()) == sorted(NAMES)


# --- the command ----------------------------------------------------------------------------------


def test_the_command(root: Path, tmp_path: Path) -> None:
    pack = tmp_path / "train.tar"
    done = monarch(root, "-o", pack)
    said = f"8 of 8 files, 1.2 MiB: {pack}.monarch\n"
    assert (done.returncode, done.stdout, done.stderr) == (0, said, "")
    os.utime(root / "a/0")
    done = monarch(root, "-o", pack, "--index-only")
    assert done.returncode == 1
    assert done.stdout.startswith("7 of 8 files, ")
    assert done.stderr == "monarch: warning: left out, because it differs from the tar: a/0\n"
    done = monarch(tmp_path / "none", "-o", pack)
    assert done.returncode == 2
    assert done.stderr.startswith(f"monarch: '{tmp_path}/none' is not a directory; see")
    done = monarch(root, "-o", root / "train.tar")
    assert done.returncode == 2
    assert done.stderr.count("\n") == 1


# --- the dataset ----------------------------------------------------------------------------------


def test_samples_are_the_files(root: Path, tmp_path: Path) -> None:
    pack = tmp_path / "train.tar"
    write_pack(root, pack)
    dataset = PackDataset(pack, length=len(NAMES))
    assert len(dataset) == len(NAMES)
    assert [dataset[i] for i in range(len(dataset))] == [content(name) for name in dataset.names]
    order = [5, 2, 2, 7, 0]
    assert dataset.__getitems__(order) == [content(dataset.names[i]) for i in order]
    out = bytearray(int(dataset.sizes[order].sum()))
    dataset.read_into(order, out)
    assert out == b"".join(content(dataset.names[i]) for i in order)
    again = pickle.loads(pickle.dumps(dataset))
    assert (again.names, again[3]) == (dataset.names, dataset[3])
    with pytest.raises(ConfigError, match="has 8 samples and not 9"):
        PackDataset(pack, length=9)


def test_a_pack_that_is_cut_while_it_is_used_is_one_sentence(root: Path, tmp_path: Path) -> None:
    pack = tmp_path / "train.tar"
    write_pack(root, pack)
    dataset = PackDataset(pack)
    os.truncate(pack, 1000)
    with pytest.raises(MonarchError, match=r"train.tar: 1000 bytes, and the index has \d+"):
        dataset.__getitems__(range(len(dataset)))


def test_a_batch_is_read_at_once(slow_factory: Callable[..., SlowSource], tmp_path: Path) -> None:
    slow = slow_factory()
    root = tmp_path / "many"
    root.mkdir()
    for number in range(200):
        (root / f"{number:03d}").write_bytes(random_bytes(4096, number))
    age(root)
    write_pack(root, slow.backing / "train.tar")
    dataset = PackDataset(slow.mountpoint / "train.tar", join=4096)
    slow.reset()
    assert dataset.__getitems__(range(200)) == [random_bytes(4096, n) for n in range(200)]
    counts = slow.counts()
    assert (counts["open"], counts["read"] <= 20) == (1, True)
