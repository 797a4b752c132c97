"""The manifest of a persistent tier: what the manifest keeps, and when the next daemon trusts the
tier's copies."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from monarch_py.errors import TierError
from monarch_py.native import path_hash
from monarch_py.storage import manifest as manifest_module
from monarch_py.storage.manifest import ROW, Manifest, Row, signed
from monarch_py.util.processes import boot_id

LARGEST = (1 << 64) - 1


def row(copy: int = 1, path: bytes = b"a/b", *, source: str = "/data", **more: int) -> Row:
    numbers = {"size": 9, "ino": 7, "mtime_ns": 5, "ctime_ns": 6, "sum": 3, **more}
    blocks = bytes(range(8))
    return Row(copy, source, path, block_size=4096, blocks=blocks, **numbers)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "manifest.sqlite"


def test_what_was_changed_is_there_after_reopening(path: Path) -> None:
    kept = row(12, b"x/\xff y", ino=LARGEST, sum=LARGEST - 1, mtime_ns=-1, ctime_ns=-(1 << 62))
    with closing(Manifest(path)) as manifest:
        manifest.change([kept, row(13), row(14)], [])
        manifest.change([], [13])
    with closing(Manifest(path)) as manifest:
        rows = manifest.load()
        assert rows.dtype == ROW
        first, second = rows[0], rows[1]
        assert [first["copy"], second["copy"]] == [12, 14]
        assert first["hash"] == path_hash(b"x/\xff y")
        assert (first["ino"], first["sum"]) == (LARGEST, LARGEST - 1)
        assert (first["mtime_ns"], first["ctime_ns"]) == (-1, -(1 << 62))
        assert (first["size"], manifest.sources) == (9, {"/data": int(first["source"])})
        assert manifest.all_copies()[0] == (
            12, "/data", b"x/\xff y", 9, LARGEST - 1, bytes(range(8)),
        )  # fmt: skip


def test_a_copy_number_is_recorded_once(path: Path) -> None:
    with closing(Manifest(path)) as manifest:
        manifest.change([row(1, b"old")], [])
        manifest.change([row(1, b"new")], [])
        assert [found[2] for found in manifest.all_copies()] == [b"new"]


def test_sources_are_told_apart(path: Path) -> None:
    with closing(Manifest(path)) as manifest:
        manifest.change([row(1, source="/one"), row(2, source="/two"), row(3, source="/one")], [])
        numbers = manifest.load()["source"].tolist()
        assert numbers == [manifest.sources[s] for s in ("/one", "/two", "/one")]
        assert [found[1] for found in manifest.all_copies()] == ["/one", "/two", "/one"]


def test_a_full_disk_is_an_error_and_the_next_change_works(path: Path) -> None:
    with closing(Manifest(path)) as manifest:
        manifest.change([row(1)], [])
        pages = manifest._db.execute("PRAGMA page_count").fetchone()[0]
        manifest._db.execute(f"PRAGMA max_page_count = {pages}")
        many = [row(n, b"long" * 400, source="/other") for n in range(2, 60)]
        with pytest.raises(sqlite3.OperationalError, match="full"):
            manifest.change(many, [1])
        assert manifest.load()["copy"].tolist() == [1]
        assert manifest.sources == {"/data": 1}
        manifest._db.execute("PRAGMA max_page_count = 100000")
        manifest.change(many, [1])
        assert manifest.load()["copy"].tolist() == list(range(2, 60))


def test_the_first_user_of_a_new_manifest_trusts_nothing(path: Path) -> None:
    with closing(Manifest(path)) as manifest:
        assert manifest.begin_use() is True


def reopened(path: Path) -> bool:
    with closing(Manifest(path)) as manifest:
        return manifest.begin_use()


def test_only_a_clean_end_in_this_boot_is_trusted(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with closing(Manifest(path)) as manifest:
        manifest.begin_use()
        manifest.end_use()
    assert reopened(path) is False
    # `reopened` has closed the manifest without `end_use`, so the last use of the manifest did not
    # end cleanly.
    assert reopened(path) is True
    with closing(Manifest(path)) as manifest:
        manifest.begin_use()
        manifest.end_use()
    monkeypatch.setattr(manifest_module, "boot_id", lambda: "another boot")
    assert reopened(path) is True


def test_copies_that_still_wait_for_their_check_are_not_trusted(path: Path) -> None:
    with closing(Manifest(path)) as manifest:
        manifest.begin_use()
        manifest.keep_unchecked()
        manifest.end_use()
    assert reopened(path) is True


def test_this_boot_has_a_name() -> None:
    assert len(boot_id()) == 36


def test_the_block_size_is_remembered(path: Path) -> None:
    with closing(Manifest(path)) as manifest:
        assert manifest.block_size == 0
        manifest.set_block_size(1 << 22)
    with closing(Manifest(path)) as manifest:
        assert manifest.block_size == 1 << 22


def test_a_damaged_manifest_is_a_tier_error(path: Path) -> None:
    path.write_bytes(b"this is no database, and longer than the header of one" * 20)
    with pytest.raises(
        TierError, match=r"the manifest is damaged .*; `monarch start` sets it aside"
    ):
        Manifest(path)


def test_a_newer_format_is_refused_and_left_as_it_is(path: Path) -> None:
    with closing(Manifest(path)) as manifest:
        manifest.change([row(1)], [])
    with closing(sqlite3.connect(path, isolation_level=None)) as database:
        database.execute("UPDATE meta SET value = '99' WHERE key = 'version'")
    for _ in range(2):  # the second attempt shows that the first one has not changed the format
        with pytest.raises(TierError, match="its format is version 99"):
            Manifest(path)


def test_an_empty_manifest_has_no_rows(path: Path) -> None:
    with closing(Manifest(path)) as manifest:
        assert manifest.load().shape == (0,)
        assert manifest.all_copies() == []


@given(st.integers(0, LARGEST))
def test_64_bits_survive_the_signed_numbers_of_sqlite(value: int) -> None:
    assert -(1 << 63) <= signed(value) < 1 << 63
    assert signed(value) & LARGEST == value
    assert np.array([signed(value)], dtype=np.int64).view(np.uint64)[0] == value
