"""A small dataset with every file format that the tests' real programs read.

The dataset depends only on the seed: it has the same names, bytes and modification times each time,
as long as the versions of the writing libraries are the same. Formats whose library is not
installed are left out.
"""

from __future__ import annotations

import array
import io
import os
import random
import struct
import tarfile
import zipfile
from collections.abc import Callable
from importlib.util import find_spec
from itertools import accumulate
from pathlib import Path

# 2020-09-13: old enough that no program assumes that the file is still being written.
BASE_MTIME_NS = 1_600_000_000_123_456_789
CLASSES = ("ant", "bee", "cat", "dog")
IMAGES_PER_CLASS = 24
IMAGE_SIDE = 48
BLOCK = 4 << 20  # the default block size of the copy engine [bytes]

Writer = Callable[[Path, random.Random], None]


def _crc32c_table() -> list[int]:
    table = []
    for byte in range(256):
        crc = byte
        for _ in range(8):
            crc = (crc >> 1) ^ (0x82F63B78 if crc & 1 else 0)
        table.append(crc)
    return table


_CRC32C = _crc32c_table()


def masked_crc32c(data: bytes) -> int:
    """Returns the CRC-32C (Castagnoli) of `data`, rotated and offset as in TFRecord's framing."""
    crc = 0xFFFFFFFF
    for byte in data:
        crc = _CRC32C[(crc ^ byte) & 0xFF] ^ (crc >> 8)
    crc ^= 0xFFFFFFFF
    return ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF


def tfrecord_frame(record: bytes) -> bytes:
    """Returns `record` framed as one TFRecord: length, checksum of the length, record, checksum of
    the record."""
    length = struct.pack("<Q", len(record))
    return b"".join(
        (
            length,
            struct.pack("<I", masked_crc32c(length)),
            record,
            struct.pack("<I", masked_crc32c(record)),
        )
    )


def _tfrecords(folder: Path, rng: random.Random) -> None:
    for shard in range(4):
        sizes = [0, 1, *(rng.randrange(100, 16_000) for _ in range(62))]
        frames = (tfrecord_frame(rng.randbytes(size)) for size in sizes)
        (folder / f"train-{shard:05d}-of-00004.tfrecord").write_bytes(b"".join(frames))


def _varint(number: int) -> bytes:
    """Returns a number as a protocol buffer's varint, with seven bits in each byte."""
    low, rest = number & 127, number >> 7
    return bytes([low | 128]) + _varint(rest) if rest else bytes([low])


def _field(number: int, content: bytes) -> bytes:
    """Returns a length-delimited field of a protocol buffer."""
    return _varint(number << 3 | 2) + _varint(len(content)) + content


def example(data: bytes) -> bytes:
    """Returns a serialized tf.train.Example with `data` as its only feature, named "data"."""
    bytes_list = _field(1, _field(1, data))
    return _field(1, _field(1, _field(1, b"data") + _field(2, bytes_list)))


def _examples(folder: Path, rng: random.Random) -> None:
    """Writes TFRecord files of Examples. Each file has an index file, in which a line per record
    contains the record's offset and size."""
    for shard in range(3):
        sizes = [1, *(rng.randrange(100, 40_000) for _ in range(40))]
        frames = [tfrecord_frame(example(rng.randbytes(size))) for size in sizes]
        ends = list(accumulate(map(len, frames), initial=0))
        lines = (f"{at} {len(frame)}\n" for at, frame in zip(ends, frames, strict=False))
        (folder / f"shard-{shard}.tfrecord").write_bytes(b"".join(frames))
        (folder / f"shard-{shard}.idx").write_text("".join(lines))


def _images(folder: Path, rng: random.Random) -> None:
    from PIL import Image

    for number, label in enumerate(CLASSES):
        (folder / label).mkdir()
        for index in range(IMAGES_PER_CLASS):
            # The class determines the mean colour, so that a model can learn the class.
            bases = [(number * 61 + channel * 89) % 192 for channel in range(3)]
            planes = [
                Image.frombytes(
                    "L",
                    (IMAGE_SIDE, IMAGE_SIDE),
                    rng.randbytes(IMAGE_SIDE * IMAGE_SIDE).translate(
                        bytes(base + value // 4 for value in range(256))
                    ),
                )
                for base in bases
            ]
            image = Image.merge("RGB", planes)
            if index % 4 == 3:
                image.save(folder / label / f"{label}_{index:03d}.png")
            else:
                image.save(folder / label / f"{label}_{index:03d}.jpg", quality=90)


def _numpy(folder: Path, rng: random.Random) -> None:
    import numpy as np

    noise = np.random.default_rng(rng.randrange(1 << 32))
    for index in range(8):
        np.save(folder / f"sample_{index:02d}.npy", noise.random((64, 33 + index), np.float32))
    np.save(folder / "large.npy", noise.random((1024, 1024), np.float32))
    np.save(folder / "fortran.npy", np.asfortranarray(noise.random((100, 200))))
    np.save(folder / "no_rows.npy", np.zeros((0, 7), np.int64))
    pairs = np.zeros(1000, dtype=[("key", "<i4"), ("value", "<f8")])
    pairs["key"], pairs["value"] = np.arange(1000), noise.random(1000)
    np.save(folder / "structured.npy", pairs)
    np.savez(folder / "plain.npz", x=noise.random((200, 300)), y=np.arange(5000))
    np.savez_compressed(folder / "packed.npz", x=np.arange(100_000) % 251, y=noise.random(999))


def _raw(folder: Path, rng: random.Random) -> None:
    for index in range(4):
        values = array.array("f", (rng.random() for _ in range(65_536 + index)))
        (folder / f"part_{index}.bin").write_bytes(values.tobytes())


def _text(folder: Path, rng: random.Random) -> None:
    words = ("gradient", "tensor", "Knoten", "données", "学習", "a", "", "épocha")
    for index in range(20):
        lines = (" ".join(rng.choices(words, k=12)) for _ in range(30 + 20 * index))
        # Files with odd numbers end without a newline, which is a separate case for line readers.
        end = "" if index % 2 else "\n"
        (folder / f"lines_{index:02d}.txt").write_text("\n".join(lines) + end, encoding="utf-8")


def _hdf5(folder: Path, rng: random.Random) -> None:
    import h5py
    import numpy as np

    noise = np.random.default_rng(rng.randrange(1 << 32))
    for index in range(2):
        with h5py.File(folder / f"store_{index}.h5", "w") as file:
            file.create_dataset("contiguous", data=noise.random((500, 500), np.float32))
            file.create_dataset(
                "group/chunked",
                data=np.arange(120_000).reshape(300, 400) % 1013,
                chunks=(50, 100),
                compression="gzip",
            )
            file["group"].attrs["epoch"] = index


def _parquet(folder: Path, rng: random.Random) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    for index in range(2):
        table = pa.table(
            {
                "id": list(range(40_000)),
                "value": [rng.random() for _ in range(40_000)],
                "name": [f"row {row % 977}" for row in range(40_000)],
            }
        )
        pq.write_table(table, folder / f"table_{index}.parquet", row_group_size=15_000)


def _torch(folder: Path, rng: random.Random) -> None:
    import torch

    generator = torch.Generator().manual_seed(rng.randrange(1 << 32))
    for index in range(2):
        tensors = {
            "weight": torch.rand(512, 900, generator=generator),
            "bias": torch.rand(256, generator=generator, dtype=torch.float64),
            "steps": torch.arange(1000 + index),
        }
        torch.save(tensors, folder / f"tensors_{index}.pt")


def _tars(folder: Path, rng: random.Random) -> None:
    for shard in range(2):
        with tarfile.open(folder / f"shard-{shard:03d}.tar", "w") as archive:
            for sample in range(20):
                label = str(rng.randrange(10)).encode()
                for suffix, data in (("jpg", rng.randbytes(9_000 + sample)), ("cls", label)):
                    member = tarfile.TarInfo(f"{shard:03d}{sample:04d}.{suffix}")
                    member.size, member.mtime = len(data), BASE_MTIME_NS // 10**9
                    archive.addfile(member, io.BytesIO(data))


def _zips(folder: Path, rng: random.Random) -> None:
    for name, method in (("stored", zipfile.ZIP_STORED), ("deflated", zipfile.ZIP_DEFLATED)):
        with zipfile.ZipFile(folder / f"{name}.zip", "w", method) as archive:
            for index in range(15):
                data = rng.randbytes(500) * (1 + index * 3)
                archive.writestr(zipfile.ZipInfo(f"d{index % 3}/m{index}.bin"), data, method)


def _edge(folder: Path, rng: random.Random) -> None:
    sizes = {
        "empty": 0,
        "one_byte": 1,
        "page": 4096,
        "page_minus_one": 4095,
        "block": BLOCK,
        "block_and_one": BLOCK + 1,
        "name with spaces.bin": 12_345,
        "schöner Name 数据.bin": 23_456,
        "-leading dash": 77,
        "twin_a": 34_567,
    }
    for name, size in sizes.items():
        (folder / name).write_bytes(rng.randbytes(size))
    os.link(folder / "twin_a", folder / "twin_b")
    for name, mode in (("one_byte", 0o600), ("page", 0o444), ("page_minus_one", 0o755)):
        (folder / name).chmod(mode)


def _small(folder: Path, rng: random.Random) -> None:
    for index in range(50):
        place = folder / f"d{index % 5}" / "deep" / "deeper" if index % 2 else folder
        place.mkdir(parents=True, exist_ok=True)
        (place / f"s{index:03d}").write_bytes(rng.randbytes(rng.randrange(3000)))


def _links(folder: Path, _rng: random.Random) -> None:
    (folder / "to_file").symlink_to("../edge/page")
    (folder / "to_large").symlink_to("../edge/block_and_one")
    (folder / "to_link").symlink_to("to_file")
    (folder / "to_directory").symlink_to("../text", target_is_directory=True)


# For each folder of the dataset: its name, the modules that must be installed to make it, and the
# function that writes its files.
_FORMATS: tuple[tuple[str, tuple[str, ...], Writer], ...] = (
    ("tfrecord", (), _tfrecords),
    ("examples", (), _examples),
    ("images", ("PIL",), _images),
    ("numpy", ("numpy",), _numpy),
    ("raw", (), _raw),
    ("text", (), _text),
    ("hdf5", ("h5py", "numpy"), _hdf5),
    ("parquet", ("pyarrow",), _parquet),
    ("torch", ("torch",), _torch),
    ("tar", (), _tars),
    ("zip", (), _zips),
    ("edge", (), _edge),
    ("small", (), _small),
    ("links", (), _links),
)


def _set_times(root: Path, seed: int) -> None:
    """Gives each file and directory its own fixed time, independent of the order of creation."""
    for folder, names, files in os.walk(root, topdown=False):
        for path in (Path(folder) / name for name in files + names):
            # The seed of a file's random time is the file's name, because the order in which a
            # directory lists its files is arbitrary. The files twin_a and twin_b share an inode and
            # thus a time, whose seed is the name of twin_a.
            name = str(path.relative_to(root)).replace("twin_b", "twin_a")
            moment = BASE_MTIME_NS + random.Random(f"{seed}/{name}").randrange(10**15)
            os.utime(path, ns=(moment, moment), follow_symlinks=False)
    os.utime(root, ns=(BASE_MTIME_NS, BASE_MTIME_NS))


def make_dataset(root: Path, *, seed: int = 0) -> dict[str, list[str]]:
    """Writes the dataset below `root`, which is created if missing and must be empty.

    Returns a dict that maps the name of each format's folder to the sorted paths of the format's
    files and symbolic links, relative to `root`. A format whose library is missing has no key. The
    dataset has about 27 MiB in 230 files. Raises FileExistsError if `root` is not empty.
    """
    root.mkdir(parents=True, exist_ok=True)
    if any(root.iterdir()):
        raise FileExistsError(f"{root} is not empty; a dataset is written into an empty directory")
    made: dict[str, list[str]] = {}
    for name, modules, write in _FORMATS:
        if any(find_spec(module) is None for module in modules):
            continue
        folder = root / name
        folder.mkdir()
        # Each format has its own random generator, so that a missing library does not change the
        # bytes of the other formats.
        write(folder, random.Random(f"{seed}/{name}"))
        made[name] = sorted(
            str(path.relative_to(root))
            for path in folder.rglob("*")
            if path.is_symlink() or path.is_file()
        )
    _set_times(root, seed)
    return made
