"""RecordDataset yields the same bytes as h5py. It joins and cuts reads, and raises clear errors."""

from __future__ import annotations

import errno
import gc
import io
import multiprocessing
import os
import pickle
import re
import resource
import struct
import sys
import tarfile
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.draws import cases

from monarch_py.arrays import Array
from monarch_py.demo.slowsource import SlowSource
from monarch_py.errors import ConfigError, MonarchError
from monarch_py.loaders.records import descriptors
from monarch_py.loaders.records.dataset import LEAST_GAP, MOST_GAP, RecordDataset, crossing
from monarch_py.loaders.records.files import tar_members
from monarch_py.loaders.records.joining import PIECE, Extents, join, pieces
from monarch_py.loaders.records.whole_files import ImageFolderFiles
from monarch_py.plan.builders import index_hdf5

h5py = pytest.importorskip("h5py")

# Ways to store a dataset whose rows have the shape (20, 12).
STORED: dict[str, dict[str, Any]] = {
    "contiguous": {},
    "chunks": {"chunks": (10, 20, 12)},
    "parts": {"chunks": (10, 7, 5)},
    "wide": {"chunks": (16, 32, 12), "maxshape": (None, None, None)},
    "gzip": {"chunks": (10, 7, 12), "compression": "gzip", "shuffle": True},
    "summed": {"chunks": (10, 7, 12), "compression": "gzip", "shuffle": True, "fletcher32": True},
    "lzf": {"chunks": (64, 20, 12), "compression": "lzf"},
}


def content(rows: int = 300, seed: int = 0) -> Array:
    """Returns rows of which the first half cannot be compressed, so that HDF5 skips the filters of
    some chunks."""
    made = np.random.default_rng(seed).normal(size=(rows, 20, 12)).astype(">f4")
    made[rows // 2 :] = np.arange(rows - rows // 2)[:, None, None]
    return made


def write_hdf5(path: Path, values: Array, **stored: Any) -> Path:
    with h5py.File(path, "w", **stored.pop("file", {})) as file:
        file.create_dataset("x", data=values, **stored)
    return path


@pytest.mark.parametrize("name", STORED)
@pytest.mark.parametrize("file", [{}, {"userblock_size": 512}, {"libver": "latest"}])
def test_rows_are_those_of_h5py(tmp_path: Path, name: str, file: dict[str, Any]) -> None:
    values = content()
    path = write_hdf5(tmp_path / "train.h5", values, file=file, **STORED[name])
    dataset = RecordDataset(path, dataset="x")
    assert len(dataset) == 300
    rng = np.random.default_rng(1)
    for _ in range(5):
        wanted = rng.integers(-300, 300, 64)
        rows = dataset.__getitems__(wanted.tolist())
        assert all(np.array_equal(row, values[i]) for row, i in zip(rows, wanted, strict=True))
    row = dataset[7]
    assert (row.dtype, row.shape) == (values.dtype, (20, 12))
    assert np.array_equal(row, values[7])
    out = bytearray(int(dataset.sizes[50:200].sum()))
    dataset.read_into(range(50, 200), out)
    assert bytes(out) == values[50:200].tobytes()
    dataset.close()


def test_a_chunk_is_read_once_for_rows_one_after_the_other(
    slow_factory: Callable[..., SlowSource],
) -> None:
    source = slow_factory(direct=True)
    values = content()
    write_hdf5(source.backing / "a.h5", values, **STORED["lzf"])
    dataset = RecordDataset(source.mountpoint / "a.h5", dataset="x")
    dataset[299]
    source.reset()
    assert all(np.array_equal(dataset[i], values[i]) for i in range(128))
    assert source.counts()["read"] == 2
    assert np.array_equal(np.array(dataset.__getitems__([130, 3, 100])), values[[130, 3, 100]])
    assert source.counts()["read"] == 4, "the chunk of row 100 must not be read again"
    assert len(dataset.__getitems__([])) == 0


def test_datasets_of_one_file(tmp_path: Path) -> None:
    values = content()
    path = write_hdf5(tmp_path / "a.h5", values, **STORED["summed"])
    first, second = (RecordDataset(path, dataset="x") for _ in range(2))
    assert np.array_equal(first[0], values[0])
    assert np.array_equal(second[1], values[1])


@pytest.mark.parametrize("stored", [{"chunks": (4, 3)}, {"chunks": (4, 3), "compression": "gzip"}])
def test_what_was_never_written_is_the_fill_value(tmp_path: Path, stored: dict[str, Any]) -> None:
    with h5py.File(tmp_path / "train.h5", "w") as file:
        made = file.create_dataset("x", shape=(30, 5), dtype="i2", fillvalue=7, **stored)
        made[9:13] = 1
        expected = made[:]
    dataset = RecordDataset(tmp_path / "train.h5", dataset="x")
    assert np.array_equal(np.array(dataset.__getitems__(range(30))), expected)


@pytest.mark.parametrize(
    "values",
    [
        np.arange(40, dtype="i8"),
        np.arange(40) % 3 == 0,
        np.array([(i, i / 2) for i in range(40)], dtype=[("a", "i4"), ("b", "f8")]),
        np.array([f"{i}".encode() for i in range(40)], dtype="S6"),
        np.arange(40) * 1j,
    ],
    ids=["i8", "bool", "struct", "text", "complex"],
)
def test_types_of_elements(tmp_path: Path, values: Array) -> None:
    path = write_hdf5(tmp_path / "train.h5", values)
    dataset = RecordDataset(path, dataset="x")
    with h5py.File(path) as file:
        expected = file["x"][:]
    rows = dataset.__getitems__([3, 0, 39])
    assert [row.dtype for row in rows] == [expected.dtype] * 3
    assert [row.tobytes() for row in rows] == [expected[i : i + 1].tobytes() for i in (3, 0, 39)]


def test_elements_without_fixed_bytes_are_refused(tmp_path: Path) -> None:
    path = write_hdf5(tmp_path / "train.h5", np.array(["a", "bc"], dtype=object))
    with pytest.raises(MonarchError, match=r"train\.h5: .* have no fixed size"):
        RecordDataset(path, dataset="x")


@pytest.mark.parametrize("kind", ["12 bits", "spaces"])
def test_elements_that_h5py_converts_are_refused(tmp_path: Path, kind: str) -> None:
    made = (h5py.h5t.STD_U16LE if kind == "12 bits" else h5py.h5t.C_S1).copy()
    if kind == "12 bits":
        made.set_precision(12)
        made.set_offset(2)
    else:
        made.set_size(5)
        made.set_strpad(h5py.h5t.STR_SPACEPAD)
    with h5py.File(tmp_path / "a.h5", "w") as file:
        place = h5py.h5d.create(file.id, b"x", made, h5py.h5s.create_simple((3,)))
        h5py.Dataset(place)[...] = [1, 2, 3] if kind == "12 bits" else [b"a", b"bc", b"def"]
    with pytest.raises(MonarchError, match="h5py converts them"):
        RecordDataset(tmp_path / "a.h5", dataset="x")


def test_threads_read_their_own_samples(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """At most 2 of the 12 files may stay open, so threads close each other's files. Even so, each
    thread reads the right samples."""
    monkeypatch.setattr(descriptors, "MOST_OPEN", 2)
    for number in range(12):
        (tmp_path / f"{number:02d}.bin").write_bytes(bytes([number]) * 64)
    dataset = RecordDataset(tmp_path, kind="fixed", record_bytes=64, patterns=["*.bin"])

    def wrong(seed: int) -> int:
        numbers = np.random.RandomState(seed).randint(0, 12, 1500).tolist()
        return sum(dataset[number] != bytes([number]) * 64 for number in numbers)

    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        with ThreadPoolExecutor(4) as pool:
            assert list(pool.map(wrong, range(4))) == [0] * 4
    finally:
        sys.setswitchinterval(interval)


def test_a_forked_child_reads_whatever_its_parents_threads_do(tmp_path: Path) -> None:
    (tmp_path / "a.bin").write_bytes(bytes(64))
    dataset = RecordDataset(tmp_path / "a.bin", record_bytes=8)
    with dataset._lock:
        child = multiprocessing.get_context("fork").Process(target=read_in_thread, args=(dataset,))
        child.start()
    child.join(5.0)
    child.kill()
    child.join()
    assert child.exitcode == 0


def read_in_thread(dataset: RecordDataset) -> None:
    with ThreadPoolExecutor(1) as pool:
        assert pool.submit(dataset.__getitem__, 3).result() == bytes(8)


def test_a_batch_over_more_files_than_a_process_may_open(tmp_path: Path) -> None:
    for number in range(400):
        (tmp_path / f"{number:03d}.bin").write_bytes(bytes([number % 251]) * 8)
    dataset = RecordDataset(tmp_path, kind="fixed", record_bytes=8, patterns=["*.bin"])
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (len(os.listdir("/proc/self/fd")) + 300, hard))
    try:
        assert dataset.__getitems__(range(400)) == [bytes([i % 251]) * 8 for i in range(400)]
        dataset.close()
        resource.setrlimit(resource.RLIMIT_NOFILE, (3, hard))
        with pytest.raises(MonarchError, match=r"ulimit -n"):
            dataset[0]
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_a_dataset_that_nobody_has_keeps_no_descriptor(tmp_path: Path) -> None:
    (tmp_path / "a.bin").write_bytes(bytes(64))
    gc.collect()
    before = os.listdir("/proc/self/fd")
    for _ in range(3):
        assert RecordDataset(tmp_path / "a.bin", record_bytes=8)[0] == bytes(8)
    gc.collect()
    assert os.listdir("/proc/self/fd") == before


def test_whole_files_by_number(tmp_path: Path) -> None:
    for name, size in (("a/1.png", 3), ("a/2.png", 5), ("b/1.png", 4)):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(name.encode()[:1] * size)
    files = ImageFolderFiles(tmp_path)
    assert (files[-1], files[-2], files.name(-3)) == (b"bbbb", b"aaaaa", "a/1.png")
    out = bytearray(7)
    files.read_into([-1, 0], out)
    assert bytes(out) == b"bbbbaaa"
    for number in (3, -4):
        with pytest.raises(IndexError):
            files[number]
    (tmp_path / "a/2.png").write_bytes(bytes(9))
    with pytest.raises(OSError, match=r"9 bytes, but 5 in the index"):
        files[1]


def test_files_of_a_directory_are_read_by_path(tmp_path: Path) -> None:
    """The samples of a directory are numbered in the order of its files' paths, even if the files
    are stored in different ways."""
    parts = [content(64, seed) for seed in range(len(STORED))]
    for number, (values, stored) in enumerate(zip(parts, STORED.values(), strict=True)):
        write_hdf5(tmp_path / f"{number}.h5", values, **stored)
    values = np.concatenate(parts)
    dataset = RecordDataset(tmp_path, dataset="x")
    wanted = np.random.default_rng(2).permutation(len(values))
    rows = dataset.__getitems__(wanted.tolist())
    assert np.array_equal(np.array(rows), values[wanted])


# --- other formats -------------------------------------------------------------------------------


def samples(count: int) -> list[bytes]:
    rng = np.random.default_rng(4)
    return [rng.bytes(int(size)) for size in rng.integers(0, 3000, count)]


def check(dataset: RecordDataset, expected: list[bytes]) -> None:
    assert dataset.sizes.tolist() == [len(each) for each in expected]
    wanted = np.random.default_rng(5).integers(0, len(expected), 40).tolist()
    assert dataset.__getitems__(wanted) == [expected[i] for i in wanted]
    assert [dataset[i] for i in range(len(expected))] == expected
    out = bytearray(sum(map(len, expected)))
    dataset.read_into(range(len(expected)), out)
    assert bytes(out) == b"".join(expected)


def test_tfrecords_are_their_data(tmp_path: Path) -> None:
    expected = samples(50)
    for number, some in enumerate((expected[:20], expected[20:])):
        framed = [struct.pack("<QI", len(s), 0) + s + bytes(4) for s in some]
        (tmp_path / f"train.tfrecord-{number}").write_bytes(b"".join(framed))
    check(RecordDataset(tmp_path, kind="tfrecord"), expected)
    check(RecordDataset(tmp_path / "train.tfrecord-0"), expected[:20])


def test_samples_of_a_tar_are_their_members(tmp_path: Path) -> None:
    expected = samples(30)
    with tarfile.open(tmp_path / "train.tar", "w") as archive:
        for number, sample in enumerate(expected):
            for extension, data in (("bin", sample), ("cls.txt", b"%d" % number)):
                member = tarfile.TarInfo(f"a/{number:03}.{extension}")
                member.size = len(data)
                archive.addfile(member, io.BytesIO(data))
    dataset = RecordDataset(tmp_path / "train.tar")
    found = [tar_members(sample) for sample in dataset.__getitems__(range(30))]
    assert found == [{"bin": s, "cls.txt": b"%d" % n} for n, s in enumerate(expected)]


def test_fixed_records(tmp_path: Path) -> None:
    expected = [sample[:100].ljust(100) for sample in samples(30)]
    (tmp_path / "train.bin").write_bytes(b"header" + b"".join(expected))
    check(RecordDataset(tmp_path / "train.bin", record_bytes=100, header_bytes=6), expected)


# --- processes -----------------------------------------------------------------------------------


def rows_in_child(dataset: RecordDataset, wanted: list[int], to: Any) -> None:
    to.send_bytes(b"".join(row.tobytes() for row in dataset.__getitems__(wanted)))


PROCESSES = [(n, m) for n in ("contiguous", "gzip") for m in ("fork", "spawn")]


@pytest.mark.parametrize("process", cases(PROCESSES, short=PROCESSES[1:3]), ids="-".join)
def test_other_processes_read_alike(tmp_path: Path, process: tuple[str, str]) -> None:
    name, method = process
    values = content()
    dataset = RecordDataset(write_hdf5(tmp_path / "a.h5", values, **STORED[name]), dataset="x")
    wanted = [5, 200, 6, 299]
    assert np.array_equal(np.array(dataset.__getitems__(wanted)), values[wanted])
    context: Any = multiprocessing.get_context(method)
    here, there = context.Pipe()
    child = context.Process(target=rows_in_child, args=(dataset, wanted, there))
    child.start()
    try:
        assert here.poll(60)
        assert here.recv_bytes() == values[wanted].tobytes()
    finally:
        child.join(60)
    assert child.exitcode == 0


def test_a_pickle_holds_no_descriptor(tmp_path: Path) -> None:
    values = content()
    dataset = RecordDataset(write_hdf5(tmp_path / "a.h5", values), dataset="x")
    assert np.array_equal(pickle.loads(pickle.dumps(dataset))[4], values[4])
    assert np.array_equal(dataset[5], values[5])
    assert np.array_equal(pickle.loads(pickle.dumps(dataset))[6], values[6])


@pytest.mark.parametrize("workers", [0, 2])
def test_a_dataloader_gets_the_rows(tmp_path: Path, workers: int) -> None:
    torch_data = pytest.importorskip("torch.utils.data")
    values = content(64).astype("f4")
    dataset = RecordDataset(write_hdf5(tmp_path / "a.h5", values), dataset="x")
    loader = torch_data.DataLoader(dataset, batch_size=10, num_workers=workers)
    got = np.concatenate([batch.numpy() for batch in loader])
    assert np.array_equal(got, values)


# --- reads ---------------------------------------------------------------------------------------


@given(
    st.lists(st.tuples(st.integers(0, 2), st.integers(0, 900), st.integers(0, 100)), max_size=30),
    st.integers(0, 60),
    st.integers(1, 300),
)
@settings(max_examples=100, deadline=None)
def test_joined_reads_bring_all_extents(
    drawn: list[tuple[int, int, int]], gap: int, piece: int
) -> None:
    rng = np.random.default_rng(3)
    files = rng.integers(0, 256, (3, 1000), dtype=np.uint8)
    table = np.array(drawn, dtype=np.int64).reshape(-1, 3)
    length = table[:, 2]
    start = np.cumsum(length) - length
    extents = Extents(table[:, 0].astype(np.int32), table[:, 1], length, start)
    joined = join(extents, gap)
    out, scratch = np.zeros(length.sum(), np.uint8), np.zeros(joined.scratch, np.uint8)
    for at in range(len(joined.reads)):
        to = scratch if joined.in_scratch[at] else out
        cut = pieces(joined.reads.take(np.array([at])), piece)
        for file, low, size, where in zip(cut.file, cut.offset, cut.length, cut.start, strict=True):
            assert len(cut) == 1 or low // piece == (low + size - 1) // piece
            assert size <= piece
            to[where : where + size] = files[file, low : low + size]
    copied = joined.copied
    for low, size, where in zip(copied.offset, copied.length, copied.start, strict=True):
        out[where : where + size] = scratch[low : low + size]
    expected = [files[f, o : o + n] for f, o, n in drawn]
    assert np.array_equal(out, np.concatenate([np.zeros(0, np.uint8), *expected]))
    ordered = np.lexsort((joined.reads.offset, joined.reads.file))
    ends = (joined.reads.offset + joined.reads.length)[ordered]
    between = joined.reads.offset[ordered][1:] - ends[:-1]
    same = np.diff(joined.reads.file[ordered]) == 0
    assert (between[same] > gap).all()


def test_a_run_of_samples_is_one_read_into_its_place() -> None:
    size = 19_200
    offset = 2048 + size * np.arange(100, 709)
    length = np.full(609, size)
    joined = join(Extents(np.zeros(609, np.int32), offset, length, offset - offset[0]), 0)
    assert len(joined.reads) == 1 and joined.scratch == 0
    cut = pieces(joined.reads)
    assert len(cut) <= 609 * size / PIECE * 1.1
    assert (cut.length[1:-1] == PIECE).all()


@pytest.mark.parametrize(
    ("seconds", "longer", "expected"),
    [
        (4e-3 + 20_000e-9, 4e-3 + 120_000e-9, MOST_GAP),  # 4 ms a request, 1 GB/s
        (0.5e-3 + 100e-6, 0.5e-3 + 600e-6, 6250),  # 0.5 ms a request, 200 MB/s
        (10e-6, 60e-6, LEAST_GAP),  # memory
        (4e-3, 3e-3, MOST_GAP),  # the read of more bytes takes less time: no rate can be computed
    ],
)
def test_the_gap_costs_as_much_as_a_request(seconds: float, longer: float, expected: int) -> None:
    assert crossing(seconds, 20_000, longer, 120_000, 16) == pytest.approx(expected, abs=1)


def test_neighbours_in_frames_are_one_read(slow_factory: Callable[..., SlowSource]) -> None:
    """Neighbouring TFRecords are read together, although 16 bytes of framing lie between their
    data."""
    source = slow_factory()
    data = np.random.default_rng(9).bytes(1000)
    framed = struct.pack("<QI", 1000, 0) + data + bytes(4)
    (source.backing / "a.tfrecord").write_bytes(framed * 300)
    dataset = RecordDataset(source.mountpoint / "a.tfrecord")
    dataset.__getitems__([0, 299])  # measures how large a gap between joined reads may be
    dataset.close()
    dataset[0]  # the source drops the pages of a file that is opened again
    source.reset()
    assert dataset.__getitems__(range(100, 228)) == [data] * 128
    assert source.counts()["read"] <= 3


def test_reads_of_a_batch(slow_factory: Callable[..., SlowSource]) -> None:
    """Reading a batch of 64 samples takes at most one request for each sample, and reads each chunk
    only once."""
    source = slow_factory()
    values = np.random.default_rng(6).normal(size=(4000, 500)).astype("f4")
    write_hdf5(source.backing / "plain.h5", values)
    write_hdf5(source.backing / "gzip.h5", values, chunks=(100, 500), compression="gzip")
    wanted = np.random.default_rng(7).permutation(4000)[:64].tolist()
    for name, most in (("plain", 64), ("gzip", 40 * 2.6)):
        dataset = RecordDataset(source.mountpoint / f"{name}.h5", dataset="x", join=0)
        assert np.array_equal(dataset[0], values[0])  # opens the file
        source.reset()
        assert np.array_equal(np.array(dataset.__getitems__(wanted)), values[wanted])
        assert source.counts()["read"] <= most, name


# --- errors --------------------------------------------------------------------------------------


def test_a_missing_file(tmp_path: Path) -> None:
    path = tmp_path / "train.h5"
    with pytest.raises(MonarchError, match=re.escape(f"{path}: no such file")):
        RecordDataset(path, dataset="x")
    dataset = RecordDataset(write_hdf5(path, content()), dataset="x")
    path.unlink()
    with pytest.raises(MonarchError, match=re.escape(f"{path}: No such file")):
        dataset[0]


def test_a_file_that_is_cut_off(tmp_path: Path) -> None:
    path = write_hdf5(tmp_path / "train.h5", content())
    with path.open("r+b") as stream:
        stream.truncate(3000)
    with pytest.raises(MonarchError, match=re.escape(f"{path}: ") + ".*truncated"):
        RecordDataset(path, dataset="x")


def test_a_length_other_than_the_plan(tmp_path: Path) -> None:
    path = write_hdf5(tmp_path / "train.h5", content(100))
    index = index_hdf5(path, "x")
    assert len(RecordDataset(path, dataset="x", index=index, length=100)) == 100
    with pytest.raises(ConfigError, match="has 100 samples and not 90"):
        RecordDataset(path, dataset="x", length=90)
    write_hdf5(path, content(90))
    with pytest.raises(
        MonarchError, match=re.escape(f"{path}: 'x' has 90 rows, and the index has")
    ):
        RecordDataset(path, dataset="x", index=index)


def test_a_file_that_has_changed_since(tmp_path: Path) -> None:
    path = tmp_path / "train.bin"
    path.write_bytes(bytes(1000))
    index = RecordDataset(path, record_bytes=10).index
    index.save(tmp_path / "index.npz")
    dataset = RecordDataset(path, index=tmp_path / "index.npz")
    path.write_bytes(bytes(900))
    with pytest.raises(MonarchError, match=re.escape(f"{path}: 900 bytes, and the index has 1000")):
        dataset[0]


@pytest.mark.parametrize("name", ["gzip", "summed"])
def test_an_unreadable_chunk(tmp_path: Path, name: str) -> None:
    values = content()
    path = write_hdf5(tmp_path / "train.h5", values, **STORED[name])
    with h5py.File(path) as file:
        chunk = file["x"].id.get_chunk_info_by_coord((20, 0, 0))
    with path.open("r+b") as stream:
        stream.seek(chunk.byte_offset + chunk.size // 2)
        stream.write(b"rotten bytes")
    dataset = RecordDataset(path, dataset="x")
    assert np.array_equal(dataset[0], values[0])
    dataset.__getitems__([250])  # makes the dataset keep a chunk other than that of row 0
    said = f"{path}: the chunk of 'x' at byte {chunk.byte_offset} cannot be decoded"
    with pytest.raises(MonarchError, match=re.escape(said)):
        dataset.__getitems__([0, 25])
    assert np.array_equal(dataset[0], values[0])


def test_a_source_that_fails(slow_factory: Callable[..., SlowSource]) -> None:
    source = slow_factory(direct=True)
    values = content()
    write_hdf5(source.backing / "train.h5", values)
    path = source.mountpoint / "train.h5"
    dataset = RecordDataset(path, dataset="x")
    assert np.array_equal(dataset[0], values[0])
    source.fail(errno.EIO)
    with pytest.raises(MonarchError, match=re.escape(f"{path}: Input/output error")):
        dataset.__getitems__(range(0, 300, 7))
    source.fail(0)
    assert np.array_equal(dataset[9], values[9])


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"in_flight": 0}, "in_flight"),
        ({"join": -1}, "join"),
        ({}, "kind: the name of"),
        ({"kind": "parquet"}, "kind: 'parquet' is unknown"),
        ({"kind": "hdf5"}, "dataset: name"),
        ({"kind": "fixed"}, "record_bytes"),
    ],
)
def test_options_are_checked(tmp_path: Path, options: dict[str, Any], said: str) -> None:
    (tmp_path / "some").write_bytes(bytes(10))
    with pytest.raises(ConfigError, match=said):
        RecordDataset(tmp_path / "some", **options)


def test_numbers_are_checked(tmp_path: Path) -> None:
    (tmp_path / "some").write_bytes(bytes(10))
    dataset = RecordDataset(tmp_path / "some", record_bytes=5)
    assert dataset[-1] == bytes(5)
    for number in (2, -3):
        with pytest.raises(IndexError):
            dataset[number]
    with pytest.raises(ConfigError, match="out: 9 bytes"):
        dataset.read_into([0, 1], bytearray(9))


def test_many_files_keep_few_descriptors(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("monarch_py.loaders.records.descriptors.MOST_OPEN", 8)
    for number in range(40):
        (tmp_path / f"{number:02}.bin").write_bytes(bytes([number]) * 4)
    gc.collect()  # closes datasets of other tests
    before = len(list(Path("/proc/self/fd").iterdir()))
    dataset = RecordDataset(tmp_path, record_bytes=4)
    for number in np.random.default_rng(8).permutation(40).tolist():
        assert dataset[number] == bytes([number]) * 4
    assert len(list(Path("/proc/self/fd").iterdir())) <= before + 8
    assert dataset.__getitems__(range(40)) == [bytes([number]) * 4 for number in range(40)]
    dataset.close()
    assert len(list(Path("/proc/self/fd").iterdir())) == before
