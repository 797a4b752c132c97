"""Compares the catalog with a dict after random batches of entries, and tests it while it grows."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.draws import examples, sized

from monarch_py.arrays import ENTRY, pointer
from monarch_py.ipc import word
from monarch_py.ipc.catalog import Catalog, CatalogReader
from monarch_py.ipc.session import SessionDir
from monarch_py.native import Kind, State, ffi, lib

# Names that a file system allows: any bytes except NUL and the slash.
names = st.binary(min_size=1, max_size=40).map(
    lambda raw: raw.replace(b"\0", b"x").replace(b"/", b"y")
)
paths = st.lists(names, min_size=1, max_size=4).map(b"/".join)
files = st.lists(
    st.tuples(st.integers(0, 2), paths, st.integers(1, 2**63)),
    max_size=60,
    unique_by=lambda row: (row[0], row[1]),
)


def batch(rows: list[tuple[int, bytes, int]], kind: Kind = Kind.FILE) -> tuple[Any, Any]:
    """Returns entries and the pool of their paths, in the form in which a scan returns them.

    rows : (source, path, inode)
    """
    entries = np.zeros(len(rows), dtype=ENTRY)
    text = b""
    for entry, (source, path, inode) in zip(entries, rows, strict=True):
        entry["source"], entry["path"], entry["path_len"] = source, len(text), len(path)
        entry["ino"], entry["kind"], entry["size"] = inode, kind, inode % 1000
        text += path + b"\0"
        entry["copy_ino"] = len(text)
        text += b"target of " + path + b"\0" if kind == Kind.LINK else b""
    return entries, ffi.new("char[]", text or b"\0")


def make(directory: Path) -> Catalog:
    session = SessionDir(directory)
    return Catalog(session, ffi.new("uint64_t *"))


@pytest.fixture
def catalog(tmp_path: Path) -> Iterator[Catalog]:
    yield make(tmp_path)


@settings(deadline=None, max_examples=examples(25))
@given(batches=st.lists(files, min_size=1, max_size=5))
def test_what_is_added_is_found_and_nothing_else(
    batches: list[list[tuple[int, bytes, int]]],
) -> None:
    with TemporaryDirectory() as directory:
        catalog = make(Path(directory))
        known: dict[tuple[int, bytes], tuple[int, int]] = {}
        for rows in batches:
            ids, added = catalog.add(*batch(rows))
            fresh = 0
            for (source, path, inode), entry in zip(rows, ids.tolist(), strict=True):
                fresh += (source, path) not in known
                assert known.setdefault((source, path), (entry, inode))[0] == entry
            assert added == fresh
        assert len(catalog) == len(known)
        for (source, path), (entry, inode) in known.items():
            assert catalog.find(source, os.fsdecode(path)) == entry
            assert os.fsencode(catalog.path(entry)) == path
            found = catalog.find_inode(source, inode)
            assert catalog.entries["ino"][found] == inode
            assert catalog.find(source + 3, os.fsdecode(path)) == -1
            assert catalog.find(source, os.fsdecode(path + b"?")) in (
                -1,
                known.get((source, path + b"?"), (-1, 0))[0],
            )


def test_each_file_is_found_by_what_is_its_own_alone(catalog: Catalog) -> None:
    """Two sources have files with the same paths, and some paths are the beginning of other paths.
    A path always leads to its own entry, whichever entry the caller passes as a guess. A hash leads
    to its entry only if the caller passes the right source."""
    paths = [b"a", b"ab", b"a/b", b"a/bc", b"b"]
    rows = [(source, path, 7) for source in (0, 1) for path in paths]
    ids, _ = catalog.add(*batch(rows))
    known = {
        (source, path): entry for (source, path, _), entry in zip(rows, ids.tolist(), strict=True)
    }
    for source in (0, 1, 2):
        for path in [*paths, b"", b"a/", b"abc"]:
            text = ffi.new("char[]", path)
            right = known.get((source, path), -1)
            for guess in (-1, *known.values()):
                digest = lib.monarch_path_hash(source, text, len(path))
                found = lib.monarch_find_prepared(catalog.c, source, text, len(path), digest, guess)
                assert found == right, (source, path, guess)
            for other in (0, 1, 2):
                found = lib.monarch_find_hash(catalog.c, other, digest)
                assert found == (right if other == source else -1)
        assert (catalog.find_inode(source, 7) >= 0) == (source < 2)


def many(count: int, start: int = 0) -> list[tuple[int, bytes, int]]:
    return [(0, b"directory%d/file%d" % (i % 7, i), i + 1) for i in range(start, start + count)]


def test_growth_keeps_everything_and_fit_gives_back(catalog: Catalog) -> None:
    for start in range(0, 50_000, 10_000):
        catalog.add(*batch(many(10_000, start)))
    assert catalog.c.generation > 1
    large = catalog.c.bytes
    catalog.fit()
    assert catalog.c.bytes < large
    rows = many(50_000)
    for source, path, inode in rows[::97]:
        entry = catalog.find(source, path.decode())
        assert catalog.entries["ino"][entry] == inode
    # Only the latest segment of the catalog is left. A reader that opens it finds all entries.
    (segment,) = catalog.session.path.glob("catalog.*")
    reader = CatalogReader.open(catalog.session, int(segment.suffix[1:]))
    assert len(reader) == 50_000
    catalog.add(*batch(many(5, 50_000)))
    assert catalog.find(0, many(1, 50_004)[0][1].decode()) == 50_004


def test_a_catalog_stays_within_192_bytes_and_the_path_of_a_file(catalog: Catalog) -> None:
    rows = many(20_000)
    catalog.add(*batch(rows))
    catalog.fit()
    text = sum(len(path) for _, path, _ in rows)
    assert catalog.c.bytes <= 192 * len(rows) + text + 64 * 1024


def publish(
    catalog: Catalog, ids: list[int], tier: int, copies: list[int], inodes: list[int]
) -> None:
    words = word.make(State.PRESENT, 0, tier, np.array(copies, dtype=np.uint64))
    columns = [np.array(column, dtype=np.uint64) for column in (ids, inodes, copies)]
    catalog.publish(columns[0], words, columns[1], columns[2], np.zeros(len(words), dtype=bool))


def test_published_copies_are_found_by_their_inode(catalog: Catalog) -> None:
    catalog.add(*batch(many(1000)))
    ids = list(range(0, 1000, 3))
    publish(catalog, ids, 1, [10**12 + i for i in ids], [77 + i for i in ids])
    for entry in ids:
        assert catalog.find_copy(1, 77 + entry) == entry
        assert catalog.find_copy(0, 77 + entry) == -1
    words = catalog.words[np.array(ids)]
    assert (word.state(words) == State.PRESENT).all()
    assert (word.tier(words) == 1).all()
    assert word.copy(words).tolist() == [10**12 + i for i in ids]


def test_the_index_guesses_the_copies_that_are_there_and_no_others(catalog: Catalog) -> None:
    def guessed() -> list[int]:
        hashes = catalog.entries["hash"].tolist()
        word = ffi.new("uint64_t *")
        found = []
        for entry, known in enumerate(hashes):
            likely = lib.monarch_guess(catalog.c, known, word)
            assert likely == entry or not word[0]
            found.append(int(word[0]) >> 8)
        return found

    catalog.add(*batch(many(1000)))
    words = np.zeros(1000, dtype=np.uint64)
    for copy in (10**12, 2 * 10**12):  # in the second round, each file gets a newer copy
        ids = np.arange(0, 1000, 3)
        publish(catalog, ids.tolist(), 1, (copy + ids).tolist(), (copy + ids).tolist())
        words[ids] = catalog.words[ids]
        assert guessed() == (words >> 8).tolist()
    dropped = np.arange(0, 1000, 6, dtype=np.uint64)
    catalog.set_words(dropped, word.make(State.ABSENT, 0, 1, np.uint64(7)))
    words[dropped] = 0
    assert guessed() == (words >> 8).tolist()
    catalog.add(*batch(many(20_000, 1000)))  # a larger catalog
    assert guessed() == (words >> 8).tolist() + [0] * 20_000


def test_an_inode_that_the_tier_gives_again_leads_to_its_new_file(catalog: Catalog) -> None:
    catalog.add(*batch(many(10)))
    publish(catalog, [3], 0, [1], [4711])
    catalog.set_words(np.array([3], dtype=np.uint64), word.make(State.ABSENT, 0, 0, 1))
    assert catalog.find_copy(0, 4711) in (3, -1)
    publish(catalog, [8], 0, [2], [4711])
    assert catalog.find_copy(0, 4711) == 8


def test_copies_published_again_and_again_outgrow_no_index(catalog: Catalog) -> None:
    catalog.add(*batch(many(100)))
    ids = list(range(100))
    for round_number in range(200):
        inodes = [1 + round_number * 100 + i for i in ids]
        publish(catalog, ids, 0, [1 + round_number] * 100, inodes)
    assert [catalog.find_copy(0, inode) for inode in inodes] == ids


def replace_all(catalog: Catalog, rows: list[tuple[int, bytes, int]], more: int) -> None:
    """Replaces each file with a file whose inode number is larger by `more`. Checks that the
    entry of the replaced file is then found by the new number."""
    entries, _ = batch([(source, path, ino + more) for source, path, ino in rows])
    for entry in range(len(rows)):
        catalog.update(entry, entries[entry : entry + 1])
        assert catalog.find_inode(0, int(entries["ino"][entry])) == entry


def test_the_catalog_has_room_for_new_attributes(catalog: Catalog) -> None:
    """The catalog can store new attributes of a few files without growing, so its entries are not
    copied to a larger catalog."""
    rows = many(10)
    catalog.add(*batch(rows))
    generation = catalog.c.generation
    replace_all(catalog, rows, 10**6)
    assert catalog.c.generation == generation


def test_new_attributes_replace_all_old_ones_and_outlast_growth(catalog: Catalog) -> None:
    kept = ("hash", "path", "word", "path_len", "source", "kind", "place")
    catalog.add(*batch(many(3)))
    before = catalog.entries[1].copy()
    fresh = np.zeros(1, dtype=ENTRY)
    for number, field in enumerate(fresh.dtype.names or ()):
        fresh[field] = 100 + number
    fresh["flags"] = lib.MONARCH_OWN | lib.MONARCH_ATTRIBUTES
    catalog.update(1, fresh)
    right = fresh[0].copy()
    for field in kept:
        right[field] = before[field]
    right["flags"] = lib.MONARCH_ATTRIBUTES  # update() does not change MONARCH_OWN
    right["version"] = before["version"] + 2
    assert catalog.entries[1] == right
    catalog.add(*batch(many(20_000, 3)))
    assert catalog.entries[1] == right
    catalog.fit()
    assert catalog.entries[1] == right


def test_files_replaced_again_and_again_outgrow_no_index(catalog: Catalog) -> None:
    rows = many(1000)
    catalog.add(*batch(rows))
    catalog.fit()
    generation = catalog.c.generation
    for round_number in range(1, 6):
        replace_all(catalog, rows, 10**6 * round_number)
        # New files are found too, even if the catalog had to grow for them.
        new = many(50, 10**5 + 50 * round_number)
        ids, _ = catalog.add(*batch(new))
        assert [catalog.find_inode(0, ino) for _, _, ino in new] == ids.tolist()
    assert catalog.c.generation > generation
    assert [catalog.find_inode(0, ino) for _, _, ino in rows] == [-1] * 1000


def test_what_a_dropped_copy_leaves_hides_no_other(catalog: Catalog) -> None:
    """A copy is found by its inode number after the catalog has grown, even if a dropped copy in
    another tier had the same inode number."""
    catalog.add(*batch(many(10)))
    publish(catalog, [0], 1, [1], [4711])
    catalog.set_state(np.array([0], dtype=np.uint64), State.ABSENT)
    publish(catalog, [5], 0, [2], [4711])
    catalog.add(*batch(many(20_000, 10)))
    assert catalog.find_copy(0, 4711) == 5


def test_links_keep_their_targets_over_growth(catalog: Catalog) -> None:
    catalog.add(*batch([(0, b"a/link", 5), (0, b"b", 6)], Kind.LINK))
    catalog.add(*batch(many(20_000)))
    entry = catalog.find(0, "a/link")
    at = int(catalog.c.pool_at + catalog.entries["copy_ino"][entry])
    assert catalog.segment.memory[at : at + 17] == b"target of a/link\0"


def test_files_with_one_inode_are_two_entries(catalog: Catalog) -> None:
    ids, added = catalog.add(*batch([(0, b"one", 9), (0, b"other", 9)]))
    assert added == 2
    assert catalog.find_inode(0, 9) in ids.tolist()


def test_the_longest_paths_fit(catalog: Catalog) -> None:
    long = b"/".join([b"d" * 255] * 15)
    rows = [(0, long + b"/%d" % i, i + 1) for i in range(300)]
    catalog.add(*batch(rows))
    assert [catalog.find(0, path.decode()) for _, path, _ in rows] == list(range(300))


READER = """
import sys
from pathlib import Path
from monarch_py.ipc.catalog import CatalogReader
from monarch_py.ipc.session import SessionDir
directory, done = Path(sys.argv[1]), Path(sys.argv[2])
looks = 0
while not done.exists() or not looks:
    for path in directory.glob("catalog.*"):
        try:
            reader = CatalogReader.open(SessionDir(directory), int(path.suffix[1:]))
        except FileNotFoundError:
            continue
        count = len(reader)
        for entry in {0, count // 2, count - 1} if count else ():
            name = reader.path(entry)
            assert name.startswith("directory") and name.endswith(f"file{entry}"), (entry, name)
            assert reader.find(0, name) == entry, (entry, name)
        looks += 1
print(looks)
"""


def test_readers_in_other_processes_see_only_right_answers_while_it_grows(tmp_path: Path) -> None:
    directory, done = tmp_path / "session", tmp_path / "done"
    directory.mkdir()
    catalog = make(directory)
    words = [sys.executable, "-c", READER, str(directory), str(done)]
    readers = [subprocess.Popen(words, stdout=subprocess.PIPE, text=True) for _ in range(2)]
    try:
        for start in range(0, sized(25_000, 60_000), 500):
            catalog.add(*batch(many(500, start)))
        done.touch()
        for reader in readers:
            assert reader.wait(timeout=60) == 0
            assert reader.stdout is not None
            assert int(reader.stdout.read()) > 0
    finally:
        for reader in readers:
            reader.kill()
            reader.wait()
            if reader.stdout is not None:
                reader.stdout.close()


def test_copies_that_come_and_go_take_no_place_in_the_index(catalog: Catalog) -> None:
    """The catalog must not grow even if most files are staged again in each of many epochs."""
    catalog.add(*batch(many(300)))
    catalog.c.stamped, catalog.c.salt = 1 + 2, 5
    ids = list(range(300))
    publish(catalog, [0], 1, [10**9], [7])
    before = int(catalog.c.generation), int(catalog.c.copies_used)
    assert before[1] == 1
    stamps = [int(lib.monarch_stamp_of(5, entry)) for entry in ids]
    for epoch in range(1, 300):
        inodes = [epoch * 1000 + entry for entry in ids]
        publish(catalog, ids[1:], 2, [epoch * 1000 + entry for entry in ids[1:]], inodes[1:])
        last = ids[-1]
        found = [
            int(lib.monarch_find_stamped(catalog.c, 2, inode, last, stamps[last], 0))
            for inode in (inodes[last], inodes[last] - 1000)
        ]
        assert found == [last, -1]  # the inode number of the older copy finds nothing any more
        assert lib.monarch_find_stamped(catalog.c, 2, 5, last, stamps[last], 1) == last
        assert lib.monarch_find_stamped(catalog.c, 2, 5, last, stamps[last] + 1, 1) == -1
    assert (int(catalog.c.generation), int(catalog.c.copies_used)) == before
    assert catalog.find_copy(1, 7) == 0


@pytest.mark.parametrize("ops_per_s", [0, 20_000_000])
def test_a_comparison_with_the_source_ends_in_time(
    catalog: Catalog, tmp_path: Path, ops_per_s: int
) -> None:
    """A comparison of files with the source ends at its time limit, with or without a limit on the
    operations per second."""
    (tmp_path / "file").touch()
    catalog.add(*batch([(0, b"file", 1)]))
    looks, limit_ns = 300_000, 10_000_000  # no machine compares so many entries in limit_ns
    ids, found, fresh = (
        np.zeros(looks, np.uint64),
        np.zeros(looks, np.uint8),
        np.zeros(looks, ENTRY),
    )
    roots = ffi.new("int32_t[1]", [os.open(tmp_path, os.O_RDONLY)])
    told = pointer(found), pointer(fresh)
    compared = lib.monarch_compare(
        catalog.c, roots, looks, pointer(ids), 2, ops_per_s, limit_ns, *told
    )
    os.close(roots[0])
    assert 0 < compared < looks
    assert lib.MONARCH_REPLACED in found[:compared]
