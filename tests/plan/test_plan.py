"""Plans: their units and parts, saving and loading, figures, and descriptions in plan.yaml."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from monarch_py.commands.figures import figures_of, owners_of
from monarch_py.errors import ConfigError
from monarch_py.plan import Loader, Plan, PlanPart
from monarch_py.plan.index import Index
from monarch_py.plan.recipe import plan_of, read_recipe
from monarch_py.plan.samplers import (
    SAMPLERS,
    DistributedSampler,
    GlobalRandomSampler,
    Listed,
    NumpySampler,
    Recorded,
    Sampler,
    SequentialSampler,
    SubsetRandomSampler,
    TensorFlowShuffle,
    WeightedRandomSampler,
)
from monarch_py.policies.nopfs import placement
from monarch_py.policies.rendezvous import file_keys, first_nodes
from monarch_py.policies.view import PFS

PAGE = Path(__file__).parents[2] / "docs" / "plan.md"


def shards(files: int = 5, samples: int = 8) -> Index:
    names = [f"shard-{i}" for i in range(files)]
    numbers = np.arange(files * samples)
    places = (numbers // samples, numbers % samples * 100, np.full(len(numbers), 100))
    return Index.of("fixed", "/data", names, [100 * samples] * files, places)


def two_parts(grain: str = "files") -> Plan:
    training = PlanPart("training", 0, Loader(DistributedSampler(40, 4, 3), 4, 5))
    validation = PlanPart("validation", 1, Loader(SequentialSampler(6), 4, 1), every=2)
    singles = Index.of("files", "/val", list("abcdef"), range(6))
    return Plan((shards(), singles), (training, validation), 4, 2, grain, 200)


# --- units and parts ----------------------------------------------------------------------------


def test_units_of_several_datasets_follow_each_other() -> None:
    plan = two_parts()
    timeline = plan.timeline()
    assert timeline.units == 5 + 6
    assert plan.unit_bytes().tolist() == [800] * 5 + list(range(6))
    validation = timeline.section(1, "validation").rows
    assert sorted(validation[validation >= 0].tolist()) == list(range(5, 11))
    fine = two_parts("ranges").timeline()
    assert fine.units == 5 * 4 + 6
    training = fine.section(0).rows
    assert np.bincount(training.reshape(-1)).tolist() == [2] * 20


def test_a_part_of_another_length_is_refused() -> None:
    part = PlanPart("training", 0, Loader(SequentialSampler(7), 1, 1))
    with pytest.raises(ConfigError, match=r"^dataset: the dataset of 'training' has 40 samples"):
        Plan((shards(),), (part,), 1, 1)


# --- saved and loaded ---------------------------------------------------------------------------


def test_a_plan_is_what_was_saved(tmp_path: Path) -> None:
    plan = two_parts("ranges")
    plan.save(tmp_path / "p.npz")
    again = Plan.load(tmp_path / "p.npz")
    assert (again.epochs, again.nodes, again.grain, again.range_bytes) == (4, 2, "ranges", 200)
    assert again.digests() == plan.digests()
    sections = zip(plan.timeline().sections(), again.timeline().sections(), strict=True)
    for one, other in sections:
        assert (one.epoch, one.part.name, one.start) == (other.epoch, other.part.name, other.start)
        assert np.array_equal(one.rows, other.rows)


def test_every_sampler_can_be_stored(tmp_path: Path) -> None:
    state = np.zeros(5056, dtype=np.uint8)
    state[8] = 1
    state[24:5016:8] = 7
    kinds = [
        SequentialSampler(6),
        DistributedSampler(6, 2),
        SAMPLERS["RandomSampler"](6, 1, True, 4),
        GlobalRandomSampler(6, state.tobytes()),
        SubsetRandomSampler(6, np.array([1, 3]), 2),
        WeightedRandomSampler(6, np.arange(6.0), 4, 1),
        NumpySampler(6, 1, "RandomState"),
        SAMPLERS["NoPFSSampler"](6, 2),
        SAMPLERS["GroupShuffle"](6, 2, 3),
        TensorFlowShuffle(6, 3, 1, 2),
        SAMPLERS["DALIReader"](6, 2),
        Listed(6, np.array([[1, 2], [3, 4]])),
        Recorded(6, np.array([1, 2])),
    ]
    assert {type(kind).__name__ for kind in kinds} == set(SAMPLERS)
    for sampler in kinds:
        split = sampler.own_split or "strided"
        part = PlanPart("training", 0, Loader(sampler, 2, 1, split=split))
        Plan((Index.unnamed(6),), (part,), 1, 1).save(tmp_path / "p.npz")
        again = Plan.load(tmp_path / "p.npz").parts[0].loader
        assert type(again.sampler) is type(sampler)
        assert np.array_equal(again.ranks(0), part.loader.ranks(0))


@pytest.mark.parametrize(
    ("written", "stored", "workers"),
    [
        ("monarch plan 1", 0, None),
        ("monarch plan 1", 4, 4),
        ("monarch plan 2", 0, 0),
        ("monarch plan 2", None, None),
    ],
)
def test_the_number_of_workers_in_each_format(
    tmp_path: Path, written: str, stored: int | None, workers: int | None
) -> None:
    """In the first format, 0 workers mean that the number is unknown. The second format stores null
    for that, and 0 if the training process reads the files itself."""
    path = tmp_path / "p.npz"
    two_parts().save(path)
    with np.load(path) as file:
        arrays = dict(file)
    text = json.loads(arrays["plan"].tobytes())
    assert text["format"] == "monarch plan 2"
    text["format"] = written
    for part in text["parts"]:
        part["loader"]["workers"] = stored
    arrays["plan"] = np.frombuffer(json.dumps(text).encode(), dtype=np.uint8)
    np.savez(path, **arrays)
    assert [part.loader.workers for part in Plan.load(path).parts] == [workers, workers]


def test_what_is_no_plan_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "p.npz"
    shards().save(path)
    with pytest.raises(ConfigError, match=r"p\.npz: not a plan .*; make one with"):
        Plan.load(path)
    two_parts().save(path)
    with np.load(path) as stored:
        arrays = dict(stored)
    arrays["dataset0.sizes"] = arrays["dataset0.sizes"] + np.uint64(1)
    np.savez(path, **arrays)
    with pytest.raises(ConfigError, match="its names and sizes are damaged"):
        Plan.load(path)


# --- figures ------------------------------------------------------------------------------------


def test_bytes_by_source_by_hand() -> None:
    """Two nodes read four files of 1, 10, 100 and 1000 bytes in three epochs.

    Node 0 reads the files 0 and 1, then 2 and 1, then 0 and 2. Node 1 reads the files 2 and 3, then
    0 and 3, then 1 and 3. Node 0 holds the files 0, 1 and 2, because it reads each of them more
    often than node 1."""
    rows = np.array([[0, 2, 1, 3], [2, 0, 1, 3], [0, 1, 2, 3]])
    part = PlanPart("training", 0, Loader(Listed(4, rows), 2, 1))
    plan = Plan((Index.of("files", "/d", list("abcd"), [1, 10, 100, 1000]),), (part,), 3, 2)
    figures = figures_of(plan)
    owner = owners_of(plan.timeline(), plan.unit_bytes(), None)
    assert owner.tolist() == [0, 0, 0, 1]
    assert figures.frequency.tolist() == [1, 0, 3]
    assert (figures.owned_units.tolist(), figures.owned_bytes.tolist()) == ([3, 1], [111, 1000])
    assert figures.epochs.tolist() == [[0, 0, 1111], [1110, 1, 0], [1101, 10, 0]]
    # With this quota, node 0 holds only the files 0 and 1. File 2 does not fit.
    small = figures_of(plan, quota=50)
    assert small.owned_bytes.tolist() == [11, 0]
    assert small.epochs.tolist() == [[0, 0, 1111], [10, 1, 1100], [1, 10, 1100]]


def test_what_does_not_fit_has_no_owner() -> None:
    plan = two_parts()
    timeline, sizes = plan.timeline(), plan.unit_bytes()
    owner = owners_of(timeline, sizes, 1700)
    used = [int(sizes[owner == node].sum()) for node in range(plan.nodes)]
    assert max(used) <= 1700
    assert (1700 - max(used) < sizes[owner == PFS]).all()
    assert (owners_of(timeline, sizes, None) != PFS).all()


def test_more_nodes_and_units_than_can_be_placed_are_owned_by_hash(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    plan = two_parts()
    monkeypatch.setattr(placement, "MOST_OF_USES", 1)
    owner = owners_of(plan.timeline(), plan.unit_bytes(), None)
    assert owner.tolist() == first_nodes(file_keys(11), np.ones(2)).tolist()


# --- plan.yaml ----------------------------------------------------------------------------------


def described(sampler: Sampler) -> tuple[type, dict[str, Any]]:
    return type(sampler), {name: np.asarray(v).tolist() for name, v in vars(sampler).items()}


SMALLEST = """\
epochs: 2
parts:
- dataset: 20
  batch_size: 4
  sampler: {kind: DistributedSampler}
"""


def load(tmp_path: Path, text: str) -> Plan:
    path = tmp_path / "plan.yaml"
    path.write_text(text.replace("@", str(tmp_path)))
    return plan_of(*read_recipe(path))


def test_the_smallest_description(tmp_path: Path) -> None:
    plan = load(tmp_path, SMALLEST)
    assert (plan.epochs, plan.nodes, plan.grain) == (2, 1, "files")
    assert plan.parts[0].loader == Loader(DistributedSampler(20, 1), 1, 4)


def test_everything_that_can_be_described(tmp_path: Path) -> None:
    shards().save(tmp_path / "i.npz")
    np.save(tmp_path / "w.npy", np.arange(40.0))
    (tmp_path / "v.txt").write_text("3\n5\n7\n9\n")
    plan = load(
        tmp_path,
        """\
epochs: 3
nodes: 2
ranks_per_node: 2
grain: ranges
range_size: 200
parts:
- name: training
  dataset: "@/i.npz"
  batch_size: 2
  drop_last: true
  split: slices
  workers: 2
  prefetch_factor: 3
  sampler: {kind: WeightedRandomSampler, weights: "@/w.npy", num_samples: 16, seed: 4}
- name: validation
  dataset: "@/i.npz"
  batch_size: 1
  every: 3
  sampler: {kind: SubsetRandomSampler, indices: "@/v.txt", seed: 1, loader_draws: every_epoch}
- name: test
  dataset: 10
  file_size: 1KiB
  batch_size: 1
  sampler: {kind: TensorFlowShuffle, buffer_size: 4, seed: 1, reshuffle: no}
""",
    )
    assert len(plan.datasets) == 2, "both parts read the same index"
    training, validation, test = (part.loader for part in plan.parts)
    weighted = WeightedRandomSampler(40, np.arange(40.0), 16, 4)
    assert described(training.sampler) == described(weighted)
    assert (training.split, training.ahead, training.drop_last) == ("slices", 6, True)
    subset = SubsetRandomSampler(40, np.array([3, 5, 7, 9]), 1, "every_epoch")
    assert described(validation.sampler) == described(subset)
    assert test.sampler == TensorFlowShuffle(10, 4, 1, reshuffle=False)
    assert plan.unit_bytes().tolist() == [200] * 20 + [1024] * 10


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (("epochs: 2", "epochs: 0"), "1: epochs: 0 is out of range; write"),
        (("epochs: 2", "epochs: 99999999999"), "1: epochs: 99999999999 is out of range; write"),
        (("epochs: 2\n", ""), "1: epochs: is missing; add"),
        (("dataset: 20", "dataset: 0"), "3: parts[0].dataset: 0 is out of range"),
        (("dataset: 20", "dataset: @/none.npz"), "none.npz: cannot be read (No such file"),
        (("batch_size: 4", "batch_size: 0"), "4: parts[0].batch_size: 0 is out of range"),
        (
            ("Sampler}", "Sampler, sed: 1}"),
            "5: parts[0].sampler.sed: unknown key; did you mean 'seed'",
        ),
        (
            ("Sampler}", "Sampler, buffer_size: 1}"),
            "buffer_size: DistributedSampler has no such key;",
        ),
        (("DistributedSampler", "RandomSampler"), "5: parts[0].sampler.seed: is missing; add"),
        (("DistributedSampler", "Sampler"), "5: parts[0].sampler.kind: 'Sampler' is not known"),
        (("{kind: DistributedSampler}", "[]"), "sampler: cannot be a list"),
        (("Sampler}", "Sampler}\n  split: chunks"), "6: parts[0].split: 'chunks' does not fit the"),
        (("Sampler}", "Sampler}\n  name: two words"), "6: parts[0].name: cannot be 'two words'"),
        (("epochs: 2", "epochs: 2\nnodes: 70000"), "2: nodes: 70000 is out of range"),
        (
            ("Sampler}", "Sampler, drop_last: true}\nnodes: 30"),
            "5: parts[0].sampler: length: 20 samples",
        ),
        (("DistributedSampler", "NumpySampler, seed: -1"), "sampler.seed: -1 is negative, which"),
        (("DistributedSampler", "Recorded, indices: @/no.txt"), "5: parts[0].sampler.indices: "),
    ],
)
def test_what_cannot_be_planned_is_told_with_its_line(
    tmp_path: Path, change: tuple[str, str], message: str
) -> None:
    with pytest.raises(ConfigError, match=re.escape(message)) as caught:
        load(tmp_path, SMALLEST.replace(*change))
    assert "\n" not in str(caught.value)
    assert "; " in str(caught.value)


def test_an_empty_description(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="write at least the keys 'epochs' and 'parts'"):
        load(tmp_path, "# nothing\n")
    with pytest.raises(ConfigError, match=r"plan\.yaml:2: parts: is empty"):
        load(tmp_path, "epochs: 1\nparts: []\n")


def test_two_parts_of_one_name(tmp_path: Path) -> None:
    second = SMALLEST.partition("parts:\n")[2]
    with pytest.raises(ConfigError, match="two parts have the same name; give each its 'name'"):
        load(tmp_path, SMALLEST + second)


# --- the page -----------------------------------------------------------------------------------


def test_the_page_names_every_sampler() -> None:
    text = PAGE.read_text()
    assert [name for name in SAMPLERS if f"`{name}`" not in text] == []


@pytest.mark.parametrize(
    "example",
    # The list leaves out examples that are parts of tiers.yaml, and examples that need files below
    # /pfs. tests/config loads the examples that are left out here.
    [
        text
        for text in re.findall(r"```yaml\n(.*?)```", PAGE.read_text(), re.S)
        if not text.startswith(("plan:", "hierarchy:")) and "/pfs/" not in text
    ],
)
def test_the_examples_of_the_page_work(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, example: str
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    for name in set(re.findall(r"\$HOME/(\w+\.npz)", example)):
        shards(50, 40).save(tmp_path / name)
    assert load(tmp_path, example).timeline().layout()
