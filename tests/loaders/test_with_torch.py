"""Tests the samplers as users' programs use them: with DataLoader or StatefulDataLoader, or in a
wrong way."""

from __future__ import annotations

import itertools
import weakref
from importlib.util import find_spec
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from support import draws
from torch.utils.data import DataLoader, Dataset, DistributedSampler
from torch.utils.data.dataloader import _BaseDataLoaderIter

from monarch_py.errors import ConfigError
from monarch_py.loaders.samplers.collate import AllowEmpty
from monarch_py.loaders.samplers.keyed import keyed
from monarch_py.loaders.samplers.local_first import LocalFirstSampler
from monarch_py.loaders.samplers.ranks import LAUNCHERS
from monarch_py.loaders.samplers.sampler import ScheduledSampler
from monarch_py.loaders.samplers.solar import SolarSampler
from monarch_py.loaders.staged.loader import StagedLoader

# Torch warns if there are few cores. It also warns because torchdata calls a function that torch
# 2.13 deprecates.
pytestmark = [
    pytest.mark.filterwarnings("ignore:This DataLoader will create"),
    pytest.mark.filterwarnings("ignore:'set_vital' is deprecated"),
]

LENGTH = 103
KINDS = [LocalFirstSampler, SolarSampler]


class Numbers(Dataset[int]):
    sizes = np.ones(LENGTH, dtype=np.int64)

    def __len__(self) -> int:
        return LENGTH

    def __getitem__(self, at: int) -> int:
        return at


def sampler_of(kind: type[Any], rank: int = 0, **more: Any) -> ScheduledSampler:
    made: ScheduledSampler = kind(
        Numbers(), 4, rank=rank, world_size=2, ranks_per_node=1, quota=40, **more
    )
    return made


def lists(batches: Any) -> list[list[int]]:
    return [batch.tolist() for batch in batches]


def ended(running: Any) -> None:
    """Consumes the remaining batches, so that the workers' queues are closed properly."""
    for _ in running:
        pass


WORKERS: list[dict[str, Any]] = [
    {},
    {"num_workers": 2, "persistent_workers": True, "multiprocessing_context": "fork"},
    {"num_workers": 1, "persistent_workers": True, "multiprocessing_context": "spawn"},
]


# Without --long, "spawn" is left out. The start method of the workers does not matter, because the
# sampler runs in the process that trains, and the workers get only the samples' numbers.
@pytest.mark.parametrize(
    "workers", draws.cases(WORKERS, short=WORKERS[:2]), ids=["none", "fork", "spawn"]
)
def test_a_data_loader_delivers_the_samplers_batches(workers: dict[str, Any]) -> None:
    sampler = sampler_of(SolarSampler)
    loader = DataLoader(Numbers(), batch_sampler=sampler, **workers)
    assert len(loader) == 13
    for epoch in range(2):
        sampler.set_epoch(epoch)
        got = lists(loader)
        want = sampler_of(SolarSampler)
        want.set_epoch(epoch)
        assert got == list(want)


@pytest.mark.parametrize("kind", KINDS)
def test_a_plain_data_loader_goes_on_after_what_was_delivered(kind: type[Any]) -> None:
    """A training run resumes after the last delivered batch, although the DataLoader has already
    taken more batches from the sampler for its workers."""
    sampler = sampler_of(kind)
    loader = DataLoader(
        Numbers(), batch_sampler=sampler, num_workers=2, multiprocessing_context="fork"
    )
    running = iter(loader)
    batches = lists(itertools.islice(running, 5))
    assert sampler.state_dict()["done"] > 5
    state = sampler.state_dict(done=5)
    ended(running)
    resumed = sampler_of(kind)
    resumed.load_state_dict(state)
    rest = lists(DataLoader(Numbers(), batch_sampler=resumed))
    assert batches + rest == list(sampler_of(kind))


if find_spec("torchdata"):

    @pytest.mark.parametrize("workers", [0, 2])
    @pytest.mark.parametrize("kind", KINDS)
    def test_a_stateful_data_loader_keeps_account_itself(kind: type[Any], workers: int) -> None:
        from torchdata.stateful_dataloader import StatefulDataLoader

        def loader() -> Any:
            how = {"multiprocessing_context": "fork"} if workers else {}
            return StatefulDataLoader(
                Numbers(), batch_sampler=sampler_of(kind), num_workers=workers, **how
            )

        first = loader()
        running = iter(first)
        batches = lists(itertools.islice(running, 5))
        state = first.state_dict()
        ended(running)
        resumed = loader()
        resumed.load_state_dict(state)
        assert batches + lists(resumed) == list(sampler_of(kind))


# --- misuse -------------------------------------------------------------------------------------


def test_objects_of_the_caller_are_not_kept() -> None:
    sampler, mine = sampler_of(LocalFirstSampler), Numbers()
    gone = weakref.ref(mine)
    assert len(list(sampler)) == len(sampler)
    del mine
    assert gone() is None


def test_batches_out_of_order_are_refused() -> None:
    loader = DataLoader(
        Numbers(), batch_sampler=sampler_of(LocalFirstSampler), num_workers=1, in_order=False
    )
    # _BaseDataLoaderIter starts no workers, so the test need not wait for their end.
    iterator: Any = _BaseDataLoaderIter(loader)
    with pytest.raises(ConfigError, match=r"^in_order: with in_order=False"):
        iterator._next_index()


@pytest.mark.parametrize("workers", [0, 2])
def test_a_dataset_of_another_length_than_the_samplers_is_refused(workers: int) -> None:
    said = r"^files: the sampler has 103 samples, and the loader's dataset has 90"
    shorter: Any = list(range(90))
    sampler: Any = sampler_of(SolarSampler)
    # _BaseDataLoaderIter starts no worker processes, even if num_workers is 2. If it did, torch's
    # threads for the workers would run for a while after the error.
    iterator: Any = _BaseDataLoaderIter(
        DataLoader(shorter, batch_sampler=sampler, num_workers=workers)
    )
    with pytest.raises(ConfigError, match=said):
        iterator._next_index()
    with pytest.raises(ConfigError, match=said):
        StagedLoader(shorter, batch_sampler=sampler, workers=workers)
    with pytest.raises(ConfigError, match=said):
        sampler.keep(shorter)


def test_a_distributed_sampler_around_a_sampler_is_refused() -> None:
    with pytest.raises(ConfigError, match="and DistributedSampler would deal them"):
        DistributedSampler(sampler_of(LocalFirstSampler), 2, 0)  # type: ignore[arg-type]


def test_a_sampler_in_the_place_of_the_files_is_refused() -> None:
    """A sampler that is passed as `files` is refused. Lightning makes this mistake: it makes a new
    batch sampler of the same class, and passes its own sampler as the first argument."""
    injected: Any = DistributedSampler(Numbers(), 2, 0)
    ours: Any = sampler_of(LocalFirstSampler)
    with pytest.raises(ConfigError, match="use_distributed_sampler=False"):
        type(ours)(injected, batch_size=ours.batch_size, drop_last=ours.drop_last)
    with pytest.raises(ConfigError, match=r"^files: got a RandomSampler"):
        SolarSampler(torch.utils.data.RandomSampler(Numbers()), quota=1)


if find_spec("accelerate"):

    def test_accelerates_shards_are_refused() -> None:
        from accelerate.data_loader import prepare_data_loader

        loader = DataLoader(Numbers(), batch_sampler=sampler_of(LocalFirstSampler))
        prepared = prepare_data_loader(loader, num_processes=2, process_index=0)
        with pytest.raises(ConfigError, match=r"do not pass this loader to accelerator\.prepare"):
            next(iter(prepared))

    def test_accelerate_with_one_process_leaves_batches_alone() -> None:
        from accelerate.data_loader import prepare_data_loader

        loader = DataLoader(Numbers(), batch_sampler=sampler_of(LocalFirstSampler))
        prepared = prepare_data_loader(loader, num_processes=1, process_index=0)
        assert lists(prepared) == list(sampler_of(LocalFirstSampler))


def test_batch_norm_over_one_ranks_batch_is_refused() -> None:
    sampler = sampler_of(SolarSampler)
    assert isinstance(sampler, SolarSampler)
    model = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.BatchNorm1d(2))
    with pytest.raises(ConfigError, match=r"^model: 1 is a BatchNorm1d"):
        sampler.check(model)
    synchronised: Any = torch.nn.SyncBatchNorm
    sampler.check(synchronised.convert_sync_batchnorm(model))


# --- what works with unequal batches ------------------------------------------------------------


def test_an_empty_batch_has_the_form_of_the_others() -> None:
    example = {"x": torch.ones(3), "pair": (1.5, np.ones((2, 2))), "name": "a"}
    batch = AllowEmpty(example)([])
    assert batch["x"].shape == (0, 3)
    assert [tuple(part.shape) for part in batch["pair"]] == [(0,), (0, 2, 2)]
    assert batch["name"] == []
    assert AllowEmpty(example)([example, example])["x"].shape == (2, 3)
    assert AllowEmpty(7, collate=list)([]) == []
    nested = AllowEmpty(((torch.ones(3), "a"), {"label": 1}, ["b", torch.ones(2)]))([])
    (x, name), label, (other, y) = nested
    assert (x.shape, name, label["label"].shape) == ((0, 3), (), (0,))
    assert (other, y.shape) == ((), (0, 2))

    def own(samples: list[Any]) -> Any:
        return torch.ones(len(samples), 3), [str(sample) for sample in samples], "constant", 7

    x, names, *rest = AllowEmpty(7, collate=own)([])
    assert (x.shape, names, rest) == ((0, 3), [], ["constant", 7])


def test_a_keyed_generator_depends_on_seed_epoch_and_sample_alone() -> None:
    numbers = {
        key: keyed(*key).random() for key in itertools.product((-1, 3), (0, 1), (0, 1, 2**31))
    }
    assert len(set(numbers.values())) == len(numbers)
    assert keyed(3, 1, 2**31).random() == numbers[3, 1, 2**31]
    of_numpy: Any = np.array([3, 1, 2**31], dtype=np.uint32)
    assert keyed(*of_numpy).random() == numbers[3, 1, 2**31]
    for wrong in ((0, -1, 0), (0, 2**32, 0), (0, 0, -1), (0, 0, 2**32)):
        with pytest.raises(ConfigError, match=r"out of range; give 0 or more, below 2\*\*32"):
            keyed(*wrong)


def test_ranks_are_those_of_the_process_group_or_the_launcher(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    files = SimpleNamespace(sizes=np.ones(100, dtype=np.int64))
    for name in itertools.chain.from_iterable(LAUNCHERS.items()):
        monkeypatch.delenv(name, raising=False)
    # Slurm sets SLURM_NTASKS in a batch script too, although the script is a single process
    monkeypatch.setenv("SLURM_NTASKS", "4")
    assert LocalFirstSampler(files, quota=100).ranks.world_size == 1
    for name in LAUNCHERS:
        monkeypatch.setenv(name, "4")
        with pytest.raises(ConfigError, match=f"{name} .*init_process_group first"):
            LocalFirstSampler(files, quota=100)
        monkeypatch.delenv(name)
    # Slurm has launched one task, which has started four ranks itself.
    monkeypatch.setenv("SLURM_STEP_NUM_TASKS", "1")
    monkeypatch.setenv("SLURM_NTASKS_PER_NODE", "1")
    with pytest.raises(ConfigError, match="give ranks_per_node"):
        LocalFirstSampler(files, quota=100, rank=1, world_size=4)
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "2")
    monkeypatch.setenv("WORLD_SIZE", "4")
    ranks = LocalFirstSampler(files, quota=100, rank=3, world_size=4).ranks
    assert (ranks.nodes, ranks.node) == (2, 1)
