"""The orders in which DALI's readers read and deliver samples."""

from __future__ import annotations

import json
import subprocess
import sys
from itertools import chain, islice
from pathlib import Path
from typing import Any

import pytest
from plan.dali_orders import SAMPLES

from monarch_py.errors import ConfigError
from monarch_py.plan import Loader, Timeline, all_frequencies
from monarch_py.plan.samplers import DALIReader

EPOCHS = 4

# Each case: the reader, the number of shards, the shard that is read, and the reader's own options.
CASES: list[tuple[str, int, int, dict[str, Any]]] = [
    ("file", 1, 0, {"random_shuffle": False}),
    ("file", 3, 2, {"random_shuffle": False}),
    ("file", 3, 1, {"random_shuffle": False, "stick_to_shard": True}),
    ("file", 1, 0, {"random_shuffle": True, "seed": 5, "initial_fill": 4}),
    ("file", 1, 0, {"random_shuffle": True, "seed": 6, "initial_fill": 1024}),
    ("file", 3, 1, {"random_shuffle": True, "seed": 7, "initial_fill": 5}),
    ("file", 3, 2, {"random_shuffle": True, "seed": 8, "initial_fill": 5, "stick_to_shard": True}),
    # A shuffle buffer of one sample delivers samples in the order in which they are read.
    ("file", 2, 1, {"random_shuffle": True, "seed": 9, "initial_fill": 1}),
    ("records", 2, 0, {"random_shuffle": True, "seed": 9, "initial_fill": 1}),
    ("records", 2, 1, {"random_shuffle": True, "seed": 10, "initial_fill": 6}),
]


def ours(reader: str, shards: int, rank: int, options: dict[str, Any]) -> list[list[int]]:
    """Returns the samples of one rank in each epoch."""
    # The seed in `options` is the seed of this rank. The sampler takes the seed of rank 0, and adds
    # `seed_step` for each further rank. So the seed of rank 0 is computed first.
    step = {"seed": options["seed"] - rank, "seed_step": 1} if "seed" in options else {}
    known = {**options, **step, "delivered": True}
    loader = Loader(DALIReader(SAMPLES, shards, reader, **known), shards, 2, split="chunks")
    rows = (rows[:, rank] for rows in map(loader.rows, islice(loader.sampler.epochs(), EPOCHS)))
    return [row[row >= 0].tolist() for row in rows]


def test_it_delivers_what_dali_delivers(tmp_path: Path) -> None:
    pytest.importorskip("nvidia.dali", reason="dali is not installed: nvidia-dali-cuda120")
    expected = [ours(*case) for case in CASES]
    asked = [
        (reader, sum(map(len, epochs)), {**options, "num_shards": shards, "shard_id": rank})
        for (reader, shards, rank, options), epochs in zip(CASES, expected, strict=True)
    ]
    program = Path(__file__).with_name("dali_orders.py")
    done = subprocess.run(
        [sys.executable, "-W", "ignore", program, tmp_path, json.dumps(asked)],
        check=True,
        capture_output=True,
        text=True,
    )
    for case, epochs, theirs in zip(CASES, expected, json.loads(done.stdout), strict=True):
        assert list(chain.from_iterable(epochs)) == theirs, case


def test_what_is_read_does_not_depend_on_the_seed() -> None:
    """A reader reads files in the order of the list, and shuffles only what it has read. So the
    order of the reads is the same for all seeds and in all epochs."""
    one, other = (DALIReader(50, 2, seed=seed, stick_to_shard=True) for seed in (1, 2))
    assert one.epoch(0).tolist() == other.epoch(3).tolist()
    buffer_of_one = DALIReader(50, 2, delivered=True, initial_fill=1, stick_to_shard=True)
    assert one.epoch(0).tolist() == buffer_of_one.epoch(5).tolist()
    assert DALIReader(50, 2, "records").epoch(0).tolist() == list(range(50))


def test_every_sample_once_an_epoch_also_with_shards_of_two_sizes() -> None:
    loader = Loader(DALIReader(SAMPLES, 3), 3, 2, split="chunks")
    frequencies = all_frequencies(Timeline.of(loader, EPOCHS, 3))
    assert frequencies.sum(axis=0).tolist() == [EPOCHS] * SAMPLES


def test_more_shards_than_samples_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"^length: 2 samples are fewer than the 3 shards; "):
        DALIReader(2, 3)
    with pytest.raises(ConfigError, match=r"^reader: "):
        DALIReader(2, 1, "webdataset")
