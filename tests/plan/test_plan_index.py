"""Indexes of datasets: each sample's bytes lie at the place that the index gives for the sample."""

from __future__ import annotations

import io
import os
import struct
import tarfile
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from xxhash import xxh3_64_intdigest

from monarch_py.errors import ConfigError, MonarchError
from monarch_py.plan.builders import (
    index_files,
    index_fixed,
    index_hdf5,
    index_image_folder,
    index_tfrecord,
    index_webdataset,
)
from monarch_py.plan.index import Index


def names_of(index: Index) -> list[str]:
    pool, ends = index.pool.tobytes(), index.starts.tolist()
    return [os.fsdecode(pool[low:high]) for low, high in pairwise(ends)]


def contents(root: Path, index: Index) -> list[bytes]:
    """Returns the bytes of every sample, read at the place that the index gives."""
    found = []
    files, offsets, lengths = index.sample_file, index.sample_offset, index.sample_length
    if files is None or offsets is None or lengths is None:
        return [(root / name).read_bytes() for name in names_of(index)]
    for file, offset, length in zip(files, offsets, lengths, strict=True):
        content = (root / names_of(index)[file]).read_bytes()
        found.append(content[int(offset) : int(offset + length)])
    return found


def tfrecord(records: list[bytes]) -> bytes:
    """Returns a TFRecord file with checksums of 0, which the index does not check."""
    return b"".join(struct.pack("<QI", len(r), 0) + r + bytes(4) for r in records)


def tar(members: list[tuple[str, bytes]]) -> bytes:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=tarfile.GNU_FORMAT) as archive:
        for name, content in members:
            info = tarfile.TarInfo(name)
            info.size = len(content)
            archive.addfile(info, io.BytesIO(content))
    return out.getvalue()


def test_files(tmp_path: Path) -> None:
    for name in ("b/2", "b/10", "a"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(name.encode())
    index = index_files(tmp_path)
    assert names_of(index) == ["a", "b/10", "b/2"]
    assert contents(tmp_path, index) == [b"a", b"b/10", b"b/2"]
    assert index_files(tmp_path, ("b/*",)).files == 2


def test_image_folder(tmp_path: Path) -> None:
    """The index lists samples in torchvision's order, in which directories are sorted by their full
    paths."""
    names = [
        "cat/z.JPG",
        "cat/x/a.png",
        "cat/x-y/b.png",
        "cat/notes.txt",
        "ant/b.jpeg",
        "ant/a.bmp",
    ]
    for name in names:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_bytes(name.encode())
    (tmp_path / "readme.jpg").touch()
    index = index_image_folder(tmp_path)
    expected = ["ant/a.bmp", "ant/b.jpeg", "cat/z.JPG", "cat/x/a.png", "cat/x-y/b.png"]
    expected[3:] = sorted(expected[3:], key=lambda name: name.rsplit("/", 1)[0])
    assert names_of(index) == expected
    (tmp_path / "empty").mkdir()
    with pytest.raises(MonarchError) as refused:
        index_image_folder(tmp_path)
    said = str(refused.value)
    assert said.startswith(
        f"{tmp_path / 'empty'}: the directory of the class 'empty' holds no image"
    )
    assert "jpg" in said
    assert said.endswith("a class without images; remove the directory, or add its images")


def test_tfrecord(tmp_path: Path) -> None:
    first, second = [b"one", b"", b"three" * 99], [b"four"]
    (tmp_path / "b.tfrecord").write_bytes(tfrecord(second))
    (tmp_path / "a.tfrecord").write_bytes(tfrecord(first))
    (tmp_path / "c.tfrecord").touch()
    (tmp_path / "other").write_bytes(b"no record")
    index = index_tfrecord(tmp_path)
    assert index.files == 3
    assert contents(tmp_path, index) == [tfrecord([r]) for r in first + second]


@pytest.mark.parametrize(
    "wrong", [b"\x1f\x8b\x08compressed and so no record", b"short", tfrecord([b"x"]) + b"!"]
)
def test_a_file_that_is_not_made_of_records(tmp_path: Path, wrong: bytes) -> None:
    (tmp_path / "a.tfrecord").write_bytes(wrong)
    with pytest.raises(MonarchError, match=r"a\.tfrecord: no record at byte"):
        index_tfrecord(tmp_path)


def test_tfrecords_that_tensorflow_has_written(tmp_path: Path) -> None:
    """`hello` and `empty` are the records that tf.io.TFRecordWriter of TensorFlow 2.21 has written
    for b'hello' and b''."""
    hello = bytes.fromhex("0500000000000000eab2043e68656c6c6fbb1f1c19")
    empty = bytes.fromhex("000000000000000029039807d8ea82a2")
    (tmp_path / "a.tfrecord").write_bytes(hello + empty)
    assert contents(tmp_path, index_tfrecord(tmp_path)) == [hello, empty]


def test_webdataset(tmp_path: Path) -> None:
    members = [
        ("s/1.jpg", b"j" * 700),
        ("s/1.cls", b"1"),
        ("__meta__", b"no dot and so no member"),
        ("s/2.seg.png", b"p"),
        ("s/2.cls", b"2"),
        ("t" * 120 + ".cls", b"long name"),
    ]
    (tmp_path / "shard.tar").write_bytes(tar(members))
    index = index_webdataset(tmp_path)
    found = []
    for sample in contents(tmp_path, index):
        with tarfile.open(fileobj=io.BytesIO(sample)) as archive:
            found.append([member.name for member in archive])
    assert found == [["s/1.jpg", "s/1.cls"], ["s/2.seg.png", "s/2.cls"], ["t" * 120 + ".cls"]]
    (tmp_path / "bad.tar").write_bytes(b"\x1f\x8b" + bytes(600))
    with pytest.raises(MonarchError, match=r"bad\.tar: "):
        index_webdataset(tmp_path)


def test_fixed_records(tmp_path: Path) -> None:
    (tmp_path / "batch").write_bytes(b"HEAD" + b"aaabbbccc")
    assert contents(tmp_path, index_fixed(tmp_path, 3, 4)) == [b"aaa", b"bbb", b"ccc"]
    with pytest.raises(ConfigError, match="not a multiple of 4; correct --record-bytes"):
        index_fixed(tmp_path, 4, 4)


def test_hdf5(tmp_path: Path) -> None:
    h5py = pytest.importorskip("h5py", reason="h5py is not installed: pip install '.[hdf5]'")
    rows = np.arange(60, dtype="<i4").reshape(10, 3, 2)
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file["x"] = rows
    with h5py.File(tmp_path / "b.h5", "w") as file:
        file.create_dataset("x", data=rows, chunks=(4, 3, 2))
    with h5py.File(tmp_path / "c.h5", "w") as file:
        file.create_dataset("x", data=rows, chunks=(5, 3, 1))
    found = contents(tmp_path, index_hdf5(tmp_path, "x"))
    assert found[:10] == [row.tobytes() for row in rows]
    for number, chunk in enumerate(found[10:20]):
        assert len(chunk) == 4 * 24, "the chunk that holds the row"
        assert rows[number].tobytes() in chunk
    for number, chunks in enumerate(found[20:]):
        assert all(rows[number, :, [column]].tobytes() in chunks for column in (0, 1))
    with pytest.raises(MonarchError, match="no dataset 'y'; correct --dataset"):
        index_hdf5(tmp_path, "y")


# --- grains -------------------------------------------------------------------------------------


def sharded() -> Index:
    """Returns an index of two files of 1000 and 600 bytes, with samples of 100 bytes."""
    files = np.repeat([0, 1], [10, 6])
    offsets = np.concatenate([np.arange(10), np.arange(6)]) * 100
    return Index.of("fixed", "/d", ["a", "b"], [1000, 600], (files, offsets, np.full(16, 100)))


def test_units_of_every_grain() -> None:
    index = sharded()
    samples, files, ranges = (index.units(g, 256) for g in ("samples", "files", "ranges"))
    assert (len(samples), samples.lookup) == (16, None)
    assert files.lookup is not None
    assert files.lookup.tolist() == [0] * 10 + [1] * 6 + [-1]
    assert files.length.tolist() == [1000, 600]
    # Blocks begin at 0, 256, 512 and 768, and contain the samples 0-2, 3-5, 6-7 and 8-9.
    assert ranges.lookup is not None
    assert ranges.lookup.tolist() == [0, 0, 0, 1, 1, 1, 2, 2, 3, 3, 4, 4, 4, 5, 5, 5, -1]
    assert ranges.length.tolist() == [300, 300, 200, 200, 300, 300]


def test_blocks_in_which_no_sample_begins_are_no_units() -> None:
    large = Index.of("fixed", "/d", ["a"], [1000], ([0, 0], [0, 900], [900, 100]))
    ranges = large.units("ranges", 100)
    assert ranges.length.tolist() == [900, 100]
    whole = Index.of("files", "/d", ["a", "b"], [1000, 0]).units("ranges", 100)
    assert whole.length.tolist() == [1000, 0]


# --- saved, loaded and compared -----------------------------------------------------------------


@pytest.mark.parametrize("index", [sharded(), Index.of("files", "/ü", ["ä", "\udcff"], [1, 2])])
def test_an_index_is_what_was_saved(tmp_path: Path, index: Index) -> None:
    index.save(tmp_path / "i.npz")
    again = Index.load(tmp_path / "i.npz")
    assert (again.kind, again.root, again.digest()) == (index.kind, index.root, index.digest())
    assert names_of(again) == names_of(index)
    for grain in ("samples", "files", "ranges"):
        for one, other in zip(
            vars(index.units(grain)).values(), vars(again.units(grain)).values(), strict=True
        ):
            assert np.array_equal(one, other)
    assert [p.name for p in tmp_path.iterdir()] == ["i.npz"]


def test_the_digest_knows_names_and_sizes_and_no_order() -> None:
    digest = Index.of("files", "/a", ["x", "yz"], [1, 2]).digest()
    assert digest == Index.of("files", "/b", ["yz", "x"], [2, 1]).digest()
    others = [
        (["x", "yz"], [2, 1]),
        (["xy", "z"], [1, 2]),
        (["x"], [1]),
        (["x", "yz", ""], [1, 2, 0]),
    ]
    assert digest not in {Index.of("files", "/a", names, sizes).digest() for names, sizes in others}
    assert len(digest) == 32


def test_the_digest_of_a_saved_plan_stays_valid() -> None:
    """A saved plan contains a digest, which later versions of Monarch must compute in the same way
    on every machine. The digest consists of two sums over the files. The first sum adds up a hash
    of each file's name and size. The second sum adds up another hash, which differs even between
    files whose first hashes are equal by accident."""
    names, sizes = ["x", "yz", "d/ü", "n" * 300, ""], [1, 2**40, 0, 7, 2**63]
    total = [0, 0]
    for name, size in zip(names, sizes, strict=True):
        named = [xxh3_64_intdigest(os.fsencode(name)), size, 0]
        named[2] = xxh3_64_intdigest(struct.pack("<3Q", *named))
        total[0] += named[2]
        total[1] += xxh3_64_intdigest(struct.pack("<3Q", *named))
    expected = "".join(f"{one % 2**64:016x}" for one in total)
    assert Index.of("files", "/a", names, sizes).digest() == expected


def test_what_is_no_index_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "i.npz"
    with pytest.raises(ConfigError, match=r"i\.npz: cannot be read \(No such file"):
        Index.load(path)
    path.write_bytes(b"no archive")
    with pytest.raises(ConfigError, match=r"i\.npz: not an index .*; make one with"):
        Index.load(path)
    np.savez(path, sizes=np.arange(3))
    with pytest.raises(ConfigError, match="not an index"):
        Index.load(path)
    np.savez(path, kind=np.array([object()]))
    with pytest.raises(ConfigError, match="not an index"):
        Index.load(path)


def test_nothing_there_is_told_by_its_root(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="the directory contains no files; check the path"):
        index_files(tmp_path)
    (tmp_path / "one").touch()
    with pytest.raises(ConfigError, match=r"no file matches \*\.tar; give --pattern"):
        index_webdataset(tmp_path)
    with pytest.raises(MonarchError, match="gone: No such file or directory; check"):
        index_files(tmp_path / "gone")
