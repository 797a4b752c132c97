"""Monarch computes the orders of torch's samplers without torch."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from support.draws import examples

from monarch_py.arrays import pointer
from monarch_py.errors import ConfigError
from monarch_py.native import lib
from monarch_py.plan import Loader
from monarch_py.plan.samplers import (
    DistributedSampler,
    GlobalRandomSampler,
    RandomSampler,
    Sampler,
    SequentialSampler,
    SubsetRandomSampler,
    WeightedRandomSampler,
)
from monarch_py.plan.samplers._pytorch import Mersenne

torch = pytest.importorskip("torch", reason="torch is not installed: pip install '.[torch]'")
data = torch.utils.data

EXAMPLES = settings(max_examples=examples(40), deadline=None, database=None)
lengths = st.integers(1, 400)
seeds = st.integers(-(2**63), 2**63 - 1) | st.integers(0, 99)
epochs = st.integers(1, 4)


def generator(seed: int) -> Any:
    return torch.Generator().manual_seed(seed)


def same(sampler: Sampler, theirs: Any, n_epochs: int) -> None:
    """Asserts that all epochs are equal to those of torch's sampler, both when they are computed in
    sequence and when each is computed on its own."""
    for number, ours in zip(range(n_epochs), sampler.epochs(), strict=False):
        expected = list(theirs)
        assert ours.tolist() == expected
        assert sampler.count == len(theirs)
        assert sampler.epoch(number).tolist() == expected


@EXAMPLES
@given(lengths, st.integers(1, 40), seeds, epochs, st.booleans(), st.booleans())
@example(3, 10, 0, 2, True, False)
@example(400, 7, 2**32 - 1, 3, True, True)
def test_distributed_sampler(
    length: int, ranks: int, seed: int, n_epochs: int, shuffle: bool, drop_last: bool
) -> None:
    seed %= 2**62  # torch uses seed + epoch as a seed, so the sum must be valid too
    if drop_last and length < ranks:
        with pytest.raises(ConfigError, match="length"):
            DistributedSampler(length, ranks, seed, shuffle, drop_last)
        return
    sampler = DistributedSampler(length, ranks, seed, shuffle, drop_last)
    loader = Loader(sampler, ranks, batch_size=3)
    for epoch in range(n_epochs):
        dealt = loader.ranks(epoch)
        for rank in {0, ranks // 2, ranks - 1}:
            theirs = data.distributed.DistributedSampler(
                range(length), ranks, rank, shuffle, seed, drop_last
            )
            theirs.set_epoch(epoch)
            assert dealt[rank].tolist() == list(theirs)


def test_without_set_epoch_all_epochs_are_the_first() -> None:
    sampler = DistributedSampler(50, 4, seed=3, set_epoch=False)
    assert sampler.epoch(7).tolist() == sampler.epoch(0).tolist()
    assert sampler.epoch(0).tolist() == DistributedSampler(50, 4, seed=3).epoch(0).tolist()


@EXAMPLES
@given(lengths, seeds, epochs, st.booleans(), st.none() | st.integers(1, 900))
@example(1, 0, 3, False, None)
@example(100, 0, 3, False, 200)
def test_random_sampler(
    length: int, seed: int, n_epochs: int, replacement: bool, num_samples: int | None
) -> None:
    theirs = data.RandomSampler(range(length), replacement, num_samples, generator(seed))
    same(RandomSampler(length, seed, replacement, num_samples), theirs, n_epochs)


@EXAMPLES
@given(lengths, seeds, epochs, st.data())
def test_subset_random_sampler(length: int, seed: int, n_epochs: int, draw: st.DataObject) -> None:
    subset = draw.draw(st.lists(st.integers(0, length - 1), min_size=1))
    theirs = data.SubsetRandomSampler(subset, generator(seed))
    same(SubsetRandomSampler(length, np.array(subset), seed), theirs, n_epochs)


@EXAMPLES
@given(lengths, seeds, epochs, st.integers(1, 200), st.booleans())
def test_weighted_random_sampler(
    length: int, seed: int, n_epochs: int, num_samples: int, replacement: bool
) -> None:
    weights = np.random.default_rng(seed % 2**32).random(length)
    num_samples = num_samples if replacement else min(num_samples, length)
    theirs = data.WeightedRandomSampler(weights, num_samples, replacement, generator(seed))
    ours = WeightedRandomSampler(length, weights, num_samples, seed, replacement)
    same(ours, theirs, n_epochs)


@pytest.mark.parametrize("high", [2**28 - 1, 2**28, 2**31 - 2])
def test_numbers_with_replacement_take_two_draws_from_large_datasets(high: int) -> None:
    g = generator(5)
    ours = RandomSampler(high, 5, replacement=True, num_samples=70)
    for number in range(2):
        expected = torch.randint(high, (70,), generator=g)
        assert ours.epoch(number).tolist() == expected.tolist()


@given(st.integers(0, 700), seeds)
@example(256, 0)
@example(257, 8)
@EXAMPLES
def test_the_permutation_of_a_large_dataset_in_small(length: int, seed: int) -> None:
    """For the largest datasets, torch uses another algorithm. This test runs Monarch's version of
    that algorithm on a few items, and compares it with a second version, which is written here. The
    long test below compares Monarch's version with torch."""
    expected: list[int] = []
    draws = Mersenne(seed).draw64(length).tolist()
    for item, drawn in enumerate(draws):
        place = drawn % (item + 1)
        expected.append(item)
        expected[item], expected[place] = expected[place], item
    ours = np.empty(length, dtype=np.int32)
    mersenne = Mersenne(seed)
    lib.monarch_torch_randperm(mersenne.handle, 1, pointer(ours), length)
    assert ours.tolist() == expected
    after = Mersenne(seed)
    after.skip(2 * length)
    assert mersenne.draw(3).tolist() == after.draw(3).tolist()


@pytest.mark.long
def test_permutations_take_two_draws_from_large_datasets() -> None:
    for length in ((2**32 - 1) // 20 - 1, (2**32 - 1) // 20):
        expected = torch.randperm(length, generator=generator(8), dtype=torch.int32)
        ours = DistributedSampler(length, 1, seed=8).epoch(0)
        assert np.array_equal(ours, expected.numpy())


# --- behind a DataLoader ------------------------------------------------------------------------


@pytest.mark.parametrize("loader_draws", ["every_epoch", "first_epoch"])
def test_a_loader_draws_from_the_samplers_generator_too(loader_draws: str) -> None:
    persistent = loader_draws == "first_epoch"
    loader = data.DataLoader(
        range(40),
        shuffle=True,
        generator=generator(8),
        num_workers=int(persistent),
        persistent_workers=persistent,
    )
    sampler = RandomSampler(40, 8, loader_draws=loader_draws)
    assert [sampler.epoch(e).tolist() for e in range(3)] == [
        [int(batch[0]) for batch in loader] for _ in range(3)
    ]


@pytest.mark.parametrize("drawn", [0, 1, 623, 624, 1000])
@pytest.mark.parametrize("replacement", [False, True])
def test_the_global_generators_state_gives_one_epoch(drawn: int, replacement: bool) -> None:
    with torch.random.fork_rng():
        torch.manual_seed(11)
        torch.randint(9, (drawn,))
        state = torch.get_rng_state().numpy().tobytes()
        sampler = data.RandomSampler(range(30), replacement)
        expected = [int(batch[0]) for batch in data.DataLoader(range(30), sampler=sampler)]
        torch.set_rng_state(torch.frombuffer(bytearray(state), dtype=torch.uint8))
        alone = list(sampler)
    ours = GlobalRandomSampler(30, state, replacement=replacement)
    assert ours.epoch(0).tolist() == expected
    assert GlobalRandomSampler(30, state, False, replacement).epoch(0).tolist() == alone
    with pytest.raises(ConfigError, match="known for 1 epoch only"):
        ours.epoch(1)


@EXAMPLES
@given(lengths, st.integers(1, 9), st.integers(1, 50), st.booleans(), st.integers(0, 3))
def test_batches_and_workers(
    length: int, ranks: int, batch_size: int, drop_last: bool, workers: int
) -> None:
    sampler = DistributedSampler(length, ranks, seed=1)
    if drop_last and sampler.count // ranks < batch_size:
        with pytest.raises(ConfigError, match="no full batch"):
            Loader(sampler, ranks, batch_size, drop_last)
        return
    loader = Loader(sampler, ranks, batch_size, drop_last, workers=workers)
    theirs = data.distributed.DistributedSampler(range(length), ranks, ranks - 1, seed=1)
    expected = list(data.BatchSampler(theirs, batch_size, drop_last))
    ours = loader.batches(0)[ranks - 1]
    assert [[s for s in batch if s >= 0] for batch in ours.tolist()] == expected


def test_a_sequential_sampler() -> None:
    same(SequentialSampler(20), data.SequentialSampler(range(20)), 2)
