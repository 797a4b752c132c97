"""Tests scenario files: which keys are accepted, and that each error message names the wrong key
and is one sentence long."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

from monarch_py.errors import ConfigError
from monarch_py.simulator.keys import load_scenario, shipped_scenarios
from monarch_py.simulator.scenario import Dataset, Scenario, SizeDistribution, least_share
from monarch_py.util.units import GIB, MIB

# The example scenario, as a user writes it.
EXAMPLE = """\
nodes: 4
ranks_per_node: 1
epochs: 5
batch_per_rank: 32
drop_last: true
seed: 42
dataset: {files: 50000, size: {mean: 0.76KiB, std: 0, min: 0.76KiB}}
rates: {compute: 64MiB/s, preprocess: 200MiB/s, network: 24000MiB/s}
pfs: {1: 330MiB/s, 2: 730MiB/s, 4: 1540MiB/s, 8: 2870MiB/s}
classes:
  - {name: staging, capacity: 5GiB, threads: 8, read: {8: 111000MiB/s}}
  - {name: ram, capacity: 120GiB, threads: 4, read: {4: 85000MiB/s}}
  - {name: ssd, capacity: 900GiB, threads: 2, read: {2: 4000MiB/s}}
"""
Write = Callable[..., Path]


@pytest.fixture
def write(tmp_path: Path) -> Write:
    """Returns the function write(key=value, ...). It writes the example with the given values. A
    key with the value None is left out."""

    def file(**changes: Any) -> Path:
        keys = {**yaml.safe_load(EXAMPLE), **changes}
        path = tmp_path / "scenario.yaml"
        path.write_text(yaml.safe_dump({k: v for k, v in keys.items() if v is not None}))
        return path

    return file


def test_the_example(tmp_path: Path) -> None:
    path = tmp_path / "mnist.yaml"
    path.write_text(EXAMPLE)
    scenario = load_scenario(path)
    assert scenario.name == "mnist"
    assert (scenario.world_size, scenario.global_batch, scenario.batches_per_epoch) == (4, 128, 390)
    assert scenario.staging.read.total(scenario.staging.threads) == 111_000 * MIB
    assert [storage.name for storage in scenario.classes[1:]] == ["ram", "ssd"]
    assert scenario.rates.pfs_link == scenario.rates.network == 24_000 * MIB
    assert scenario.capacities().tolist() == [[5 * GIB, 120 * GIB, 900 * GIB]] * 4
    assert set(scenario.sizes().tolist()) == {778}
    assert not scenario.overrides and scenario.checkpoint is None


def test_nodes_may_differ(write: Write) -> None:
    scenario = load_scenario(
        write(
            overrides=[
                {"nodes": [1, 3], "ranks": 2, "capacity": {"ram": "1GiB"}},
                {"nodes": [0], "network": "1GiB/s", "compute": "10MiB/s"},
            ],
            checkpoint={"every": 100, "size": "1GiB"},
            batch=24,
            batch_per_rank=None,
        )
    )
    assert scenario.ranks().tolist() == [1, 2, 1, 2]
    assert (scenario.world_size, scenario.batch_per_rank) == (6, 4)
    assert scenario.capacities()[:, 1].tolist() == [120 * GIB, GIB, 120 * GIB, GIB]
    rates = scenario.rates_of_nodes()
    assert rates["network"].tolist() == [GIB, *[24_000 * MIB] * 3]
    assert rates["compute"].tolist() == [10 * MIB, *[64 * MIB] * 3]
    assert scenario.checkpoint is not None and scenario.checkpoint.size_bytes == GIB


def test_a_world_size_in_place_of_ranks_per_node(write: Write) -> None:
    assert load_scenario(write(ranks_per_node=None, world_size=12)).ranks_per_node == 3


def test_a_short_last_batch(write: Write) -> None:
    assert load_scenario(write(drop_last=False)).batches_per_epoch == 391


REFUSED: list[tuple[str, dict[str, Any], str]] = [
    ("no nodes", {"nodes": None}, "nodes: is missing; add 'nodes"),
    ("no epochs", {"epochs": 0}, "epochs: 0 is out of range; write"),
    ("a negative rate", {"pfs": {1: "-3MiB/s"}}, "pfs.1: '-3MiB/s' is a negative rate"),
    ("a rate of none", {"pfs": {1: "0"}}, "pfs.1: '0' is a rate of 0, at which no transfer"),
    ("rates missing", {"rates": {"compute": "1MiB/s"}}, "rates.preprocess: is missing; add 'pre"),
    ("no clients", {"pfs": {}}, "pfs: cannot be an empty mapping"),
    ("clients that are none", {"pfs": {0: "3MiB/s"}}, "pfs.0: 0 is out of range"),
    (
        "world size",
        {"ranks_per_node": None, "world_size": 6},
        "world_size: 6 ranks cannot be divided",
    ),
    (
        "both",
        {"world_size": 8},
        "world_size: cannot be given together with ranks_per_node; keep one",
    ),
    (
        "a batch",
        {"batch_per_rank": None, "batch": 30},
        "batch: 30 samples cannot be divided evenly among 4",
    ),
    ("both batches", {"batch": 128}, "batch: cannot be given together with batch_per_rank"),
    ("no batch", {"batch_per_rank": None}, "batch_per_rank: is missing"),
    (
        "nothing full",
        {"batch_per_rank": 20_000},
        "batch_per_rank: 50000 files do not fill one batch",
    ),
    ("a wrong key", {"epoch": 3}, "epoch: unknown key; did you mean 'epochs'?"),
    ("no classes", {"classes": []}, "classes: is empty; write at least the staging buffer"),
    ("files missing", {"dataset": {"size": {"mean": 5}}}, "dataset.files: is missing"),
    ("a size of 0", {"dataset": {"files": 9, "size": {"mean": 0}}}, "dataset.size.mean: files of"),
    (
        "a distribution that nothing fits",
        {"dataset": {"files": 9, "size": {"mean": "1KiB", "std": 1, "min": "1GiB"}}},
        "dataset.size: hardly any size",
    ),
    (
        "exchanged bounds",
        {"dataset": {"files": 9, "size": {"mean": 5, "std": 1, "min": 9, "max": 2}}},
        "dataset.size.min: is larger than max",
    ),
    (
        "both datasets",
        {"dataset": {"files": 9, "scan": "/"}},
        "dataset.files: cannot be given together with",
    ),
    ("an unknown node", {"overrides": [{"nodes": [4]}]}, "overrides[0].nodes: there is no node 4"),
    ("one node twice", {"overrides": [{"nodes": [1, 1]}]}, "nodes: node 1 is given twice"),
    (
        "an unknown class",
        {"overrides": [{"nodes": [1], "capacity": {"disk": "1GiB"}}]},
        "overrides[0].capacity: there is no class 'disk'; use one of staging, ram, ssd",
    ),
    ("unknown policy", {"policies": ["nopfs", "nope"]}, "policies: there is no policy 'nope'"),
    ("a policy twice", {"policies": ["nopfs", "nopfs"]}, "policies: 'nopfs' is given twice"),
]


@pytest.mark.parametrize(("changes", "said"), [r[1:] for r in REFUSED], ids=[r[0] for r in REFUSED])
def test_what_is_refused(write: Write, changes: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError) as raised:
        load_scenario(write(**changes), policies=["naive", "nopfs"])
    assert said in str(raised.value)
    assert str(raised.value).count("\n") == 0 and "; " in str(raised.value)


CLASS = {"name": "staging", "capacity": "5GiB", "threads": 8, "read": {8: "1GiB/s"}}


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"capacity": None}, "classes[1].capacity: is missing; add 'capacity"),
        ({"capacity": "0"}, "classes[1].capacity: nothing fits into a capacity of 0"),
        ({"threads": 0}, "classes[1].threads: 0 is out of range"),
        ({"read": {8: "fast"}}, "classes[1].read.8: 'fast' is not a rate"),
        ({"name": "staging"}, "classes[1].name: another class is called 'staging'"),
        ({"name": "a b"}, "classes[1].name: 'a b' is not a name"),
    ],
)
def test_classes_that_are_refused(write: Write, change: dict[str, Any], said: str) -> None:
    second = {**CLASS, "name": "ram", **change}
    second = {key: value for key, value in second.items() if value is not None}
    with pytest.raises(ConfigError) as raised:
        load_scenario(write(classes=[CLASS, second]))
    assert said in str(raised.value)


def test_a_file_that_is_none_is_called_a_scenario(tmp_path: Path) -> None:
    empty = tmp_path / "empty.yaml"
    empty.write_text("")
    with pytest.raises(ConfigError, match="the file is empty; write at least the keys nodes, epo"):
        load_scenario(empty)
    with pytest.raises(ConfigError, match="the scenario cannot be read"):
        load_scenario(tmp_path / "nothing.yaml")


def test_sizes_of_a_directory_and_of_a_list(write: Write, tmp_path: Path) -> None:
    folder = tmp_path / "data"
    (folder / "b").mkdir(parents=True)
    (folder / "b" / "x").write_bytes(b"123")
    (folder / "a").write_bytes(b"1")
    np.save(tmp_path / "sizes.npy", np.array([7, 8, 9]))
    changes: dict[str, Any] = {"batch_per_rank": 1, "nodes": 1}
    of_folder = load_scenario(write(dataset={"scan": str(folder)}, **changes))
    assert of_folder.sizes().tolist() == [1, 3]
    listed = load_scenario(write(dataset={"scan": str(tmp_path / "sizes.npy")}, **changes))
    assert (listed.dataset.files, listed.sizes().tolist()) == (3, [7, 8, 9])
    (tmp_path / "empty.npy").touch()
    (tmp_path / "text.npy").write_text("1 2 3")
    np.save(tmp_path / "negative.npy", np.array([-1, 2]))
    for name in ("nothing", "empty.npy", "text.npy", "negative.npy"):
        with pytest.raises(ConfigError, match=r"dataset\.scan: [^;]*; give another path$"):
            load_scenario(write(dataset={"scan": str(tmp_path / name)}))


def one_at_a_time(
    distribution: SizeDistribution, files: int, seed: int
) -> tuple[list[float], float]:
    """Draws sizes one by one, like NoPFS's simulator. Returns the sizes, and the next random number
    of the generator."""
    state = np.random.RandomState(seed)
    sizes = [distribution.mean + distribution.std * state.standard_normal() for _ in range(files)]
    for at in range(files):
        while not distribution.min <= sizes[at] <= distribution.max:
            sizes[at] = distribution.mean + distribution.std * state.standard_normal()
    return sizes, state.random_sample()


@pytest.mark.parametrize(
    "distribution",
    [
        SizeDistribution(107.7, 100.0),
        SizeDistribution(5.0, 20.0, 1.0),
        SizeDistribution(5.0, 20.0, 1.0, 9.0),
    ],
)
@pytest.mark.parametrize("files", [1, 2, 1001])
def test_the_distribution_is_drawn_as_one_by_one(
    distribution: SizeDistribution, files: int
) -> None:
    state = np.random.RandomState(3)
    drawn = distribution.draw(state, files)
    assert (drawn.tolist(), state.random_sample()) == one_at_a_time(distribution, files, 3)


def test_sizes_are_whole_and_of_the_seed() -> None:
    dataset = Dataset(1000, SizeDistribution(112_931.6, 104_857.6))
    assert dataset.sizes(42).dtype == np.int64 and dataset.sizes(42).min() >= 1
    assert (dataset.sizes(42) == dataset.sizes(42)).all()
    assert (dataset.sizes(42) != dataset.sizes(43)).any()


def test_the_share_that_fits() -> None:
    # The expected values are from tables of the normal distribution: 84.13 % of the draws lie above
    # (mean - std), and 68.27 % lie between (mean - std) and (mean + std).
    assert least_share(SizeDistribution(1.0, 1.0)) == pytest.approx(0.8413, abs=1e-4)
    assert least_share(SizeDistribution(1.0, 1.0, 0.0, 2.0)) == pytest.approx(0.6827, abs=1e-4)


@pytest.mark.parametrize("path", shipped_scenarios().values(), ids=lambda path: path.stem)
def test_shipped_scenarios_can_be_read_and_say_what_they_assume(path: Path) -> None:
    scenario: Scenario = load_scenario(path)
    assert scenario.assumptions and all(line.endswith(".") for line in scenario.assumptions)
