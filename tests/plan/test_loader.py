"""How orders are dealt to ranks, compared with loops that follow the definition of each split."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.draws import examples

from monarch_py.errors import ConfigError
from monarch_py.plan import Loader
from monarch_py.plan.loader import PLAIN_SPLITS
from monarch_py.plan.samplers import DALIReader, DistributedSampler, NumpySampler, SequentialSampler


def dealt(order: list[int], split: str, rank: int, ranks: int, batch: int) -> list[int]:
    """Returns the samples that a rank gets, by the definition of the split."""
    if split == "strided":
        return order[rank::ranks]
    if split == "chunks":
        return order[len(order) * rank // ranks : len(order) * (rank + 1) // ranks]
    if split == "replicated":
        return order
    found = []
    for start in range(0, len(order), batch * ranks):
        found += order[start + rank * batch : start + (rank + 1) * batch]
    return found


@settings(max_examples=examples(80), deadline=None, database=None)
@given(
    st.integers(1, 80),
    st.integers(1, 9),
    st.integers(1, 12),
    st.booleans(),
    st.sampled_from(PLAIN_SPLITS),
)
def test_every_split(length: int, ranks: int, batch: int, drop_last: bool, split: str) -> None:
    sampler = NumpySampler(length, 3)
    order = sampler.epoch(1).tolist()
    expected = [dealt(order, split, rank, ranks, batch) for rank in range(ranks)]
    if drop_last:
        expected = [own[: len(own) // batch * batch] for own in expected]
    if not any(expected):
        with pytest.raises(ConfigError, match=r"^batch_size: .* leaves no full batch"):
            Loader(sampler, ranks, batch, drop_last, split)
        return
    loader = Loader(sampler, ranks, batch, drop_last, split)
    found = loader.ranks(1)
    assert found.shape == (ranks, max(map(len, expected))) == (ranks, loader.per_rank)
    for rank in range(ranks):
        own = found[rank].tolist()
        assert own[: len(expected[rank])] == expected[rank]
        assert set(own[len(expected[rank]) :]) <= {-1}
    batches = loader.batches(1)
    assert batches.shape == (ranks, loader.steps, batch)
    assert batches.reshape(ranks, -1)[:, : found.shape[1]].tolist() == found.tolist()


@pytest.mark.parametrize(
    ("key", "change"),
    [
        ("world_size", {"world_size": 0}),
        ("batch_size", {"batch_size": 0}),
        ("workers", {"workers": -1}),
        ("prefetch_factor", {"prefetch_factor": 0}),
        ("split", {"split": "evenly"}),
        ("replicas", {"sampler": DistributedSampler(9, 2)}),
        ("split", {"sampler": DistributedSampler(9, 3), "split": "chunks"}),
        ("shards", {"sampler": DALIReader(9, 2), "split": "chunks"}),
        ("split", {"sampler": DALIReader(9, 3)}),
    ],
)
def test_what_does_not_fit_is_refused_by_its_key(key: str, change: dict[str, object]) -> None:
    fields = {"sampler": SequentialSampler(9), "world_size": 3, "batch_size": 1, **change}
    with pytest.raises(ConfigError, match=f"^{key}: [^\n]*; [^\n]*$"):
        Loader(**fields)  # type: ignore[arg-type]
