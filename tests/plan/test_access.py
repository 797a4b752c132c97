"""Frequencies, first and next uses, and holders of samples, computed from the order of accesses.

The tests compare the results with plain loops over short orders, and with published numbers of
NoPFS."""

from __future__ import annotations

import tracemalloc
from collections import Counter
from collections.abc import Callable
from fractions import Fraction
from math import ceil
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.draws import examples

from monarch_py.errors import ConfigError
from monarch_py.plan import (
    NEVER,
    Loader,
    Timeline,
    all_frequencies,
    analyse,
    find_holders,
    next_uses,
)
from monarch_py.plan.access import spread
from monarch_py.plan.binomial import distribution
from monarch_py.plan.holders import NOBODY
from monarch_py.plan.loader import HELD_SPLITS, PLAIN_SPLITS
from monarch_py.plan.samplers import (
    DistributedSampler,
    Listed,
    NumpySampler,
    RandomSampler,
    SequentialSampler,
)
from monarch_py.plan.timeline import Part, lookup_of


def by_hand(timeline: Timeline, node: int) -> list[tuple[int, int]]:
    """Returns (position, unit) of every access of a node, found by a loop over its ranks."""
    found, start = [], 0
    for epoch in range(timeline.epochs):
        for part in timeline.parts:
            if (epoch + 1) % part.every:
                continue
            ranks = part.loader.ranks(part.number(epoch))
            per_node = len(ranks) // timeline.nodes
            own = ranks[node * per_node : (node + 1) * per_node]
            for i in range(ranks.shape[1]):
                for rank in range(per_node):
                    sample = own[rank, i]
                    if sample >= 0:
                        unit = sample if part.lookup is None else part.lookup[sample]
                        found.append((start + i * per_node + rank, int(unit)))
            start += ranks.size // timeline.nodes
    return found


@st.composite
def timelines(draw: st.DrawFn) -> Timeline:
    """Draws timelines: with any split, with or without replacement, with or without validation."""
    length, nodes = draw(st.integers(4, 60)), draw(st.integers(1, 5))
    ranks, batch = nodes * draw(st.integers(1, 3)), draw(st.integers(1, 3))
    sampler = RandomSampler(length, draw(st.integers(0, 9)), draw(st.booleans()))
    split = draw(st.sampled_from((*PLAIN_SPLITS, *HELD_SPLITS)))
    holders = np.random.default_rng(length).integers(-1, nodes, length).astype(np.int32)
    held: dict[str, Any] = {"nodes": nodes, "holders": holders} if split in HELD_SPLITS else {}
    parts = [Part("training", Loader(sampler, ranks, batch, split=split, **held))]
    units = length
    if draw(st.booleans()):
        seen = SequentialSampler(draw(st.integers(1, 20)))
        files = np.arange(seen.length, dtype=np.int32) // 3
        loader = Loader(seen, ranks, batch)
        every = draw(st.integers(1, 3))
        parts.append(Part("validation", loader, every, lookup_of(files, length)))
        units += int(files[-1]) + 1
    return Timeline(tuple(parts), draw(st.integers(1, 5)), nodes, units)


@settings(max_examples=examples(40), deadline=None, database=None)
@given(timelines(), st.data())
def test_frequencies_first_and_next_uses(timeline: Timeline, draw: st.DataObject) -> None:
    node = draw.draw(st.integers(0, timeline.nodes - 1))
    accesses = by_hand(timeline, node)
    found = analyse(timeline, node)
    counts = Counter(unit for _, unit in accesses)
    assert found.frequency.tolist() == [counts[u] for u in range(timeline.units)]
    first = {unit: position for position, unit in reversed(accesses)}
    assert found.first_use.tolist() == [first.get(u, NEVER) for u in range(timeline.units)]
    following = {}
    later: dict[int, int] = {}
    for position, unit in reversed(accesses):
        following[position] = later.get(unit, NEVER)
        later[unit] = position
    told = {}
    for section, positions in next_uses(timeline, node):
        own = section.node(node)
        for i in np.flatnonzero(own >= 0).tolist():
            told[section.start + i] = int(positions[i])
    assert told == following


@settings(max_examples=examples(40), deadline=None, database=None)
@given(timelines(), st.integers(1, 3), st.sampled_from([1, 2, 5, 32]))
def test_holders(timeline: Timeline, top: int, slot_bytes: int) -> None:
    """`find_holders` returns the nodes that use a unit most often.

    Of two nodes that use a unit equally often, the node with the earlier first use comes first. A
    small `slot_bytes` limits the memory of `find_holders`, which then passes over the timeline
    several times. The result must be the same."""
    frequencies = all_frequencies(timeline)
    found = find_holders(timeline, top, slot_bytes=slot_bytes)
    first = np.array([analyse(timeline, n).first_use for n in range(timeline.nodes)])
    per_node = timeline.ranks_per_node
    for unit in range(timeline.units):
        users = [n for n in range(timeline.nodes) if frequencies[n, unit]]
        # Of two nodes that use a unit equally often, the one with the earlier first access goes
        # first. Accesses are ordered by row, and then by rank.
        users.sort(
            key=lambda n: (
                -int(frequencies[n, unit]),
                int(first[n, unit]) // per_node,
                n * per_node + int(first[n, unit]) % per_node,
            )
        )
        expected = (users + [NOBODY] * top)[:top]
        assert found.nodes[unit].tolist() == expected
        assert found.counts[unit].tolist() == [
            int(frequencies[n, unit]) if n != NOBODY else 0 for n in expected
        ]


def test_three_epochs_by_hand() -> None:
    """Two nodes read six files in three epochs. Each row of `rows` is the order of an epoch. Node 0
    reads the places 0, 2 and 4 of a row, and node 1 reads the other places."""
    rows = np.array([[0, 1, 2, 3, 4, 5], [5, 4, 3, 2, 1, 0], [0, 5, 3, 1, 4, 2]])
    timeline = Timeline.of(Loader(Listed(6, rows), 2, 1), epochs=3, nodes=2)
    found = analyse(timeline, 0)
    assert found.frequency.tolist() == [2, 1, 1, 2, 2, 1]
    assert found.first_use.tolist() == [0, 5, 1, 4, 2, 3]
    assert find_holders(timeline).nodes[:, 0].tolist() == [0, 1, 1, 0, 0, 1]
    told = {section.epoch: positions.tolist() for section, positions in next_uses(timeline, 0)}
    assert told == {0: [6, NEVER, 8], 1: [NEVER, 7, NEVER], 2: [NEVER, NEVER, NEVER]}


def test_files_of_many_samples_are_accessed_alike() -> None:
    sampler = DistributedSampler(4000, 4)
    shards = lookup_of(np.arange(4000, dtype=np.int32) // 400)
    fine = Timeline.of(Loader(sampler, 4, 10), 10, 4)
    coarse = Timeline((Part("training", Loader(sampler, 4, 10), lookup=shards),), 10, 4, 10)
    assert spread(analyse(fine, 0).frequency) > 0.4
    assert spread(analyse(coarse, 0).frequency) < 0.05
    assert spread(np.zeros(3, dtype=np.uint32)) == 0.0


# --- timelines that begin in a later epoch or batch; refused arguments --------------------------


def test_a_timeline_can_be_entered_anywhere() -> None:
    validation = Part("validation", Loader(SequentialSampler(10), 2, 2), every=2)
    training = Part("training", Loader(NumpySampler(24, 3, method="shuffle"), 2, 4))
    timeline = Timeline((training, validation), 5, 2, 24)
    all_sections = list(timeline.sections())
    assert [(s.epoch, s.part.name) for s in all_sections if s.epoch in (1, 2)] == [
        (1, "training"),
        (1, "validation"),
        (2, "training"),
    ]
    entered = list(timeline.sections(epoch=3))
    for one, other in zip(all_sections[-len(entered) :], entered, strict=True):
        assert (one.start, one.epoch) == (other.start, other.epoch)
        assert np.array_equal(one.rows, other.rows)
    position = timeline.position(2, 1)
    late = analyse(timeline, 1, epoch=2, batch=1)
    accesses = [(p, unit) for p, unit in by_hand(timeline, 1) if p >= position]
    counts = Counter(unit for _, unit in accesses)
    assert late.frequency.tolist() == [counts[u] for u in range(24)]
    assert late.first_use.min() == position
    section = timeline.section(3, "validation")
    assert timeline.position(3, 1, "validation") == section.start + 2
    *_, last = timeline.sections()
    assert last.start + last.node(0).size == 5 * 12 + 2 * 5
    for epoch, part, message in (
        (5, None, "epoch: there is no epoch 5; the plan has epochs 0 to 4"),
        (2, "validation", "epoch: no part 'validation' runs in epoch 2; choose another one"),
    ):
        for ask in (timeline.section, lambda *where: timeline.position(where[0], 0, where[1])):
            with pytest.raises(ConfigError, match=f"^{message}$"):
                ask(epoch, part)
    said = "batch: there is no batch 3; an epoch of 'validation' has batches 0 to 2"
    with pytest.raises(ConfigError, match=f"^{said}$"):
        timeline.position(3, 3, "validation")
    longer = Timeline((training, validation), 9, 1, 24)
    assert np.array_equal(longer.section(4).rows, timeline.section(4).rows)


@pytest.mark.parametrize(
    ("key", "change"),
    [
        ("epochs", {"epochs": 0}),
        ("nodes", {"nodes": 0}),
        ("world_size", {"nodes": 3}),
        ("parts", {"parts": ()}),
    ],
)
def test_numbers_that_do_not_fit(key: str, change: dict[str, object]) -> None:
    part = Part("training", Loader(SequentialSampler(8), 2, 2))
    fields: dict[str, object] = {"parts": (part,), "epochs": 1, "nodes": 1, "units": 8, **change}
    with pytest.raises(ConfigError, match=f"^{key}: [^\n]*; [^\n]*$"):
        Timeline(**fields)  # type: ignore[arg-type]


def test_more_epochs_than_are_known_are_refused() -> None:
    listed = Loader(Listed(4, np.array([[0, 1], [1, 2]])), 1, 1)
    with pytest.raises(ConfigError, match="known for 2 epochs only"):
        Timeline.of(listed, 3, 1)


def peak_bytes(work: Callable[[Timeline], object], epochs: int) -> int:
    timeline = Timeline.of(Loader(DistributedSampler(50_000, 8), 8, 10), epochs, 8)
    tracemalloc.start()
    work(timeline)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    return peak


WORK: dict[str, Callable[[Timeline], object]] = {
    "a node's plan": lambda timeline: analyse(timeline, 0),
    "next uses": lambda timeline: [len(following) for _, following in next_uses(timeline, 0)],
    "holders": lambda timeline: find_holders(timeline, slot_bytes=8),
    "all frequencies": all_frequencies,
}


@pytest.mark.parametrize("what", WORK)
def test_memory_does_not_grow_with_epochs(what: str) -> None:
    few, many = peak_bytes(WORK[what], 8), peak_bytes(WORK[what], 40)
    assert few > 50_000
    assert many < 1.1 * few


# --- published numbers --------------------------------------------------------------------------


# The ImageNet-1k case of figure 3 of the NoPFS paper.
SAMPLES, EPOCHS, NODES = 1_281_167, 90, 16


def test_nopfs_figure_3() -> None:
    """The expected number of samples that a node accesses often (more than 1.8 times as often as
    the mean) is 31,635."""
    more = distribution(EPOCHS, NODES)[int(1.8 * EPOCHS / NODES) + 1 :]
    assert round(SAMPLES * more.sum()) == 31_635


def often_on_a_node(samples: int) -> int:
    """Returns the number of samples that node 0 accesses often: more than 1.8 times as often as
    the mean."""
    loader = Loader(NumpySampler(samples, 42, method="shuffle"), NODES, 32)
    frequency = analyse(Timeline.of(loader, EPOCHS, NODES), 0).frequency
    return int(np.count_nonzero(frequency > 1.8 * EPOCHS / NODES))


def test_a_part_of_nopfs_figure_3() -> None:
    """The NoPFS paper expects that a node accesses 31,635 of all samples often (as defined in
    `often_on_a_node`). This test uses a hundredth of the samples, and so expects a hundredth of
    this number. The counted number may differ from it by 5 standard deviations."""
    samples = SAMPLES // 100
    expected = 31_635 / SAMPLES * samples
    assert abs(often_on_a_node(samples) - expected) <= 5 * expected**0.5


@pytest.mark.long  # `test_a_part_of_nopfs_figure_3` does the same with fewer samples
def test_nopfs_figure_3_with_numpys_generator() -> None:
    """With NumPy's generator and seed 42, the number of samples that a node accesses often (more
    than 1.8 times as often as the mean) is 31,863."""
    assert often_on_a_node(SAMPLES) == 31_863


def test_frequencies_follow_the_distribution() -> None:
    samples, epochs, nodes = 20_000, 30, 8
    loader = Loader(DistributedSampler(samples, nodes), nodes, 32)
    frequency = analyse(Timeline.of(loader, epochs, nodes), 3).frequency
    expected = samples * distribution(epochs, nodes)
    assert expected.sum() == pytest.approx(samples)
    seen = np.bincount(frequency, minlength=epochs + 1)
    assert (np.abs(seen - expected) <= 5 * np.sqrt(expected) + 5).all()
    assert distribution(5, 1).tolist() == [0, 0, 0, 0, 0, 1]


def lemma_1(epochs: int, nodes: int, delta: Fraction) -> int:
    """Returns a bound (NoPFS, section 3.1, Lemma 1) on the number of accesses to a sample by the
    node that accesses the sample least often.

    There are E epochs and N nodes. If one node accesses a sample ceil((1 + delta) E / N) times, the
    other N - 1 nodes share the remaining accesses. So one of them accesses the sample at most
    ceil((N - 1 - delta) / (N - 1) E / N) times."""
    return max(0, ceil((nodes - 1 - delta) / (nodes - 1) * Fraction(epochs, nodes)))


@pytest.mark.parametrize(("epochs", "nodes"), [(10, 2), (90, 16), (40, 5)])
def test_lemma_1_bounds_every_sample(epochs: int, nodes: int) -> None:
    """For every sample, the node that accesses the sample least often does so at most as often as
    `lemma_1` allows."""
    loader = Loader(DistributedSampler(3000, nodes), nodes, 4)
    frequencies = all_frequencies(Timeline.of(loader, epochs, nodes))[:, : 3000 // nodes * nodes]
    for most, least in zip(frequencies.max(axis=0), frequencies.min(axis=0), strict=True):
        bound = lemma_1(epochs, nodes, Fraction(int(most) * nodes, epochs) - 1)
        assert least <= bound
        # With only two nodes, the lemma gives the exact value, not only an upper bound.
        assert nodes > 2 or least == bound
