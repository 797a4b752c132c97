"""If a record cannot be read, each loader raises one error that names the file, and leaves neither
processes nor shared memory behind.

What happens when a worker or a reading process is killed or suspended is tested in the loaders' own
tests.
"""

from __future__ import annotations

import multiprocessing
import re
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from itertools import count
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
from support.draws import cases
from support.files import age

from monarch_py.errors import MonarchError
from monarch_py.loaders import (
    GroupLoader,
    Job,
    KeptDataset,
    PackDataset,
    RecordDataset,
    StagedLoader,
)
from monarch_py.packs.tar import write_pack

LIMIT_S = 5.0
SAMPLES, ELEMENTS, BATCH = 64, 500, 4
BATCHES = [list(range(at, at + BATCH)) for at in range(0, SAMPLES, BATCH)]


# --- damaged files -------------------------------------------------------------------------------


def hdf5(place: Path, samples: int = SAMPLES) -> RecordDataset:
    values = np.random.default_rng(1).integers(0, 9, (samples, ELEMENTS), dtype=np.int32)
    with h5py.File(place / "train.h5", "w") as file:
        file.create_dataset("x", data=values, chunks=(4, ELEMENTS), compression="gzip")
    return RecordDataset(place / "train.h5", dataset="x")


def pack(place: Path) -> PackDataset:
    (place / "data").mkdir()
    for number in range(SAMPLES):
        (place / "data" / f"{number:02d}").write_bytes(bytes([number]) * ELEMENTS)
    age(place / "data")
    write_pack(place / "data", place / "train.tar")
    return PackDataset(place / "train.tar")


def rot(path: Path) -> None:
    """Damages a chunk in the middle of the file."""
    with h5py.File(path) as file:
        chunk = file["x"].id.get_chunk_info_by_coord((SAMPLES // 2, 0))
    with path.open("r+b") as stream:
        stream.seek(chunk.byte_offset + chunk.size // 2)
        stream.write(b"rotten bytes")


def cut(path: Path) -> None:
    with path.open("r+b") as stream:
        stream.truncate(path.stat().st_size // 2)


# For each kind of damage: the function that makes a dataset, the function that damages the
# dataset's file, and a part of the error message.
DAMAGES: dict[str, tuple[Callable[[Path], Any], Callable[[Path], None], str]] = {
    "missing": (hdf5, Path.unlink, "No such file"),
    "another length": (hdf5, lambda path: hdf5(path.parent, 32).close(), "and the index has"),
    "a rotten chunk": (hdf5, rot, "cannot be decoded"),
    "a missing pack": (pack, Path.unlink, "No such file"),
    "a pack that was cut": (pack, cut, "and the index has"),
}


# --- loaders -------------------------------------------------------------------------------------


@contextmanager
def staged(dataset: Any) -> Iterator[Iterator[Any]]:
    loader = StagedLoader(dataset, batch_sampler=BATCHES, workers=1, tensors=False)
    with closing(loader):
        yield iter(loader)


@contextmanager
def kept(dataset: Any) -> Iterator[Iterator[Any]]:
    with closing(KeptDataset(dataset, quota="1MiB")) as memory, staged(memory) as batches:
        yield batches


@contextmanager
def groups(dataset: Any) -> Iterator[Iterator[Any]]:
    loader = GroupLoader(dataset, BATCH, 16, epochs=1, rank=0, world_size=1, collate=len)
    with closing(loader):
        yield iter(loader)


@contextmanager
def job(dataset: Any) -> Iterator[Iterator[Any]]:
    made = Job(dataset, BATCH, 1, workers=1)
    try:
        yield (made.get() for _ in count())
    finally:
        made.destroy()


READERS = [staged, kept, groups, job]
# A dataset raises the same error under every loader, and a loader treats all errors alike. So
# without --long, only these pairs of a loader and a damage are tried.
SHORT = [
    (staged, "missing"),
    (staged, "a pack that was cut"),
    (kept, "another length"),
    (groups, "a rotten chunk"),
    (groups, "a missing pack"),
    (job, "a rotten chunk"),
]


@pytest.mark.parametrize(
    "case",
    cases([(reads, damage) for reads in READERS for damage in DAMAGES], short=SHORT),
    ids=lambda case: f"{case[0].__name__}-{case[1]}",
)
def test_it_is_one_error_that_names_the_file(
    case: tuple[Callable[[Any], Any], str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    reads, damage = case
    (tmp_path / "shm").mkdir()
    monkeypatch.setenv("MONARCH_SHM", str(tmp_path / "shm"))
    (tmp_path / "data").mkdir()
    make, happens, said = DAMAGES[damage]
    dataset = make(tmp_path / "data")
    (path,) = (tmp_path / "data").glob("train.[ht]*[5r]")
    happens(path)
    began = time.monotonic()
    with reads(dataset) as batches, pytest.raises(MonarchError, match=re.escape(str(path))) as told:
        for _ in batches:
            pass
    assert time.monotonic() - began < LIMIT_S
    assert said in str(told.value)
    assert not multiprocessing.active_children()
    assert not [path for path in (tmp_path / "shm").rglob("*") if path.is_file()]
