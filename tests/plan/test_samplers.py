"""Samplers that reproduce the orders of NumPy, libstdc++ and tf.data, or read orders from files."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from itertools import islice
from pathlib import Path

import numpy as np
import pytest

from monarch_py.arrays import pointer
from monarch_py.errors import ConfigError
from monarch_py.native import ffi, lib
from monarch_py.plan.samplers import (
    DALIReader,
    DistributedSampler,
    Listed,
    NoPFSSampler,
    NumpySampler,
    Order,
    RandomSampler,
    Recorded,
    Sampler,
    SequentialSampler,
    SubsetRandomSampler,
    TensorFlowShuffle,
    WeightedRandomSampler,
    read_indices,
)
from monarch_py.plan.samplers._pytorch import Mersenne


def hashed(order: Order) -> int:
    """Returns the hash that known.cpp computes."""
    total = 0
    for item in order.tolist():
        total = (total * 1000003 + item) & 0xFFFFFFFFFFFFFFFF
    return total


# --- the generator ------------------------------------------------------------------------------


@pytest.mark.parametrize("drawn", [0, 1, 623, 624, 625, 5000])
def test_the_generator_is_numpys(drawn: int) -> None:
    ours, theirs = Mersenne(20221), np.random.RandomState(20221)
    ours.skip(drawn)
    theirs._bit_generator.random_raw(drawn)
    expected = theirs._bit_generator.random_raw(1000)
    assert ours.draw(1000).tolist() == expected.tolist()


# --- NumPy --------------------------------------------------------------------------------------


@pytest.mark.parametrize("generator", ["RandomState", "default_rng"])
def test_numpy_permutations(generator: str) -> None:
    rng = getattr(np.random, generator)(7)
    sampler = NumpySampler(100, 7, generator)
    for epoch in range(3):
        assert sampler.epoch(epoch).tolist() == rng.permutation(100).tolist()


@pytest.mark.parametrize("generator", ["RandomState", "default_rng"])
def test_numpy_shuffles_go_on_from_the_last_order(generator: str) -> None:
    rng, items = getattr(np.random, generator)(7), np.arange(100)
    sampler = NumpySampler(100, 7, generator, "shuffle")
    for epoch in range(3):
        rng.shuffle(items)
        assert sampler.epoch(epoch).tolist() == items.tolist()


def test_numpy_seeded_anew_each_epoch() -> None:
    sampler = NumpySampler(100, 7, reseed=True)
    for epoch in range(3):
        expected = np.random.default_rng(7 + epoch).permutation(100)
        assert sampler.epoch(epoch).tolist() == expected.tolist()
    items = np.arange(100)
    for epoch in range(3):
        np.random.default_rng(7 + epoch).shuffle(items)
    assert NumpySampler(100, 7, method="shuffle", reseed=True).epoch(2).tolist() == items.tolist()


# --- libstdc++ ----------------------------------------------------------------------------------

# Values from known.cpp, built by g++ 12.2: samples, seed, and the hashes of two epochs. With up to
# 46,340 samples, std::shuffle chooses the places of two samples with one random number.
MINSTD = [
    (1, 1, 0, 0),
    (7, 0, 2552155868584196707, 8844738974881718733),
    (1000, 42, 1555936846353021052, 71349841932895862),
    (1001, 42, 6932139187659002932, 6009250600449338086),
    (46340, 5, 4863715336133729588, 15434253069463886672),
    (46341, 5, 1249395660480445616, 1923291701431056158),
    (70000, -7, 11350994470776943246, 9587524098667554300),
]
MERSENNE = [
    (1000, 524287, 3286935658497800078, 11504155644283178640),
    (1001, 524287, 8972125258137979952, 13374665034632299776),
    (65535, 524287, 11694262918419984507, 11418271112251004993),
    (65536, 1, 6293340403375463038, 6686808043772475080),
    (70000, 1, 10181282301481643540, 4462895357999319032),
]


@pytest.mark.parametrize(("length", "seed", "first", "second"), MINSTD)
def test_the_sampler_of_nopfs(length: int, seed: int, first: int, second: int) -> None:
    sampler = NoPFSSampler(length, seed)
    assert [hashed(order) for order in islice(sampler.epochs(), 2)] == [first, second]


@pytest.mark.parametrize(("length", "seed", "first", "second"), MERSENNE)
def test_shuffle_with_a_mersenne_twister(length: int, seed: int, first: int, second: int) -> None:
    generator, items = Mersenne(seed), np.arange(length, dtype=np.int32)
    for expected in (first, second):
        lib.monarch_mersenne_shuffle(generator.handle, 0, pointer(items), length)
        assert hashed(items) == expected


# --- tf.data ------------------------------------------------------------------------------------

# (samples, buffer, seed, global seed, reshuffled) -> the value of `hashed` for the samples that
# TensorFlow 2.21 delivers in three epochs
SHUFFLES: dict[tuple[int, int, int, int | None, bool], int] = {
    (10, 4, 3, None, True): 8209924663308243243,
    (100, 100, 7, None, False): 13621353452935897956,
    (1000, 64, 2**40 + 5, None, True): 12679571766660889558,
    (50, 1000, -3, None, True): 18270819638605130525,
    (50, 1, 1, None, True): 6444597663343909603,
    (60, 60, 0, 0, True): 11103306456330337298,
    (60, 7, 0, 0, False): 10379250133212060980,
    (61, 20, 12, 5, True): 2510256309103490244,
}

TENSORFLOW = """
import json, sys
import tensorflow as tf
found = []
for length, buffer, seed, given, reshuffle in json.loads(sys.argv[1]):
    if given is not None:
        tf.random.set_seed(given)
    shuffled = tf.data.Dataset.range(length).shuffle(buffer, seed, reshuffle)
    found.append([[int(sample) for sample in shuffled] for _ in range(3)])
print(json.dumps(found))
"""


@pytest.mark.parametrize("arguments", SHUFFLES)
def test_shuffles_of_tf_data(arguments: tuple[int, int, int, int | None, bool]) -> None:
    sampler = TensorFlowShuffle(*arguments)
    assert hashed(np.concatenate([sampler.epoch(e) for e in range(3)])) == SHUFFLES[arguments]


@pytest.mark.long  # TensorFlow takes seconds to load
def test_tf_data_shuffles_as_it_did() -> None:
    pytest.importorskip("tensorflow", reason="tensorflow is not installed: .[tensorflow]")
    done = subprocess.run(
        [sys.executable, "-c", TENSORFLOW, json.dumps(list(SHUFFLES))],
        check=True,
        capture_output=True,
        text=True,
    )
    for arguments, epochs in zip(SHUFFLES, json.loads(done.stdout), strict=True):
        assert hashed(np.concatenate([np.array(e) for e in epochs])) == SHUFFLES[arguments]


def test_philox_gives_the_published_numbers() -> None:
    """The expected numbers are those that the authors of Philox (Random123) have published for
    counter 0 and key 0."""
    out = ffi.new("uint32_t[4]")
    lib.monarch_philox(0, 0, out, 4)
    assert list(out) == [0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8]


# --- read from files ----------------------------------------------------------------------------


def test_a_file_of_indices(tmp_path: Path) -> None:
    rows = np.array([[3, 1, 2], [0, 3, 3]])
    text, binary = tmp_path / "order.txt", tmp_path / "order.npy"
    text.write_text("3\n1\n2\n\n0\n3\n3\n")
    np.save(binary, rows)
    for path in (text, binary):
        listed = Listed(4, read_indices(path))
        assert [order.tolist() for order in listed.epochs()] == rows.tolist()
        assert listed.epoch(1).tolist() == [0, 3, 3]
        with pytest.raises(ConfigError, match="known for 2 epochs only"):
            listed.epoch(2)


def test_one_listed_epoch_is_every_epoch() -> None:
    assert Listed(4, np.array([3, 1])).epoch(9).tolist() == [3, 1]


def test_a_recorded_order_is_that_of_every_epoch() -> None:
    assert Recorded(4, np.array([3, 1, 0])).epoch(5).tolist() == [3, 1, 0]


@pytest.mark.parametrize("content", ["", "1\n2\n\n3\n", "one\n", "1.5\n"])
def test_a_file_that_is_no_file_of_indices(tmp_path: Path, content: str) -> None:
    path = tmp_path / "order.txt"
    path.write_text(content)
    with pytest.raises(ConfigError, match=r"order\.txt: not a file of indices"):
        read_indices(path)


# --- without the libraries ----------------------------------------------------------------------

IMPORTS = """
import sys
from monarch_py.commands import figures
from monarch_py.plan import position, recipe
print(sorted({"torch", "tensorflow", "nvidia", "h5py", "matplotlib"} & set(sys.modules)))
"""


def test_plans_need_none_of_the_libraries() -> None:
    done = subprocess.run(
        [sys.executable, "-c", IMPORTS], check=True, capture_output=True, text=True
    )
    assert done.stdout == "[]\n"


def test_what_only_torch_can_draw_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)
    weights = np.ones(4)
    assert len(WeightedRandomSampler(4, weights, 3, 1).epoch(0)) == 3
    for sampler in (
        WeightedRandomSampler(4, weights, 3, 1, replacement=False),
        WeightedRandomSampler(4, weights, 1, 1),
    ):
        with pytest.raises(ConfigError, match=r"^replacement: .*; install torch here, or"):
            sampler.epoch(0)


# --- all samplers -------------------------------------------------------------------------------

ALL: list[Sampler] = [
    SequentialSampler(50),
    DistributedSampler(50, 4, 1),
    RandomSampler(50, 1, loader_draws="every_epoch"),
    RandomSampler(50, 1, replacement=True, loader_draws="first_epoch"),
    SubsetRandomSampler(50, np.arange(20), 1, "every_epoch"),
    WeightedRandomSampler(50, np.arange(50.0), 30, 1, loader_draws="first_epoch"),
    NumpySampler(50, 1, "RandomState"),
    NumpySampler(50, 1, method="shuffle"),
    NumpySampler(50, 1, method="shuffle", reseed=True),
    NoPFSSampler(50, 1),
    TensorFlowShuffle(50, 20, 1),
    DALIReader(50, 4),
    DALIReader(50, 4, delivered=True, initial_fill=7),
    Listed(50, np.arange(500).reshape(25, 20) % 50),
    Recorded(50, np.arange(40)),
]


@pytest.mark.parametrize("sampler", ALL, ids=lambda sampler: type(sampler).__name__)
def test_every_way_to_an_epoch_gives_the_same(sampler: Sampler) -> None:
    forwards = [order.copy() for order in islice(sampler.epochs(), 20)]
    assert all(len(order) == sampler.count and order.dtype == np.int32 for order in forwards)
    kept = list(islice(sampler.epochs(), 20))
    entered = [sampler.epoch(epoch) for epoch in range(20)]
    later = list(islice(sampler.epochs(3), 17))
    back = [order.copy() for order in sampler.backwards(2, 19)]
    assert np.array_equal(forwards, kept), "an order that is still in use was overwritten"
    assert np.array_equal(forwards, entered)
    assert np.array_equal(forwards[3:], later)
    assert np.array_equal(forwards[2:19], back[::-1])


WRONG: dict[str, list[Callable[[], object]]] = {
    "length": [lambda: SequentialSampler(0), lambda: RandomSampler(2**31, 1)],
    "replicas": [lambda: DistributedSampler(5, 0)],
    "num_samples": [lambda: RandomSampler(5, 1, num_samples=0)],
    "loader_draws": [lambda: RandomSampler(5, 1, loader_draws="often")],
    "indices": [
        lambda: SubsetRandomSampler(5, np.array([5]), 1),
        lambda: SubsetRandomSampler(5, np.array([0.5]), 1),
        lambda: Recorded(5, np.array([[1], [2]])),
    ],
    "weights": [
        lambda: WeightedRandomSampler(2, np.array([1.0, -1.0]), 2, 1),
        lambda: WeightedRandomSampler(2, np.array([1.0, np.nan]), 2, 1),
    ],
    "seed": [lambda: NumpySampler(5, -1)],
    "generator": [lambda: NumpySampler(5, 1, "random")],
    "method": [lambda: NumpySampler(5, 1, method="choice")],
    "buffer_size": [lambda: TensorFlowShuffle(5, 0, 1)],
    "epoch": [lambda: SequentialSampler(5).epoch(-1)],
}


@pytest.mark.parametrize("key", WRONG)
def test_what_cannot_be_is_refused_by_its_key(key: str) -> None:
    for make in WRONG[key]:
        with pytest.raises(ConfigError, match=f"^{key}: [^\n]*; [^\n]*$"):
            make()
