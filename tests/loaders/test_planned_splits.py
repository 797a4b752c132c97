"""Ranks and daemons follow the same plan. With the splits `local_first` and `solar`, the plan deals
samples to the ranks of the nodes that hold them. With `groups`, it deals groups of samples."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner
from nodes.lone_nodes import Catalog, Placing, alone, node

from monarch_py.cli.plan import plan as command
from monarch_py.commands.figures import owners_of
from monarch_py.daemon.plans.tracker import Found
from monarch_py.errors import ConfigError
from monarch_py.loaders.groups.runs import RankGroups
from monarch_py.loaders.samplers.planned import sampler_of
from monarch_py.native import lib
from monarch_py.plan import Plan, Timeline
from monarch_py.plan.builders import index_files
from monarch_py.plan.position import PositionEstimator
from monarch_py.plan.recipe import plan_of, read_recipe
from monarch_py.plan.samplers import NONE
from monarch_py.plan.schedule import group_schedule
from monarch_py.plan.timeline import Run
from monarch_py.policies.holding import with_holders
from monarch_py.policies.placement import UNIT, TierRoom

FILES, NODES, EPOCHS = 230, 2, 3
PLAN = """
epochs: {epochs}
nodes: {nodes}
ranks_per_node: 2
parts:
  - dataset: {index}
    sampler: {{kind: DistributedSampler, seed: 5, drop_last: {drop_last}}}
    batch_size: 4
    drop_last: {drop_last}
    {split}
"""
SPLITS = {
    "local_first": "split: local_first\n    quota: 400KiB",
    "solar": "split: solar\n    quota: 400KiB\n    cap: 1.75\n    least: 0",
}


@pytest.fixture
def source(tmp_path: Path) -> Path:
    root = tmp_path / "source"
    root.mkdir()
    for number in range(FILES):
        (root / f"{number:03}").write_bytes(bytes(100 + number))
    index_files(root).save(tmp_path / "index.npz")
    return root


def described(where: Path, split: str, drop_last: bool = False, **more: Any) -> Path:
    """Writes a plan's description, and returns its path."""
    words = {"epochs": EPOCHS, "nodes": NODES, "index": where / "index.npz", **more}
    path = where / "plan.yaml"
    path.write_text(PLAN.format(drop_last=str(drop_last).lower(), split=split, **words))
    return path


def made(where: Path, split: str, drop_last: bool = False, **more: Any) -> Path:
    """Runs `monarch plan make`, and returns the path of the plan."""
    recipe, out = described(where, split, drop_last, **more), where / "plan.npz"
    told = CliRunner().invoke(command, ["make", "-c", str(recipe), "-o", str(out)])
    assert told.exit_code == 0, told.output
    return out


@pytest.mark.parametrize("drop_last", [False, True])
@pytest.mark.parametrize("split", SPLITS)
def test_ranks_take_what_the_plan_says(
    split: str, drop_last: bool, source: Path, tmp_path: Path
) -> None:
    file = made(tmp_path, SPLITS[split], drop_last)
    loader = Plan.load(file).parts[0].loader
    for epoch in range(EPOCHS):
        batches = loader.batches(epoch)
        for rank in range(2 * NODES):
            sampler = sampler_of(file.with_suffix(".yaml") if epoch else file, rank=rank)
            sampler.set_epoch(epoch)
            planned = [batch[batch != NONE].tolist() for batch in batches[rank]]
            assert list(sampler) == planned
        taken = np.sort(batches[batches != NONE])
        if drop_last:
            assert (batches[:, :, 0] != NONE).all() or split == "solar"
            assert len(np.unique(taken)) == len(taken) == loader.steps * 16
        else:
            assert len(np.unique(taken)) == FILES and len(taken) == FILES + 2
    sizes = (batches != NONE).sum(axis=2)
    assert (sizes.max() > 4 > sizes.min()) == (split == "solar")


@pytest.mark.parametrize("split", SPLITS)
def test_positions_are_those_of_the_accesses(split: str, source: Path, tmp_path: Path) -> None:
    """The daemon expects the accesses of a node in the order of the node's batches."""
    timeline = Plan.load(made(tmp_path, SPLITS[split])).timeline()
    batches = timeline.parts[0].loader.batches(1)
    for step in (0, 3, len(batches[0]) - 1):
        section = next(timeline.sections(1, step))
        here = section.node(1)[: section.per_step].reshape(-1, 2)
        assert here.shape[0] == batches.shape[2] or step == len(batches[0]) - 1
        for rank in range(2):
            want = batches[2 + rank, step]
            assert here[:, rank].tolist() == want[: len(here)].tolist()
    run = Run.of(timeline.section(1), 1, timeline.units)
    opened = batches[2:].transpose(1, 2, 0).reshape(-1)
    first = opened[opened != NONE]
    assert run.units.tolist() == list(dict.fromkeys(first.tolist()))


@pytest.mark.parametrize("split", SPLITS)
def test_a_daemon_does_not_lose_the_ranks(split: str, source: Path, tmp_path: Path) -> None:
    timeline = Plan.load(made(tmp_path, SPLITS[split])).timeline()
    runs = [Run.of(timeline.section(epoch), 0, timeline.units) for epoch in (0, 1)]
    estimator = PositionEstimator(runs[0], ranks=2)
    estimator.following = runs[1]
    samplers = [sampler_of(tmp_path / "plan.npz", rank=rank) for rank in range(2)]
    for epoch in (0, 1):
        for each in samplers:
            each.set_epoch(epoch)
        for step in zip(*samplers, strict=True):
            for batch in step:
                estimator.observe(np.array(batch, dtype=np.int32))
            assert not estimator.is_lost
    assert estimator.run is runs[1]


def test_a_daemon_does_not_lose_ranks_that_read_groups(tmp_path: Path) -> None:
    """A daemon keeps track of ranks that open the files of whole groups in ascending order, before
    the training run uses the groups' samples."""
    group, ranks = 1000, 2 * NODES
    recipe = described(tmp_path, "split: groups", index=64_000)
    text = recipe.read_text()
    recipe.write_text(
        text.replace("DistributedSampler, seed", f"GroupShuffle, group: {group}, seed")
    )
    timeline = plan_of(*read_recipe(recipe)).timeline()
    run = Run.of(timeline.section(0), 0, timeline.units)
    estimator = PositionEstimator(run, ranks=2)
    schedule = group_schedule(64_000, group, 5, 0, ranks, 4)
    asked = [RankGroups.of(schedule, rank, group).runs(0) for rank in range(2)]
    seen = fitted = 0
    for groups in zip(*asked, strict=True):
        for of_both in np.array_split(np.stack([each.samples for each in groups], axis=1), 20):
            opened = of_both.astype(np.int32).reshape(-1)
            fits = estimator.observe(opened)
            estimator.judge(opened, fits)
            seen, fitted = seen + len(opened), fitted + int(fits.sum())
            assert not estimator.is_lost
    assert (seen, fitted) == (32_000, 32_000)


@pytest.fixture(scope="module")
def without_peers() -> Iterator[None]:
    with alone():
        yield


@pytest.mark.usefixtures("without_peers")
@pytest.mark.parametrize("split", SPLITS)
def test_daemons_keep_files_where_the_plan_deals_them(
    split: str, source: Path, tmp_path: Path
) -> None:
    plan = Plan.load(made(tmp_path, SPLITS[split]))
    holders = plan.parts[0].loader.holders
    assert holders is not None
    index = plan.datasets[0]
    # These names have other hashes than the names in the plan. If the daemons chose the holders by
    # hashes, they would choose other holders than the plan.
    names = [f"other/{number:03}".encode() for number in range(FILES)]
    hashes = [int(lib.monarch_path_hash(1, name, len(name))) for name in names]
    catalog: Any = Catalog(list(zip(hashes, index.sizes.tolist(), strict=True)), list(range(FILES)))
    timeline: Timeline = plan.timeline()
    for rank in range(NODES):
        daemon = node(rank, ((1 << 20,),) * NODES, catalog)
        daemon.step(scanned=True)
        found = Found(catalog.ids(), np.ones(FILES, dtype=bool), "", ())
        tracker: Any = SimpleNamespace(found=found, timeline=timeline, node=rank)
        shared: Any = SimpleNamespace(catalog=catalog)
        room = TierRoom(1 << 20, FILES, UNIT.block_bytes, UNIT.entry_bytes)
        words = catalog.entries["word"]
        task = Placing([tracker], shared, catalog, (), words, [room], daemon, is_first=True)
        result = task.make()
        daemon.follow(result.ids, result.tier, FILES, result.holders)
        ids = catalog.ids()
        assert daemon.policy.owners(ids).tolist() == holders[:, 0].tolist()
        assert daemon.policy.keeps(ids).tolist() == (holders == rank).any(axis=1).tolist()


@pytest.mark.usefixtures("without_peers")
def test_a_plan_beside_others_keeps_its_holders_and_needs_room(
    source: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    plans = [Plan.load(made(tmp_path, split)) for split in (SPLITS["solar"], "split: strided")]
    holders = plans[0].parts[0].loader.holders
    assert holders is not None
    sizes = plans[0].datasets[0].sizes.tolist()
    files = [(7919 * number, size) for number, size in enumerate(2 * sizes)]
    catalog: Any = Catalog(files, list(range(2 * FILES)))
    ids, kept = catalog.ids(), np.ones(FILES, dtype=bool)
    # The second plan has other files than the first.
    trackers: list[Any] = [
        SimpleNamespace(found=found, timeline=plan.timeline(), node=0)
        for plan, found in zip(
            plans,
            (Found(ids[:FILES], kept, "", ()), Found(ids[FILES:], kept, "", ())),
            strict=True,
        )
    ]
    shared: Any = SimpleNamespace(catalog=catalog)
    room = TierRoom(1 << 20, 2 * FILES, UNIT.block_bytes, UNIT.entry_bytes)
    for quota, is_small in ((1 << 20, False), (200 << 10, True)):
        daemon = node(0, ((quota,),) * NODES, catalog)
        daemon.step(scanned=True)
        words = catalog.entries["word"]
        task = Placing(trackers, shared, catalog, (), words, [room], daemon, is_first=True)
        result = task.make()
        owner = result.holders[np.argsort(result.ids)][:FILES, 0]
        assert owner.tolist() == holders[:, 0].tolist()
        assert ("assigns up to 400 KiB of samples to a node, but" in caplog.text) == is_small


@pytest.mark.parametrize("split", SPLITS)
def test_show_counts_what_is_held(split: str, source: Path, tmp_path: Path) -> None:
    plan = Plan.load(made(tmp_path, SPLITS[split]))
    holders = plan.parts[0].loader.holders
    assert holders is not None
    owner = owners_of(plan.timeline(), plan.unit_bytes(), None)
    assert owner.tolist() == holders[:, 0].tolist()


def test_groups_are_dealt_as_their_loader_takes_them(source: Path, tmp_path: Path) -> None:
    split = "split: groups\n    every: 1"
    recipe = described(tmp_path, split)
    text = recipe.read_text()
    recipe.write_text(text.replace("DistributedSampler, seed", "GroupShuffle, group: 50, seed"))
    loader = plan_of(*read_recipe(recipe)).parts[0].loader
    for epoch in range(EPOCHS):
        schedule = group_schedule(FILES, 50, 5, epoch, 4, 4)
        batches = loader.batches(epoch)
        for step, rank in np.ndindex(schedule.steps, 4):
            mine = batches[rank, step]
            assert mine[mine != NONE].tolist() == schedule.batch(step, rank).tolist()


@pytest.mark.parametrize(
    ("split", "message"),
    [
        ("split: solar", r"parts\[0\]\.quota: is missing"),
        ("quota: 1GiB", r"the split 'strided' has no such key; remove it"),
        ("split: local_first\n    quota: 1GiB\n    cap: 2", "'local_first' has no such key"),
        ("split: solar\n    quota: 1GiB\n    cap: 0.5", "write a number from 1 to 1000"),
        (
            "split: groups",
            "'groups' does not fit the sampler DistributedSampler; write 'split: strided'",
        ),
    ],
)
def test_wrong_descriptions_are_named(
    split: str, message: str, source: Path, tmp_path: Path
) -> None:
    with pytest.raises(ConfigError, match=message):
        plan_of(*read_recipe(described(tmp_path, split)))


def test_plans_that_no_sampler_follows_are_refused(source: Path, tmp_path: Path) -> None:
    plain = made(tmp_path, "split: strided")
    with pytest.raises(ConfigError, match=r"^part: .* has no part with 'split: local_first'"):
        sampler_of(plain, rank=0)
    with pytest.raises(ConfigError, match=r"^part: .* has no part 'val' with 'split: local_first'"):
        sampler_of(plain, "val", rank=0)
    unheld = plan_of(*read_recipe(described(tmp_path, SPLITS["solar"])))
    with pytest.raises(ConfigError, match=r"^split: 'solar' needs the holders of the samples"):
        unheld.parts[0].loader.batches(0)
    assert with_holders(unheld).parts[0].loader.batches(0).shape[0] == 4
    text = described(tmp_path, SPLITS["solar"]).read_text()
    other = tmp_path / "plan.yaml"
    for sampler, message in (
        ("kind: SequentialSampler", "needs DistributedSampler"),
        ("kind: DistributedSampler, set_epoch: false", "^set_epoch: 'training' repeats one order"),
    ):
        other.write_text(
            text.replace("kind: DistributedSampler, seed: 5, drop_last: false", sampler)
        )
        with_holders(plan_of(*read_recipe(other))).save(tmp_path / "plan.npz")
        with pytest.raises(ConfigError, match=message):
            sampler_of(tmp_path / "plan.npz", rank=0)
