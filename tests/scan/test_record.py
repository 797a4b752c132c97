"""A record of a scan contains the same entries as the scan itself."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from support.files import make_tree

from monarch_py.arrays import ENTRY
from monarch_py.config.load import load_config
from monarch_py.config.schema import Config
from monarch_py.native import Kind, ffi
from monarch_py.scan.columns import pack, unpack
from monarch_py.scan.record import RecordedScan, Scan, read_record, record_sources
from monarch_py.scan.walk import Walk

FIELDS = [name for name in ENTRY.names or () if name not in ("hash", "path", "copy_ino")]


def config_of(tmp_path: Path, *sources: Path) -> Config:
    (tmp_path / "tier").mkdir(exist_ok=True)
    tier = {"mount_point": str(tmp_path / "tier"), "max_storage_quota": "1MiB"}
    file = tmp_path / "tiers.yaml"
    file.write_text(yaml.safe_dump({"sources": list(map(str, sources)), "hierarchy": [tier]}))
    return load_config(file)


def found(scan: Scan) -> dict[tuple[str, int], list[tuple[Any, ...]]]:
    """Returns all entries of a scan, by their path and their `sum`. A directory has an entry whose
    `sum` is 0, and gets a second entry once all names in the directory are known."""
    entries: dict[tuple[str, int], list[tuple[Any, ...]]] = {}
    while not scan.is_finished:
        batch = scan.take()
        if batch is None:
            continue
        for entry in batch.entries:
            pool = batch.pool + int(entry["path"])
            path = os.fsdecode(ffi.buffer(pool, int(entry["path_len"]))[:])
            assert ffi.string(pool) == os.fsencode(path)
            is_link = entry["kind"] == Kind.LINK
            target = ffi.string(batch.pool + int(entry["copy_ino"])) if is_link else b""
            row = (*(entry[name] for name in FIELDS), target)
            entries.setdefault((path, int(entry["sum"])), []).append(row)
    return entries


def walked(directory: Path, number: int) -> tuple[dict[Any, Any], tuple[int, int]]:
    fd = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    walk = Walk(fd, number, 2, 0, ffi.new("uint32_t *"))
    try:
        return found(walk), walk.errors()
    finally:
        walk.close()
        os.close(fd)


def test_a_record_says_what_the_scan_found(tree: Path, tmp_path: Path) -> None:
    other = tmp_path / "other"
    other.mkdir()
    os.mkfifo(other / "pipe")
    (other / os.fsdecode(b"not \xff UTF-8")).touch()
    # There are more files than a batch can hold. Some of their times are before 1970, or do not fit
    # into 64 bits as nanoseconds.
    for i in range(5000):
        (other / f"{i:04}").touch()
    os.utime(other / "0001", ns=(-(10**18), -(10**18) + 1))
    os.utime(other / "0002", (1e10, 1e10))
    for directory in (tree, other):
        # The first walk changes the access times of directories. The later walks do not change them
        # again, so all later walks find the same times.
        walked(directory, 0)
    record = read_record(record_sources(config_of(tmp_path, tree, other)))
    for number, directory in enumerate((tree, other)):
        listed = record[number]
        scan = RecordedScan(number, listed)
        entries, errors = walked(directory, number)
        assert found(scan) == entries
        assert scan.errors() == errors == (0, 0)
        assert listed.root_ino == directory.stat().st_ino
        for path, ino in listed.samples:
            assert (directory / os.fsdecode(path)).stat().st_ino == ino
        assert listed.up_ino == scan.up_ino == directory.parent.stat().st_ino
    assert len(record[0].samples) > 0
    assert len(entries) > 5000


def test_a_source_that_is_gone_is_told(tree: Path, tmp_path: Path) -> None:
    config = config_of(tmp_path, tree)
    tree.rename(tmp_path / "elsewhere")
    with pytest.raises(FileNotFoundError):
        record_sources(config)


def test_random_entries_come_back() -> None:
    random = np.random.default_rng(1)
    for n in (0, 1, 2, 1000):
        entries = np.frombuffer(random.bytes(n * ENTRY.itemsize), dtype=ENTRY).copy()
        entries["kind"] = random.integers(0, 4, n)
        told, text = unpack(pack(entries, b"text"), 7)
        assert text == b"text"
        assert (told["source"] == 7).all()
        for name in ENTRY.names or ():
            if name not in ("hash", "source", "version"):
                assert (told[name] == entries[name]).all(), name


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    place = tmp_path_factory.mktemp("recorded")
    return record_sources(config_of(place, make_tree(place / "source")))


@pytest.mark.parametrize("size", [0, 1, 7, 8, 100, -1])
def test_half_a_record_is_refused(recorded: bytes, size: int) -> None:
    with pytest.raises(ValueError, match="not a record of a scan"):
        read_record(recorded[:size])


def test_a_damaged_batch_is_refused(recorded: bytes) -> None:
    data = bytearray(recorded)
    data[-1] ^= 1
    scan = RecordedScan(0, read_record(bytes(data))[0])
    with pytest.raises(ValueError, match="not a batch of entries"):
        found(scan)


def test_a_hundred_bytes_a_file_are_enough(tmp_path: Path) -> None:
    """A record takes at most 100 bytes per file if the names, sizes and times differ as much as
    those of a real dataset."""
    random = np.random.default_rng(2)
    source, n = tmp_path / "source", 3000
    rows = enumerate(
        zip(
            random.integers(10**7, 10**8, n).tolist(),
            random.integers(0, 300_000, n).tolist(),
            random.integers(10**18, 16 * 10**17, n).tolist(),
            strict=True,
        )
    )
    for i, (name, size, at) in rows:
        directory = source / "train" / f"n{i // 100:08}"
        directory.mkdir(parents=True, exist_ok=True)
        file = directory / f"n{i // 100:08}_{name}.JPEG"
        with file.open("wb") as stream:
            stream.truncate(size)
        os.utime(file, ns=(at, at + 12345678 * i))
    data = record_sources(config_of(tmp_path, source))
    print(f"{len(data) / n:.1f} bytes a file")
    assert len(data) <= 100 * n
