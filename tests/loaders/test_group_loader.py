"""GroupLoader yields every sample once and with its own bytes, reads a group as one range, and
raises clear errors."""

from __future__ import annotations

import errno
import json
import multiprocessing
import os
import signal
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from loaders.staged_data import Rows
from support import draws

from monarch_py.arrays import Array
from monarch_py.demo.slowsource import SlowSource
from monarch_py.errors import ConfigError, MonarchError
from monarch_py.loaders.groups import loader as groups
from monarch_py.loaders.groups.loader import GroupLoader
from monarch_py.loaders.groups.size import classes_of_groups, fitting
from monarch_py.loaders.records.dataset import RecordDataset

# Time limit for operations that must not hang [s].
ERROR_LIMIT_S = 5.0
RECORD = 16


@pytest.fixture(autouse=True)
def arrays(monkeypatch: pytest.MonkeyPatch) -> None:
    """Makes GroupLoader yield arrays instead of tensors, so that no test imports torch, which takes
    seconds."""
    monkeypatch.setattr(groups, "as_tensor", lambda array: array)


def records(count: int) -> Array:
    return np.random.default_rng(1).integers(0, 256, (count, RECORD), dtype=np.uint8)


def write(path: Path, count: int) -> Array:
    values = records(count)
    path.write_bytes(values.tobytes())
    return values


@contextmanager
def loading(dataset: Any, batch_size: int, group: Any, **options: Any) -> Iterator[GroupLoader]:
    """Yields a loader that is closed at the end of the context. Unless `options` contains `epochs`,
    the number of epochs is 0, so that the loader does not warn that there are more epochs than
    samples in a group."""
    options = {"epochs": 0, "rank": 0, "world_size": 1, **options}
    loader = GroupLoader(dataset, batch_size, group, **options)
    try:
        yield loader
    finally:
        loader.close()


def rows(batches: Any) -> list[bytes]:
    return [bytes(sample) for batch in batches for sample in batch]


def test_every_sample_comes_once_with_its_label(tmp_path: Path) -> None:
    values = write(tmp_path / "a.bin", 1000)
    dataset = RecordDataset(tmp_path / "a.bin", record_bytes=RECORD)
    orders = []
    with loading(dataset, 32, 60, seed=3, labels=np.arange(1000), epochs=3) as loader:
        assert len(loader) == 32
        for epoch in range(3):
            loader.set_epoch(epoch)
            batches = list(loader)
            assert [len(labels) for _, labels in batches] == [32] * 31 + [8]
            order = np.concatenate([labels for _, labels in batches])
            assert rows(samples for samples, _ in batches) == [values[i].tobytes() for i in order]
            orders.append(order)
            assert loader.times.groups == 17
            assert loader.times.n_bytes == values.nbytes
    assert all(sorted(order) == list(range(1000)) for order in orders)
    assert not np.array_equal(orders[0], orders[1])
    # A group is a range of neighbouring samples. Groups come in random order, and so do the samples
    # in a group.
    inside = [
        set(run) for run in np.split(orders[0] // 60, np.flatnonzero(np.diff(orders[0] // 60)) + 1)
    ]
    assert all(len(each) == 1 for each in inside) and len(inside) == 17
    assert (np.diff(orders[0]) != 1).mean() > 0.9


@given(
    length=st.integers(1, 80),
    group=st.integers(1, 90),
    world=st.integers(1, 5),
    batch=st.integers(1, 20),
    drop_last=st.booleans(),
)
@settings(max_examples=draws.examples(6), deadline=None)
def test_ranks_share_an_epoch(
    tmp_path_factory: pytest.TempPathFactory,
    length: int,
    group: int,
    world: int,
    batch: int,
    drop_last: bool,
) -> None:
    path = tmp_path_factory.getbasetemp() / "ranks.bin"
    values = write(path, length)
    dataset = RecordDataset(path, record_bytes=RECORD)
    if drop_last and length // world < batch:
        with pytest.raises(ConfigError, match=r"batch_size|leave nothing"):
            GroupLoader(dataset, batch, group, rank=0, world_size=world, drop_last=True)
        return
    taken, steps = [], set()
    for rank in range(world):
        options: Any = {"rank": rank, "world_size": world, "drop_last": drop_last}
        with loading(dataset, batch, group, labels=np.arange(length), **options) as loader:
            batches = list(loader)
            steps.add(tuple(len(labels) for _, labels in batches))
            assert len(batches) == len(loader)
            for samples, labels in batches:
                assert [bytes(s) for s in samples] == [values[i].tobytes() for i in labels]
                taken += labels.tolist()
    assert len(steps) == 1, "all ranks must have batches of the same sizes"
    counts = np.bincount(taken, minlength=length)
    if drop_last:
        assert counts.max() == 1
        assert len(taken) == length // world // batch * batch * world
    else:
        assert counts.min() == 1 + -length % world // length
        assert counts.sum() == length + -length % world


# Without --long, "spawn" is left out: test_records.py reads the dataset in a spawned process.
@pytest.mark.parametrize("method", draws.cases(["fork", "spawn"], short=["fork"]))
def test_rows_of_hdf5(tmp_path: Path, method: str) -> None:
    h5py = pytest.importorskip("h5py")
    values = np.random.default_rng(2).normal(size=(500, 3, 5)).astype("f4")
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file.create_dataset("x", data=values, chunks=(7, 3, 5), compression="gzip")
    dataset = RecordDataset(tmp_path / "a.h5", dataset="x")
    options: Any = {"labels": np.arange(500), "start_method": method}
    with loading(dataset, 48, 100, **options) as loader:
        for batch, labels in loader:
            assert batch.dtype == np.float32
            assert np.array_equal(batch, values[labels])


def test_samples_of_different_sizes(tmp_path: Path) -> None:
    import struct

    rng = np.random.default_rng(3)
    expected = [rng.bytes(int(size)) for size in rng.integers(0, 500, 200)]
    framed = [struct.pack("<QI", len(s), 0) + s + bytes(4) for s in expected]
    (tmp_path / "a.tfrecord").write_bytes(b"".join(framed))
    dataset = RecordDataset(tmp_path / "a.tfrecord")
    options: Any = {"labels": np.arange(200), "collate": tuple}
    with loading(dataset, 30, 70, **options) as loader:
        for batch, labels in loader:
            assert batch == tuple(expected[i] for i in labels)


def test_batches_are_tensors(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    torch = pytest.importorskip("torch")
    h5py = pytest.importorskip("h5py")
    monkeypatch.undo()
    values = np.arange(60, dtype="f4").reshape(30, 2)
    for name, kind in (("little", "<f4"), ("big", ">f4")):
        with h5py.File(tmp_path / f"{name}.h5", "w") as file:
            file.create_dataset("x", data=values.astype(kind))
    dataset = RecordDataset(tmp_path / "little.h5", dataset="x")
    with loading(dataset, 30, 15, labels=np.arange(30)) as loader:
        ((batch, labels),) = list(loader)
    assert batch.dtype == torch.float32
    assert torch.equal(batch, torch.from_numpy(values)[labels])
    with loading(RecordDataset(tmp_path / "big.h5", dataset="x"), 30, 15) as loader:
        assert [each.dtype for each in loader] == [">f4"], (
            "torch has no such dtype, so batches must stay arrays"
        )


# --- reads ---------------------------------------------------------------------------------------


def test_a_group_is_one_range(slow_factory: Callable[..., SlowSource]) -> None:
    """A group of 609 samples of 19.2 KB is read in pieces of 128 KiB, and nothing else is read."""
    source = slow_factory()
    size, count = 19_200, 609 * 2
    (source.backing / "a.bin").write_bytes(np.random.default_rng(4).bytes(size * count))
    dataset = RecordDataset(source.mountpoint / "a.bin", record_bytes=size)
    with loading(dataset, 64, 609) as loader:
        source.reset()
        list(loader)
        counts = source.counts()
        assert loader.times.groups == 2
    assert counts["read"] <= 1.1 * size * count / (128 << 10)


@pytest.mark.usefixtures("alone")
def test_waiting_is_told(slow_factory: Callable[..., SlowSource]) -> None:
    """If the computation on each group takes longer than the read of the next group, the training
    run waits only for the first group."""
    source = slow_factory()
    (source.backing / "a.bin").write_bytes(bytes(4 * 512 << 10))
    dataset = RecordDataset(source.mountpoint / "a.bin", record_bytes=64 << 10)
    source.latency(read=0.1)
    with loading(dataset, 8, 8) as loader:
        for _ in loader:
            time.sleep(0.3)
        times = loader.times
        assert times.groups == 4
        assert times.first_wait_s >= 0.1
        assert times.reading_s >= 0.4
        assert times.wait_s <= 0.1 * times.reading_s
        loader.close()  # the next open drops the file's page cache
        loader.set_epoch(2)
        for _ in loader:
            pass
        assert loader.times.wait_s >= 0.1, "a training that computes nothing must wait"


@pytest.mark.parametrize("group", draws.cases([8, 20, 64], short=[8, 64]))
def test_the_next_epoch_is_read_ahead(tmp_path: Path, group: int) -> None:
    """Each epoch yields its own samples in its own order, even if the loader has already read the
    first groups of another epoch."""
    values = write(tmp_path / "a.bin", 64)
    dataset = RecordDataset(tmp_path / "a.bin", record_bytes=RECORD)

    def order(loader: GroupLoader) -> list[int]:
        found = []
        for samples, labels in loader:
            assert [bytes(sample) for sample in samples] == [values[i].tobytes() for i in labels]
            found += labels.tolist()
        return found

    options: Any = {"labels": np.arange(64), "epochs": 6, "seed": 2}
    with loading(dataset, 5, group, **options) as loader:
        expected = {}
        for epoch in range(8):
            loader.close()  # drops the groups that were read ahead
            loader.set_epoch(epoch)
            expected[epoch] = order(loader)
        assert len({tuple(each) for each in expected.values()}) == 8
        for epoch in (0, 1, 2, 5, 3, 3, 4, 5, 6, 7):
            loader.set_epoch(epoch)
            assert order(loader) == expected[epoch]
        loader.set_epoch(2)
        left = iter(loader)
        next(left)
        assert order(loader) == expected[2]
        later = iter(loader)
        loader.close()
        assert len(list(later)) == len(loader)
    with loading(dataset, 5, group, **options) as loader:
        for _ in range(8):
            assert order(loader) == expected[0]


def test_nothing_is_read_for_epochs_that_do_not_come(
    slow_factory: Callable[..., SlowSource],
) -> None:
    source = slow_factory(direct=True)
    size = 64 << 10
    (source.backing / "a.bin").write_bytes(bytes(16 * size))
    dataset = RecordDataset(source.mountpoint / "a.bin", record_bytes=size)
    for is_told in (False, True):
        source.reset()
        with loading(dataset, 4, 4, epochs=3) as loader:
            for epoch in range(3):
                if is_told:
                    loader.set_epoch(epoch)
                assert len(list(loader)) == 4
        assert source.counts()["bytes_read"] == 3 * 16 * size


def test_a_dataset_that_changes_its_samples_is_refused(tmp_path: Path) -> None:
    class Turned(RecordDataset):
        def __getitem__(self, number: int) -> Any:
            return super().__getitem__(number)[::-1]

    write(tmp_path / "a.bin", 30)
    with pytest.raises(ConfigError, match="dataset: Turned has"):
        GroupLoader(Turned(tmp_path / "a.bin", record_bytes=RECORD), 10, 10)


def test_rows_of_a_dataset_of_ones_own(tmp_path: Path) -> None:
    """The loader takes the shape and type of rows from the dataset's first sample."""
    dataset = Rows(tmp_path / "rows", [48] * 30)
    with loading(dataset, 10, 10, labels=np.arange(30)) as loader:
        for batch, numbers in loader:
            assert np.array_equal(batch, np.stack([dataset[i] for i in numbers]))


def test_it_is_of_use_only_in_the_process_that_made_it(tmp_path: Path) -> None:
    write(tmp_path / "a.bin", 30)
    dataset = RecordDataset(tmp_path / "a.bin", record_bytes=RECORD)
    with loading(dataset, 10, 10) as loader:
        batches = iter(loader)
        next(batches)
        child = os.fork()
        if not child:
            refused = 0
            for one in (batches, iter(loader)):
                try:
                    next(one)
                except MonarchError:
                    refused += 1
                finally:
                    if refused == 2:
                        os._exit(0)
            os._exit(1)
        assert os.waitpid(child, 0)[1] == 0
        assert len(list(batches)) == 2
    with loading(dataset, 10, 10) as unused:
        child = os.fork()
        if not child:
            os._exit(len(list(unused)))
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 3


# --- state ---------------------------------------------------------------------------------------


def test_an_epoch_goes_on_where_it_was(tmp_path: Path) -> None:
    write(tmp_path / "a.bin", 333)
    dataset = RecordDataset(tmp_path / "a.bin", record_bytes=RECORD)
    with loading(dataset, 16, 50, seed=9) as loader:
        loader.set_epoch(2)
        whole = [rows([batch]) for batch in loader]
        for done in (0, 1, 7, len(whole) - 1, len(whole)):
            with loading(dataset, 16, 50, seed=9) as first:
                first.set_epoch(2)
                batches = iter(first)
                for _ in range(done):
                    next(batches)
                state = first.state_dict()
                assert state == first.state_dict(done)
            text = json.dumps(state)
            assert len(text) < 1024
            with loading(dataset, 16, 50, seed=9) as second:
                second.load_state_dict(json.loads(text))
                second.set_epoch(2)
                assert second.state_dict() == state
                assert [rows([batch]) for batch in second] == whole[done:]
                second.set_epoch(3)
                assert len(list(second)) == len(whole)


def test_groups_change_only_between_epochs(tmp_path: Path) -> None:
    write(tmp_path / "a.bin", 100)
    dataset = RecordDataset(tmp_path / "a.bin", record_bytes=RECORD)
    with loading(dataset, 10, 20) as loader, loading(dataset, 10, 30) as other:
        other.load_state_dict(loader.state_dict())
        with pytest.raises(ConfigError, match="state: group is 20, but this loader has 30"):
            other.load_state_dict(loader.state_dict(5))
        other.load_state_dict(loader.state_dict(10))
        assert list(other) == []
        with pytest.raises(ConfigError, match="seed"):
            other.load_state_dict({**loader.state_dict(0), "seed": 5})
        with pytest.raises(ConfigError, match="done: 11"):
            loader.state_dict(11)


def test_iterations_one_after_the_other(tmp_path: Path) -> None:
    """If an iteration is left early, the next iteration still yields all samples. If the first
    iteration is then continued, it raises an error."""
    values = write(tmp_path / "a.bin", 100)
    dataset = RecordDataset(tmp_path / "a.bin", record_bytes=RECORD)
    with loading(dataset, 10, 20) as loader:
        left = iter(loader)
        next(left)
        assert sorted(rows(loader)) == sorted(row.tobytes() for row in values)
        with pytest.raises(MonarchError, match="another iteration"):
            next(left)
        assert len(list(loader)) == 10
        unused = iter(loader)
        loader.set_epoch(1)
        newest = iter(loader)
        taken = [next(newest)]
        assert loader._reader is not None
        asked = loader._reader._tasks
        with pytest.raises(MonarchError, match="another iteration"):
            next(unused)
        assert loader._reader._tasks == asked, "the old iteration asked for a group of its own"
        assert sorted(rows([*taken, *newest])) == sorted(row.tobytes() for row in values)


# --- which groups --------------------------------------------------------------------------------


def test_the_automatic_group() -> None:
    sizes = np.full(100_000, 19_200)
    assert fitting(sizes, 100, 1, 4 << 30) == 874  # a group has 16 MiB
    assert fitting(sizes, 2000, 1, 4 << 30) == 2001  # more samples in a group than epochs
    assert fitting(sizes, 100, 1000, 4 << 30) == 100  # each rank has one group
    assert fitting(sizes, 100, 1, 8 << 20) * 19_200 * 2 <= 8 << 20
    assert fitting(np.zeros(10, dtype=np.int64), 1, 1, 4 << 30) == 10


def test_warns_of_more_epochs_than_samples_of_a_group(tmp_path: Path) -> None:
    write(tmp_path / "a.bin", 300)
    dataset = RecordDataset(tmp_path / "a.bin", record_bytes=RECORD)
    with pytest.warns(UserWarning, match="100 epochs with groups of 100 samples") as caught:
        GroupLoader(dataset, 10, 100, epochs=100, rank=0, world_size=1)
    assert caught[0].filename == __file__
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        GroupLoader(dataset, 10, 101, epochs=100, rank=0, world_size=1)


def test_warns_of_groups_with_few_classes(tmp_path: Path) -> None:
    write(tmp_path / "a.bin", 1000)
    dataset = RecordDataset(tmp_path / "a.bin", record_bytes=RECORD)
    kinds = np.random.default_rng(5).integers(0, 10, 1000)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with loading(dataset, 10, 50, labels=kinds):
            pass
    with (
        pytest.warns(UserWarning, match="the dataset is sorted"),
        loading(dataset, 10, 50, labels=np.sort(kinds)),
    ):
        pass


def test_classes_of_groups() -> None:
    labels = np.repeat(np.arange(4), 25)
    found, expected = classes_of_groups(labels, 25)
    assert found == 1.0
    assert expected == pytest.approx(4 * (1 - 0.75**25))
    found, expected = classes_of_groups(np.tile(np.arange(4), 25), 4)
    assert found == 4.0
    assert expected == pytest.approx(2.734375)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"batch_size": 0}, "batch_size"),
        ({"group": 0}, "group: 0"),
        ({"memory": 1000}, "group: two groups of 50 samples take"),
        ({"memory": "much"}, "memory: .* give bytes, or a size such as"),
        ({"labels": [1, 2]}, "labels: 2 for 100 samples"),
        ({"rank": 2}, "rank: 2"),
        ({"dataset": [1, 2]}, "dataset: list has no read_into"),
    ],
)
def test_options_are_checked(tmp_path: Path, options: dict[str, Any], said: str) -> None:
    write(tmp_path / "a.bin", 100)
    dataset = RecordDataset(tmp_path / "a.bin", record_bytes=RECORD)
    given: dict[str, Any] = {"dataset": dataset, "batch_size": 10, "group": 50, "epochs": 0}
    with pytest.raises(ConfigError, match=said):
        GroupLoader(**{**given, "rank": 0, "world_size": 1, **options})


# --- errors --------------------------------------------------------------------------------------


def process_of(loader: GroupLoader) -> psutil.Process:
    assert loader._reader is not None
    return psutil.Process(loader._reader.pid)


def test_the_process_has_not_the_trainings_handler(tmp_path: Path) -> None:
    write(tmp_path / "a.bin", 1000)
    dataset = RecordDataset(tmp_path / "a.bin", record_bytes=RECORD)
    before = signal.signal(signal.SIGTERM, lambda *_: None)
    try:
        with loading(dataset, 10, 100, start_method="fork") as loader:
            next(iter(loader))
            assert loader._reader is not None
            process = loader._reader._process
            process.terminate()
            process.join(ERROR_LIMIT_S)
            assert process.exitcode == -signal.SIGTERM
    finally:
        signal.signal(signal.SIGTERM, before)


KILLED, STOPPED = "was killed by signal 9", "was stopped by a signal"
ENDS = [
    (number, said, method)
    for number, said in ((signal.SIGKILL, KILLED), (signal.SIGSTOP, STOPPED))
    for method in ("fork", "spawn")
]


@pytest.mark.parametrize("end", draws.cases(ENDS, short=[ENDS[1], ENDS[2]]))
def test_a_process_that_is_killed_or_stopped(
    tmp_path: Path, end: tuple[signal.Signals, str, str]
) -> None:
    number, said, method = end
    write(tmp_path / "a.bin", 1000)
    dataset = RecordDataset(tmp_path / "a.bin", record_bytes=RECORD)
    with loading(dataset, 10, 100, start_method=method) as loader:
        batches = iter(loader)
        next(batches)
        process = process_of(loader)
        process.send_signal(number)
        started = time.monotonic()
        with pytest.raises(MonarchError, match=said):
            for _ in batches:
                pass
        assert time.monotonic() - started < ERROR_LIMIT_S
        assert not process.is_running() or process.status() == psutil.STATUS_ZOMBIE
        assert len(list(loader)) == 100, "a new process must read on"


def test_samples_that_cannot_be_read(slow_factory: Callable[..., SlowSource]) -> None:
    source = slow_factory(direct=True)
    path = source.mountpoint / "a.bin"
    write(source.backing / "a.bin", 1000)
    dataset = RecordDataset(path, record_bytes=RECORD)
    with loading(dataset, 10, 100) as loader:
        batches = iter(loader)
        next(batches)
        source.fail(errno.EIO)
        with pytest.raises(MonarchError, match=f"{path}: Input/output error"):
            for _ in batches:
                pass
        source.fail(0)
        assert len(list(loader)) == 100


def test_a_missing_file(tmp_path: Path) -> None:
    write(tmp_path / "a.bin", 100)
    dataset = RecordDataset(tmp_path / "a.bin", record_bytes=RECORD)
    (tmp_path / "a.bin").unlink()
    with (
        loading(dataset, 10, 50) as loader,
        pytest.raises(MonarchError, match=r"a\.bin: No such file"),
    ):
        next(iter(loader))


def train_for_ever(path: Path, method: str, to: Any) -> None:
    dataset = RecordDataset(path, record_bytes=RECORD)
    loader = GroupLoader(
        dataset, 10, 50, epochs=0, rank=0, world_size=1, start_method=method, collate=len
    )
    batches = iter(loader)
    next(batches)
    assert loader._reader is not None
    to.send(loader._reader.pid)
    signal.pause()


# Without --long, only "fork" is tried: only a forked process inherits its parent's descriptors, and
# so could keep something open after the training run was killed.
@pytest.mark.parametrize("method", draws.cases(["fork", "spawn"], short=["fork"]))
def test_a_training_that_is_killed_leaves_nothing(tmp_path: Path, method: str) -> None:
    write(tmp_path / "a.bin", 100)
    context: Any = multiprocessing.get_context(method)
    here, there = context.Pipe()
    training = context.Process(target=train_for_ever, args=(tmp_path / "a.bin", method, there))
    training.start()
    try:
        assert here.poll(60)
        reader = psutil.Process(here.recv())
        assert reader.ppid() == training.pid
        mapped = Path(f"/proc/{reader.pid}/maps").read_text()
        # A memfd has no name, and the kernel frees it when the last process that uses it ends.
        assert "/memfd:monarch-ring" in mapped and "/dev/shm/" not in mapped
        training.kill()
        training.join(ERROR_LIMIT_S)
        with suppress(psutil.NoSuchProcess):
            reader.wait(ERROR_LIMIT_S)
        assert not reader.is_running() or reader.status() == psutil.STATUS_ZOMBIE
    finally:
        training.kill()
        training.join()


def test_a_training_that_ends_waits_for_nothing(tmp_path: Path) -> None:
    write(tmp_path / "a.bin", 100)
    dataset = RecordDataset(tmp_path / "a.bin", record_bytes=RECORD)
    loader = GroupLoader(dataset, 10, 50, epochs=0, rank=0, world_size=1)
    next(iter(loader))
    process = process_of(loader)
    started = time.monotonic()
    del loader
    assert time.monotonic() - started < ERROR_LIMIT_S
    assert not process.is_running()
