"""StagedLoader yields what DataLoader yields, and ends properly whatever happens to its workers."""

from __future__ import annotations

import gc
import json
import multiprocessing
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
from loaders.staged_data import (
    KILL,
    STOP,
    Drawing,
    Failing,
    Forking,
    Forwarding,
    Labelled,
    Now,
    Records,
    Rows,
    Signalled,
    Stopping,
    Swapped,
    Turned,
)
from support.draws import cases

from monarch_py.errors import ConfigError, MonarchError
from monarch_py.loaders.memory.ring import Ring
from monarch_py.loaders.samplers.ranks import Ranks
from monarch_py.loaders.staged.loader import StagedLoader
from monarch_py.loaders.staged.nopfs import UniformSampler

LIMIT_S = 5.0


@contextmanager
def within(seconds: float) -> Iterator[None]:
    """Raises TimeoutError if the context takes longer than `seconds`."""

    def late(*_: Any) -> None:
        raise TimeoutError

    signal.signal(signal.SIGALRM, late)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, signal.SIG_DFL)


def batches(length: int, size: int = 4, seed: int = 3) -> list[list[int]]:
    order = np.random.RandomState(seed).permutation(length).tolist()
    return [order[i : i + size] for i in range(0, length, size)]


class Sampler:
    """A batch sampler whose epochs can be resumed."""

    def __init__(self, length: int) -> None:
        self.length, self.epoch, self.start = length, 0, 0

    def __iter__(self) -> Iterator[list[int]]:
        start, self.start = self.start, 0
        yield from batches(self.length, seed=self.epoch)[start:]

    def __len__(self) -> int:
        return len(batches(self.length))

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch

    def state_dict(self, done: int | None = None) -> dict[str, Any]:
        return {"epoch": self.epoch, "done": done}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.epoch, self.start = state["epoch"], state["done"]


@pytest.fixture
def make() -> Iterator[Callable[..., StagedLoader]]:
    made = []

    def one(dataset: Any, **settings: Any) -> StagedLoader:
        settings = {"batch_sampler": batches(len(dataset)), "workers": 2, **settings}
        made.append(StagedLoader(dataset, **settings))
        return made[-1]

    yield one
    for loader in made:
        loader.close()


WAYS: list[dict[str, Any]] = [
    {"workers": 0},
    {"workers": 4},
    {"workers": 4, "persistent": False},
    {"workers": 1, "multiprocessing_context": "spawn"},
    {"workers": 1, "multiprocessing_context": "forkserver"},
]


@pytest.mark.parametrize("way", WAYS, ids=lambda way: "-".join(map(str, way.values())))
def test_each_sample_has_the_bytes_of_the_dataset(
    tmp_path: Path, make: Callable[..., StagedLoader], way: dict[str, Any]
) -> None:
    dataset = Records(tmp_path / "records", [5, 4096, 1, 70_000, 33, 0, 8, 9, 10, 11, 12])
    loader = make(dataset, **way)
    for _ in range(2):
        got = [[part.numpy().tobytes() for part in batch] for batch in loader]
        assert got == [[dataset[i] for i in batch] for batch in batches(len(dataset))]


@pytest.mark.parametrize("workers", [0, 2])
def test_rows_of_one_form_are_one_tensor_over_the_ring(
    tmp_path: Path, make: Callable[..., StagedLoader], workers: int
) -> None:
    dataset = Rows(tmp_path / "rows", [48] * 10)
    loader = make(dataset, workers=workers)
    places = set()
    for batch, samples in zip(loader, batches(10), strict=True):
        assert np.array_equal(batch.numpy(), np.stack([dataset[i] for i in samples]))
        places.add(batch.data_ptr())
    slots = 2 * max(1, workers) + 1
    assert len(places) <= slots
    # An empty batch keeps the shape of a row.
    (empty,) = make(dataset, workers=workers, batch_sampler=[[]])
    assert tuple(empty.shape) == (0, 2, 6)
    records = Records(tmp_path / "records", [1, 2])
    assert list(make(records, workers=workers, batch_sampler=[[], np.arange(0)])) == [[], []]


def test_it_gives_what_dataloader_gives(make: Callable[..., StagedLoader]) -> None:
    torch = pytest.importorskip("torch")
    dataset = Labelled(10)
    theirs = torch.utils.data.DataLoader(dataset, batch_sampler=batches(10))
    for ours, plain in zip(make(dataset), theirs, strict=True):
        assert torch.equal(ours["image"], plain["image"])
        assert ours["image"].dtype == plain["image"].dtype
        numbers, names, halves = ours["more"]
        assert torch.equal(numbers, plain["more"][0]) and numbers.dtype == torch.int64
        assert torch.equal(halves, plain["more"][2]) and halves.dtype == torch.float64
        assert names == list(plain["more"][1])


def test_a_sample_that_is_changed_on_its_way_is_not_read_in_place(
    tmp_path: Path, make: Callable[..., StagedLoader]
) -> None:
    dataset = Turned(tmp_path / "rows", [48] * 8)
    loader = make(dataset)
    assert not loader.reads_in_place
    for batch, samples in zip(loader, batches(8), strict=True):
        assert np.array_equal(batch.numpy(), np.stack([dataset[i] for i in samples]))


def test_a_sample_that_is_changed_by_chance_is_not_read_in_place(tmp_path: Path) -> None:
    for dataset in (
        Now(tmp_path / "rows", [48] * 8),
        Forwarding(Rows(tmp_path / "rows", [48] * 8)),
    ):
        assert not StagedLoader(dataset, batch_sampler=batches(8), workers=0).reads_in_place


@pytest.mark.parametrize("workers", [0, 1])
def test_an_empty_batch_has_the_form_of_others(
    make: Callable[..., StagedLoader], workers: int
) -> None:
    empty, full = make(Labelled(4), batch_sampler=[[], [1]], workers=workers, copy=True)
    assert empty["image"].shape == (0, 3, 4) and empty["image"].dtype == full["image"].dtype
    numbers, names, halves = empty["more"]
    assert (len(numbers), names, len(halves)) == (0, [], 0)
    assert numbers.dtype == full["more"][0].dtype


def in_bfloat(samples: list[Any]) -> Any:
    import torch

    arrays = np.stack([sample["image"] for sample in samples])
    return torch.from_numpy(arrays).to(torch.bfloat16), arrays, {"n": len(samples)}


@pytest.mark.parametrize("workers", [0, 1])
def test_a_batch_of_the_users_own(make: Callable[..., StagedLoader], workers: int) -> None:
    torch = pytest.importorskip("torch")
    for batch, samples in zip(
        make(Labelled(6), collate_fn=in_bfloat, workers=workers), batches(6), strict=True
    ):
        tensor, array, more = batch
        assert tensor.dtype == torch.bfloat16 and tensor[:, 0, 0].tolist() == samples
        assert isinstance(array, np.ndarray) and array[:, 0, 0].tolist() == samples
        assert more == {"n": len(samples)}


def test_views_end_with_the_next_batch_and_copies_stay(
    tmp_path: Path, make: Callable[..., StagedLoader]
) -> None:
    dataset = Rows(tmp_path / "rows", [48] * 40)
    want = [np.stack([dataset[i] for i in batch]) for batch in batches(40)]
    kept = list(make(dataset, workers=1, copy=True))
    assert all(np.array_equal(a, b) for a, b in zip(kept, want, strict=True))
    views = list(make(dataset, workers=1))
    assert not all(np.array_equal(a, b) for a, b in zip(views, want, strict=True))


def test_without_torch_batches_are_arrays(make: Callable[..., StagedLoader]) -> None:
    for batch in make(Labelled(4), tensors=False):
        assert isinstance(batch["image"], np.ndarray)


@pytest.mark.parametrize("method", cases(["fork", "spawn"], short=["fork"]))
def test_an_exception_of_the_dataset_comes_with_the_workers_traceback(
    make: Callable[..., StagedLoader], method: str
) -> None:
    loader = make(
        Failing(16),
        batch_sampler=[[i] for i in range(16)],
        workers=1,
        multiprocessing_context=method,
    )
    epoch = iter(loader)
    for _ in range(13):
        next(epoch)
    with pytest.raises(KeyError, match="thirteen") as raised:
        next(epoch)
    assert "__getitem__" in str(raised.value.__cause__)
    assert loader.state_dict()["delivered"] == 14
    assert [int(batch["more"][0]) for batch in epoch] == [14, 15]


@pytest.mark.parametrize(("number", "text"), [(KILL, "SIGKILL"), (STOP, "stopped")])
def test_a_worker_that_is_killed_or_stopped_is_one_error(
    make: Callable[..., StagedLoader], number: int, text: str
) -> None:
    loader = make(Signalled(64, number))
    began = time.monotonic()
    with pytest.raises(MonarchError, match=text):
        list(loader)
    assert time.monotonic() - began < LIMIT_S
    assert not multiprocessing.active_children()


def test_a_killed_worker_whose_child_has_its_pipe_is_one_error(
    tmp_path: Path, make: Callable[..., StagedLoader]
) -> None:
    loader = make(Forking(4, tmp_path / "child"), workers=1)
    try:
        with within(LIMIT_S), pytest.raises(MonarchError, match="SIGKILL"):
            list(loader)
    finally:
        os.kill(int((tmp_path / "child").read_text()), signal.SIGKILL)


def test_a_stopped_worker_that_has_all_slots_is_one_error(
    make: Callable[..., StagedLoader],
) -> None:
    loader = make(Signalled(64, STOP), batch_sampler=[[13]] * 8, workers=1)
    for _ in range(3):
        epoch = iter(loader)
    with within(2 * LIMIT_S), pytest.raises(MonarchError, match="stopped"):
        next(epoch)


@pytest.mark.parametrize("workers", [0, 1])
def test_a_batch_that_fails_counts_as_delivered(
    make: Callable[..., StagedLoader], workers: int
) -> None:
    order = [[i] for i in range(12, 16)]
    for dataset, error in ((Failing(16), KeyError), (Stopping(16), RuntimeError)):
        loader = make(dataset, batch_sampler=order, workers=workers)
        epoch = iter(loader)
        next(epoch)
        with pytest.raises(error):
            next(epoch)
        assert loader.state_dict()["delivered"] == 2
        assert [int(batch["more"][0]) for batch in epoch] == [14, 15]


def test_arrays_of_the_other_byte_order_stay_arrays(make: Callable[..., StagedLoader]) -> None:
    pytest.importorskip("torch")
    (batch,) = make(Swapped(2), batch_sampler=[[0, 1]])
    assert batch.dtype == ">f4" and batch.tolist() == [[0.0], [1.0]]


TRAINING = """
import os, sys, time
from loaders.staged_data import Labelled
from monarch_py.loaders.staged.nopfs import UniformSampler
from monarch_py.loaders.samplers.ranks import Ranks
from monarch_py.loaders.staged.loader import StagedLoader
if __name__ == "__main__":
    loader = StagedLoader(Labelled(64), batch_sampler=[[1]] * 64, workers=2, tensors=False,
                          multiprocessing_context=sys.argv[1])
    epoch = iter(loader)
    next(epoch)
    print("reads", flush=True)
    time.sleep(60)
"""


# Without --long, only "fork" is tried, because only a forked process inherits descriptors of its
# parent, and could therefore leave something behind.
@pytest.mark.parametrize("method", cases(["fork", "spawn"], short=["fork"]))
def test_nothing_is_left_when_the_training_is_killed(tmp_path: Path, method: str) -> None:
    program = tmp_path / "training.py"
    program.write_text(TRAINING)
    tests, root = Path(__file__).parents[1], Path(__file__).parents[2]
    with subprocess.Popen(
        [sys.executable, program, method],
        stdout=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": f"{root}:{tests}"},
    ) as training:
        assert training.stdout is not None and training.stdout.readline() == b"reads\n"
        children = psutil.Process(training.pid).children(recursive=True)
        assert len(children) >= 2
        pids = [training.pid, *(child.pid for child in children)]
        maps = "".join(Path(f"/proc/{pid}/maps").read_text() for pid in pids)
        training.kill()
    _, alive = psutil.wait_procs(children, timeout=LIMIT_S)
    assert not alive
    # The batches lie in a memfd, which has no name. All named files of shared memory are gone.
    assert "/memfd:monarch-ring" in maps
    assert not [path for path in re.findall(r"/dev/shm/\S+", maps) if os.path.exists(path)]


def test_workers_end_with_their_loader() -> None:
    loader = StagedLoader(Labelled(8), batch_sampler=batches(8), workers=2)
    next(iter(loader))
    workers = [psutil.Process(worker.pid) for worker in multiprocessing.active_children()]
    assert len(workers) == 2
    del loader
    gc.collect()
    _, alive = psutil.wait_procs(workers, timeout=LIMIT_S)
    assert not alive


class Counting(list[list[int]]):
    """A batch sampler whose state must not be used: the state would count batches that the sampler
    has yielded but that the loader has not yet delivered to the training run."""

    def state_dict(self) -> dict[str, Any]:
        raise AssertionError("its state is of no use")

    load_state_dict = state_dict


@pytest.mark.parametrize("resumes", [True, False])
@pytest.mark.parametrize("workers", [0, 2])
def test_a_state_counts_delivered_batches(
    make: Callable[..., StagedLoader], workers: int, resumes: bool
) -> None:
    def sampler() -> Any:
        return Sampler(40) if resumes else Counting(batches(40))

    whole = [batch["more"][0].tolist() for batch in make(Labelled(40), batch_sampler=sampler())]
    loader = make(Labelled(40), batch_sampler=sampler(), workers=workers)
    epoch = iter(loader)
    for _ in range(3):
        next(epoch)
    state = loader.state_dict()
    other = make(Labelled(40), batch_sampler=sampler(), workers=workers)
    other.load_state_dict(state)
    assert other.state_dict() == state
    rest = iter(other)
    assert next(rest)["more"][0].tolist() == whole[3]
    later = other.state_dict()
    assert later["delivered"] == 4
    assert [batch["more"][0].tolist() for batch in rest] == whole[4:]
    assert other.state_dict()["delivered"] == len(whole)
    if resumes:
        other.set_epoch(1)
        assert other.state_dict()["delivered"] == 0


class Told(list[list[int]]):
    """A batch sampler that has `set_epoch`, but whose epochs cannot be resumed."""

    epoch = 0

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch


@pytest.mark.parametrize("kind", ["resumes", "told", "untold"])
def test_a_state_from_the_end_of_an_epoch_skips_nothing_of_the_next(
    make: Callable[..., StagedLoader], kind: str
) -> None:
    def one() -> StagedLoader:
        samplers = {"resumes": UniformSampler(8, 4, 0, Ranks(0, 1, 1)), "told": Told(batches(8))}
        return make(Labelled(8), batch_sampler=samplers.get(kind, batches(8)), workers=0)

    first, second = one(), one()
    first.set_epoch(1)
    assert len(list(first)) == 2
    state = json.loads(json.dumps(first.state_dict()))
    assert state["delivered"] == 2
    second.load_state_dict(state)
    second.set_epoch(2)
    assert len(list(second)) == 2 and second.state_dict()["delivered"] == 2
    if kind != "untold":
        second.load_state_dict(state)
        assert list(second) == []


def test_an_epoch_that_is_left_early_disturbs_no_other(make: Callable[..., StagedLoader]) -> None:
    loader = make(Labelled(64))
    for _ in range(20):
        first = iter(loader)
        next(first)
        next(first)
    assert [batch["more"][0].tolist() for batch in loader] == batches(64)
    with pytest.raises(StopIteration):
        next(first)


class Numbers(Labelled):
    def __getitem__(self, index: int) -> int:
        return index


def with_names(samples: list[int]) -> Any:
    return [f"{sample:010d}" for sample in samples], np.array(samples)


def test_batches_larger_than_a_pipe_do_not_block_each_other(
    make: Callable[..., StagedLoader],
) -> None:
    """The loader and its worker do not block each other, although tasks and answers are larger than
    a pipe's capacity of about 200 KB."""
    batch = np.random.RandomState(1).randint(1 << 40, size=40_000).tolist()
    loader = make(Numbers(9), batch_sampler=[batch] * 4, collate_fn=with_names, workers=1)
    for names, numbers in loader:
        assert int(names[-1]) == batch[-1] and numbers.tolist() == batch


class Named(Labelled):
    def __getitem__(self, index: Any) -> Any:
        return f"<{index}>"


def as_list(samples: list[Any]) -> Any:
    return samples


def test_large_keys_that_are_no_numbers_do_not_block_each_other(
    make: Callable[..., StagedLoader],
) -> None:
    keys = [f"{number:010d}" for number in range(40_000)]
    loader = make(Named(9), batch_sampler=[keys] * 4, collate_fn=as_list, workers=1)
    with within(4 * LIMIT_S):
        for batch in loader:
            assert batch == [f"<{key}>" for key in keys]


@pytest.mark.parametrize("slots", [1 << 42, 1 << 50])
def test_memory_that_cannot_be_mapped_leaves_other_descriptors(slots: int) -> None:
    with pytest.raises(MonarchError, match="max_batch"):
        Ring(slots, 4096)
    mine = os.open("/dev/null", os.O_RDONLY)
    try:
        gc.collect()
        os.fstat(mine)
    finally:
        os.close(mine)


class Odd(Labelled):
    """A dataset whose samples have keys that are not numbers."""

    def __getitem__(self, index: Any) -> Any:
        return np.array([index == "b", index == (1, 2)])


def test_samples_by_other_keys_than_numbers(make: Callable[..., StagedLoader]) -> None:
    order: Any = [["a", "b"], [(1, 2), "a"]]
    got = [batch.tolist() for batch in make(Odd(4), batch_sampler=order, copy=True)]
    assert got == [[[False, False], [True, False]], [[False, True], [False, False]]]


def test_a_sampler_that_fails_loses_no_slot(make: Callable[..., StagedLoader]) -> None:
    class Broken(Sampler):
        def __iter__(self) -> Iterator[list[int]]:
            yield [1]
            raise ZeroDivisionError

    loader = make(Labelled(4), batch_sampler=Broken(4), workers=1)
    for _ in range(10):
        with pytest.raises(ZeroDivisionError):
            list(loader)
    loader.batch_sampler = [[2]] * 8
    assert [int(batch["more"][0]) for batch in loader] == [2] * 8


def refuse(number: int) -> None:
    raise ValueError(f"worker {number} has no licence")


def test_what_a_worker_cannot_begin_is_raised(make: Callable[..., StagedLoader]) -> None:
    loader = make(Labelled(4), worker_init_fn=refuse, workers=1)
    with pytest.raises(ValueError, match="worker 0 has no licence"):
        list(loader)


def test_a_state_continues_with_another_number_of_ranks(
    tmp_path: Path, make: Callable[..., StagedLoader]
) -> None:
    dataset = Records(tmp_path / "records", [3 + i for i in range(54)])

    def loader_of(rank: int, ranks: int) -> StagedLoader:
        sampler = UniformSampler(54, 8 // ranks, 7, Ranks.found(rank, ranks, 1))
        loader = make(dataset, batch_sampler=sampler, workers=1)
        loader.set_epoch(1)
        return loader

    def lengths(batch: Any) -> list[int]:
        return [len(part) for part in batch]

    whole = [sorted(lengths(batch)) for batch in loader_of(0, 1)]
    assert [len(batch) for batch in whole] == [8] * 6 + [6]
    first = loader_of(0, 2)
    epoch = iter(first)
    for _ in range(3):
        next(epoch)
    state = json.loads(json.dumps(first.state_dict()))
    assert len(json.dumps(state)) < 1000
    for ranks in (1, 2, 3):
        loaders = [loader_of(rank, ranks) for rank in range(ranks)]
        for loader in loaders:
            loader.load_state_dict(state)
        rest = [[lengths(batch) for batch in loader] for loader in loaders]
        steps = [sorted(chain(*step)) for step in zip(*rest, strict=True)]
        assert steps == whole[3:], ranks
        assert loaders[0].state_dict()["delivered"] == 7


def test_workers_draw_differently(make: Callable[..., StagedLoader]) -> None:
    drawn = {
        int(batch[0, 1]): int(batch[0, 0])
        for batch in make(Drawing(8), batch_sampler=[[0]] * 8, workers=2)
    }
    assert len(drawn) == 2 and len(set(drawn.values())) == 2


def test_a_batch_that_is_too_large_is_one_sentence(
    tmp_path: Path, make: Callable[..., StagedLoader]
) -> None:
    with pytest.raises(MonarchError, match="give a larger max_batch"):
        list(make(Records(tmp_path / "records", [9000] * 8), max_batch="8KiB"))
    with pytest.raises(MonarchError, match="give a larger max_batch"):
        list(make(Labelled(1000), batch_sampler=[list(range(1000))], max_batch="8KiB"))


@pytest.mark.parametrize(
    ("settings", "text"),
    [
        ({"workers": -1}, "workers"),
        ({"workers": "many"}, "workers"),
        ({"prefetch": 0}, "prefetch"),
        ({"max_batch": "big"}, "max_batch"),
    ],
)
def test_arguments_that_cannot_work(settings: dict[str, Any], text: str) -> None:
    with pytest.raises(ConfigError, match=text):
        StagedLoader(Labelled(4), batch_sampler=batches(4), **settings)


def test_a_dataset_that_does_not_travel_is_one_sentence(make: Callable[..., StagedLoader]) -> None:
    class Local(Labelled):
        pass

    with pytest.raises(ConfigError, match="multiprocessing_context"):
        iter(make(Local(4), multiprocessing_context="spawn"))


def test_it_is_of_use_only_in_the_process_that_made_it(make: Callable[..., StagedLoader]) -> None:
    loader = make(Labelled(8))
    epoch = iter(loader)
    next(epoch)
    child = os.fork()
    if not child:
        try:
            iter(loader)
        except MonarchError:
            try:
                next(epoch)
            except MonarchError:
                os._exit(0)
        finally:
            os._exit(1)
    assert os.waitpid(child, 0)[1] == 0
    assert len(list(epoch)) == 1


def test_statistics(tmp_path: Path, make: Callable[..., StagedLoader]) -> None:
    loader = make(Records(tmp_path / "records", [100] * 10))
    list(loader)
    found = loader.statistics()
    assert (found["batches"], found["samples"], found["bytes"]) == (3, 10, 1000)
    assert 0 <= found["wait_seconds"] < LIMIT_S and 0 <= found["stalls"] <= 3
    assert found["waiting_seconds"] + found["computing_seconds"] > 0


def test_ctrl_c_ends_the_epoch_and_its_workers(make: Callable[..., StagedLoader]) -> None:
    loader = make(Signalled(64, STOP), batch_sampler=[[13]] * 2)
    signal.signal(signal.SIGALRM, signal.default_int_handler)
    signal.setitimer(signal.ITIMER_REAL, 1.0)
    try:
        with pytest.raises(KeyboardInterrupt):
            list(loader)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
    assert not multiprocessing.active_children()
