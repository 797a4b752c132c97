"""Through the interface of NoPFS, each rank gets views of its samples, in torch's order."""

from __future__ import annotations

import ctypes
import multiprocessing
import os
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from loaders.staged_data import Labelled, Records
from support.draws import cases

from monarch_py.errors import ConfigError, MonarchError
from monarch_py.loaders.memory.kept import KeptDataset
from monarch_py.loaders.records.whole_files import ImageFolderFiles
from monarch_py.loaders.staged.nopfs import Job, NoPFSDataLoader, NoPFSImageFolder
from monarch_py.plan import Loader
from monarch_py.plan.samplers import DistributedSampler

EPOCHS, BATCH = 2, 3
ERROR_LIMIT_S = 5.0


@pytest.fixture
def make() -> Iterator[Callable[..., Job]]:
    made = []

    def one(*arguments: Any, **settings: Any) -> Job:
        made.append(Job(*arguments, **{"workers": 2, **settings}))
        return made[-1]

    yield one
    for job in made:
        job.destroy()


@pytest.fixture
def images(tmp_path: Path) -> Path:
    """Returns a directory with images of three classes, each image of one colour."""
    image = pytest.importorskip("PIL.Image")
    root = tmp_path / "images"
    for number, name in enumerate(["ant", "bee", "cat"]):
        (root / name).mkdir(parents=True)
        for i in range(5 - number):
            image.new("RGB", (8, 6), (40 * number, 10 * i, 0)).save(root / name / f"{i}.png")
    return root


def address(view: Any) -> int:
    return ctypes.addressof(ctypes.c_char.from_buffer(view))


@pytest.mark.parametrize("drop_last", [True, False])
@pytest.mark.parametrize("ranks", [1, 2, 3])
def test_ranks_get_the_order_of_distributed_sampler(
    tmp_path: Path, make: Callable[..., Job], ranks: int, drop_last: bool
) -> None:
    dataset = Records(tmp_path / "records", [10 + i for i in range(20)])
    sampler = DistributedSampler(20, ranks, seed=5, drop_last=drop_last)
    order = Loader(sampler, ranks, BATCH, drop_last=drop_last)
    for rank in range(ranks):
        settings = {"rank": rank, "world_size": ranks, "workers": 0}
        job = make(dataset, BATCH, EPOCHS, "uniform", drop_last, 5, **settings)
        for epoch in range(EPOCHS):
            for sample in order.ranks(epoch)[rank].tolist():
                view, label = job.get()
                assert bytes(view) == dataset[sample] and label is None
        with pytest.raises(MonarchError, match="all 2 epochs"):
            job.get()


def test_samples_lie_in_the_buffer_and_nothing_copies_them(
    tmp_path: Path, make: Callable[..., Job]
) -> None:
    dataset = Records(tmp_path / "records", [1000] * 12)
    job = make(dataset, BATCH, EPOCHS)
    whole = address(job.buffer)
    before = -1
    for number in range(12):
        view, _ = job.get()
        place = address(view) - whole
        assert 0 <= place <= len(job.buffer) - 1000
        assert bytes(job.buffer[place : place + 1000]) == bytes(view)
        assert (place == before + 1000) == (number % BATCH != 0)
        before = place
    assert np.asarray(job.buffer).nbytes == len(job.buffer)
    assert job.statistics()["samples"] == 12


# Without --long, "spawn" is left out, because test_staged.py tests spawned workers in every run.
@pytest.mark.parametrize("method", cases(["fork", "spawn"], short=["fork"]))
def test_an_image_folder_in_batches(images: Path, make: Callable[..., Job], method: str) -> None:
    job = make(images, 4, EPOCHS, seed=3, multiprocessing_context=method, workers=1)
    dataset = NoPFSImageFolder(images, job, np.asarray)
    assert dataset.__getitems__([]) == []
    assert dataset.class_to_idx == {"ant": 0, "bee": 1, "cat": 2}
    loader = NoPFSDataLoader(dataset)
    assert len(loader) == 3
    epochs = []
    for _ in range(EPOCHS):
        seen = []
        for pixels, labels in loader:
            assert pixels.shape[1:] == (6, 8, 3)
            assert (pixels[:, 0, 0, 0] == 40 * labels).all()
            seen += [(int(p[0, 0, 0]), int(p[0, 0, 1])) for p in pixels]
        assert sorted(seen) == sorted((40 * n, 10 * i) for n in range(3) for i in range(5 - n))
        epochs.append(seen)
    assert epochs[0] != epochs[1]
    with pytest.raises(MonarchError, match="all 2 epochs"):
        iter(loader)
    assert loader.statistics()["batches"] == 6
    loader.close()


def test_a_loader_for_each_epoch_goes_on_with_the_job(
    images: Path, make: Callable[..., Job]
) -> None:
    job = make(images, 12, EPOCHS, seed=3, workers=0)
    dataset = NoPFSImageFolder(images, job, np.asarray)
    first, second = (
        [tuple(pixels[0, 0].tolist()) for batch, _ in NoPFSDataLoader(dataset) for pixels in batch]
        for _ in range(EPOCHS)
    )
    assert first != second and sorted(first) == sorted(second)
    with pytest.raises(MonarchError, match="all 2 epochs"):
        iter(NoPFSDataLoader(dataset))


@pytest.mark.parametrize(
    ("number", "text"), [(signal.SIGKILL, "SIGKILL"), (signal.SIGSTOP, "stopped")]
)
def test_get_goes_on_after_a_worker_was_killed_or_stopped(
    tmp_path: Path, make: Callable[..., Job], number: int, text: str
) -> None:
    dataset = Records(tmp_path / "records", [10 + i for i in range(40)])
    job, whole = make(dataset, 4, EPOCHS, workers=1), make(dataset, 4, EPOCHS, workers=0)
    want = [bytes(whole.get()[0]) for _ in range(80)]
    got = [bytes(job.get()[0]) for _ in range(6)]
    for worker in multiprocessing.active_children():
        assert worker.pid is not None
        os.kill(worker.pid, number)
    began = time.monotonic()
    with pytest.raises(MonarchError, match=text):
        while True:
            got.append(bytes(job.get()[0]))
    assert time.monotonic() - began < ERROR_LIMIT_S
    got += [bytes(job.get()[0]) for _ in range(80 - len(got))]
    assert got == want


def test_get_has_the_files_and_their_classes(images: Path, make: Callable[..., Job]) -> None:
    job = make(str(images), 4, 1, workers=0)
    files = ImageFolderFiles(images)
    got = sorted((bytes(view), int(label)) for view, label in (job.get() for _ in range(12)))
    assert got == sorted((files[i], int(files.labels[i])) for i in range(12))
    assert job.length() == 12


def test_kept_images_have_their_classes(
    images: Path, make: Callable[..., Job], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "shm").mkdir()
    monkeypatch.setenv("MONARCH_SHM", str(tmp_path / "shm"))
    kept = KeptDataset(ImageFolderFiles(images), quota="1MiB")
    job = make(kept, 4, 1, workers=0)
    labels = sorted(int(job.get()[1]) for _ in range(12))
    assert labels == [0] * 5 + [1] * 4 + [2] * 3
    kept.close()


@pytest.mark.parametrize("is_slow", [True, False])
def test_a_file_that_is_gone_or_shorter_is_one_error(
    images: Path, make: Callable[..., Job], monkeypatch: pytest.MonkeyPatch, is_slow: bool
) -> None:
    monkeypatch.setattr("monarch_py.loaders.records.whole_files.SLOW_S", 0.0 if is_slow else 1e9)
    job = make(images, 12, 1, workers=1)
    assert job.loader.reads_in_place
    (images / "bee" / "2.png").unlink()
    with pytest.raises(FileNotFoundError, match=r"bee/2\.png"):
        job.get()
    job = make(images, 11, 1, workers=1)
    (images / "cat" / "1.png").write_bytes(b"short")
    with pytest.raises(OSError, match=r"5 bytes.*cat/1\.png"):
        job.get()


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"distr_scheme": "normal"}, "distr_scheme"),
        ({"epochs": 0}, "epochs"),
        ({"batch_size": 0}, "batch_size"),
        ({"dataset": Labelled(4)}, "dataset"),
    ],
)
def test_arguments_that_cannot_work(tmp_path: Path, change: dict[str, Any], text: str) -> None:
    dataset = Records(tmp_path / "records", [10] * 4)
    with pytest.raises(ConfigError, match=text):
        Job(**{"dataset": dataset, "batch_size": 2, "epochs": 1, **change})


def test_another_directory_than_the_jobs_is_refused(images: Path, make: Callable[..., Job]) -> None:
    with pytest.raises(ConfigError, match="root"):
        NoPFSImageFolder(images / "ant", make(images, 4, 1))
