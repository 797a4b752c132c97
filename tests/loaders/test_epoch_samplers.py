"""The samplers deal DistributedSampler's global batches to the nodes that hold the samples, and any
number of ranks can resume an epoch."""

from __future__ import annotations

import itertools
import json
from types import SimpleNamespace
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.draws import examples

from monarch_py.errors import ConfigError
from monarch_py.loaders.samplers.local_first import LocalFirstSampler
from monarch_py.loaders.samplers.sampler import ScheduledSampler
from monarch_py.loaders.samplers.solar import SolarSampler
from monarch_py.loaders.samplers.steps import equal_steps
from monarch_py.plan.loader import Loader
from monarch_py.plan.samplers import NONE, DistributedSampler
from monarch_py.plan.schedule import Deal
from monarch_py.policies.solar.mapping import deal

SAMPLE_BYTES = 100
KINDS = [LocalFirstSampler, SolarSampler]


def dataset(length: int) -> Any:
    return SimpleNamespace(sizes=np.full(length, SAMPLE_BYTES))


def samplers(
    kind: type[Any], length: int, batch: int, nodes: int, per_node: int, **more: Any
) -> list[ScheduledSampler]:
    """Returns the samplers of all ranks. Unless `more` contains a quota, all nodes together keep
    60 % of the samples."""
    more = {"quota": int(length * 0.6 / nodes) * SAMPLE_BYTES, **more}
    world = {"world_size": nodes * per_node, "ranks_per_node": per_node}
    return [
        kind(dataset(length), batch, 17, rank=r, **world, **more) for r in range(nodes * per_node)
    ]


def steps_of(made: list[ScheduledSampler], epoch: int) -> list[list[list[int]]]:
    """Returns, for each step of the epoch, the batches of all ranks."""
    for each in made:
        each.set_epoch(epoch)
    return [list(step) for step in zip(*made, strict=True)]


def whole(step: list[list[int]]) -> list[int]:
    return sorted(itertools.chain.from_iterable(step))


def expected(
    length: int, batch: int, ranks: int, epoch: int, *, drop_last: bool
) -> list[list[int]]:
    """Returns the global batches of torch's DistributedSampler."""
    order = DistributedSampler(length, ranks, 17, drop_last=drop_last)
    batches = Loader(order, ranks, batch, drop_last=drop_last).batches(epoch)
    return [
        sorted(batches[:, step][batches[:, step] != NONE].tolist())
        for step in range(batches.shape[1])
    ]


SHAPES = {
    "length": st.integers(1, 300),
    "batch": st.integers(1, 9),
    "nodes": st.integers(1, 4),
    "per_node": st.sampled_from([1, 2, 3]),
    "epoch": st.integers(0, 2),
    "drop_last": st.booleans(),
}


@pytest.mark.parametrize("kind", KINDS)
@settings(deadline=None, max_examples=examples(25))
@given(**SHAPES)
def test_global_batches_are_those_of_distributed_sampler(
    kind: type[Any], length: int, batch: int, nodes: int, per_node: int, epoch: int, drop_last: bool
) -> None:
    ranks = nodes * per_node
    if drop_last and length // ranks < batch:
        with pytest.raises(ConfigError, match="leaves no full batch"):
            samplers(kind, length, batch, nodes, per_node, drop_last=True)
        return
    made = samplers(kind, length, batch, nodes, per_node, drop_last=drop_last)
    got = steps_of(made, epoch)
    assert [whole(step) for step in got] == expected(
        length, batch, ranks, epoch, drop_last=drop_last
    )
    assert all(len(each) == len(got) for each in made)
    for step in got if kind is LocalFirstSampler else ():
        assert len(set(map(len, step))) == 1
    for step in got if kind is SolarSampler else ():
        mean = len(whole(step)) / ranks
        assert all(min(1, int(mean)) <= len(each) <= np.ceil(1.5 * mean) for each in step)


@settings(deadline=None, max_examples=examples(25))
@given(**SHAPES)
def test_of_one_holder_each_no_step_moves_more_than_it_must(
    length: int, batch: int, nodes: int, per_node: int, epoch: int, drop_last: bool
) -> None:
    if drop_last and length // (nodes * per_node) < batch:
        return
    made = samplers(LocalFirstSampler, length, batch, nodes, per_node, drop_last=drop_last)
    holder: Any = vars(made[0])["holders"][:, 0]
    for step in steps_of(made, epoch):
        node_of = np.repeat(np.arange(len(step)) // per_node, [len(each) for each in step])
        flat = np.array([sample for each in step for sample in each])
        held = np.bincount(holder[flat][holder[flat] != NONE], minlength=nodes)
        room = np.bincount(node_of, minlength=nodes)
        elsewhere = (holder[flat] != NONE) & (holder[flat] != node_of)
        assert np.count_nonzero(elsewhere) == np.maximum(0, held - room).sum()


def most_local(holders: npt.NDArray[np.int32], samples: list[int], room: list[int]) -> int:
    """Returns the size of a maximum matching: the largest number of samples that can be dealt so
    that each goes to one of its holders.
    """
    places = [node for node, count in enumerate(room) for _ in range(count)]
    taken: dict[int, int] = {}

    def settle(at: int, seen: set[int]) -> bool:
        for place, node in enumerate(places):
            if node in holders[samples[at]] and place not in seen:
                seen.add(place)
                if place not in taken or settle(taken[place], seen):
                    taken[place] = at
                    return True
        return False

    return sum(settle(at, set()) for at in range(len(samples)))


@settings(deadline=None, max_examples=examples(40))
@given(
    nodes=st.integers(1, 5),
    batch=st.integers(1, 6),
    width=st.integers(1, 3),
    seed=st.integers(0, 1000),
)
def test_of_several_holders_the_matching_is_the_largest(
    nodes: int, batch: int, width: int, seed: int
) -> None:
    rng = np.random.default_rng(seed)
    length = 3 * nodes * batch
    holders = rng.integers(-1, nodes, (length, width), dtype=np.int32)
    order = rng.permutation(length).astype(np.int32)
    schedule = Deal(nodes * batch, nodes, nodes).schedule(order, holders)
    for step in range(schedule.steps):
        local = sum(
            int((holders[schedule.batch(step, node)] == node).any(axis=1).sum())
            for node in range(nodes)
        )
        samples = order[step * nodes * batch : (step + 1) * nodes * batch].tolist()
        assert local == most_local(holders, samples, [batch] * nodes)
        loads = schedule.loads
        assert loads is not None
        assert nodes * batch - local == loads[step * nodes : (step + 1) * nodes].sum()


@settings(deadline=None, max_examples=examples(40))
@given(
    nodes=st.integers(1, 6),
    batch=st.integers(1, 12),
    held=st.floats(0, 1),
    cap=st.sampled_from([1.0, 1.25, 1.5, 3.0]),
    seed=st.integers(0, 1000),
)
def test_solar_deals_as_the_policy_does(
    nodes: int, batch: int, held: float, cap: float, seed: int
) -> None:
    rng = np.random.default_rng(seed)
    files = rng.permutation(nodes * batch).astype(np.int32)
    holder = np.where(
        rng.random(len(files)) < held, rng.integers(0, nodes, len(files)), NONE
    ).astype(np.int32)
    schedule = Deal(len(files), nodes, nodes, cap, least=0).schedule(files, holder)
    node, loaded = deal(files, holder[files], nodes, int(np.ceil(cap * batch)))
    assert schedule.sizes()[0].tolist() == np.bincount(node, minlength=nodes).tolist()
    assert schedule.loads is not None
    assert schedule.loads.tolist() == np.bincount(node[loaded], minlength=nodes).tolist()


@settings(deadline=None, max_examples=examples(60))
@given(
    cap=st.integers(100, 400).map(lambda hundredths: hundredths / 100),
    batch=st.integers(1, 60),
    ranks=st.integers(1, 7),
    short=st.integers(0, 60),
)
def test_the_rows_of_a_plan_have_room_for_any_cap(
    cap: float, batch: int, ranks: int, short: int
) -> None:
    length = ranks * (2 * batch + short % batch)
    holders = np.zeros((length, 1), np.int32)
    order = DistributedSampler(length, ranks, 17)
    how: dict[str, Any] = {"split": "solar", "nodes": ranks, "cap": cap, "least": 0}
    batches = Loader(order, ranks, batch, holders=holders, **how).batches(0)
    assert sorted(batches[batches != NONE]) == list(range(length))
    most = min(-(-round(cap * 100) * batch // 100), ranks * batch)
    assert (batches != NONE).sum(axis=2).max() == batches.shape[2] == most


def test_large_steps_and_caps_do_not_overflow() -> None:
    order, holders = np.arange(4_400_000, dtype=np.int32), np.zeros(4_400_000, np.int32)
    schedule = Deal(len(order), 2, 2, 1000.0).schedule(order, holders)
    assert schedule.sizes().tolist() == [[4_399_999, 1]]
    for name, number in (("least", 2**31), ("per_step", 2**31), ("per_step", 0)):
        with pytest.raises(ConfigError, match=f"^{name}: {number} is out of range"):
            Deal(**{"per_step": 4, "ranks": 2, "nodes": 2, name: number})


@pytest.mark.parametrize("per_node", [1, 2])
def test_solar_loads_evenly_where_the_cap_leaves_room(per_node: int) -> None:
    nodes, batch, length = 4, 64, 20_000
    holder = np.random.default_rng(3).integers(0, nodes, length).astype(np.int32)
    holder[: length // 5] = NONE
    order = np.random.default_rng(4).permutation(length).astype(np.int32)
    ranks = nodes * per_node
    schedule = Deal(batch * ranks, ranks, nodes, cap=3.0).schedule(order, holder)
    assert schedule.loads is not None
    loads = schedule.loads.reshape(-1, ranks)
    assert (loads.max(axis=1) - loads.min(axis=1)).max() <= 1
    assert loads.sum() == length // 5
    assert schedule.sizes()[:-1].max() > batch > schedule.sizes()[:-1].min() >= 1


def test_every_rank_takes_the_least_though_its_node_holds_nothing() -> None:
    holder = np.zeros(40, np.int32)
    schedule = Deal(40, 4, 4, cap=4.0, least=3).schedule(np.arange(40, dtype=np.int32), holder)
    assert schedule.sizes().tolist() == [[31, 3, 3, 3]]
    empty = Deal(40, 4, 4, cap=4.0, least=0).schedule(np.arange(40, dtype=np.int32), holder)
    assert empty.sizes().tolist() == [[40, 0, 0, 0]]


@pytest.mark.parametrize(
    ("order", "holders", "message"),
    [
        ([0, 1, 2], [0, 1], "only 2 samples have holders"),
        ([0, -1], [0, 1], "only 2 samples have holders"),
        ([0, 1], [0, 2], "not among the 2"),
        ([0, 1], [-2, 0], "not among the 2"),
    ],
)
def test_samples_and_nodes_that_do_not_exist_are_refused(
    order: list[int], holders: list[int], message: str
) -> None:
    with pytest.raises(ConfigError, match=f"^holders: .*{message}"):
        Deal(2, 2, 2).schedule(np.array(order, np.int32), np.array(holders, np.int32))


# --- weights ------------------------------------------------------------------------------------


@settings(deadline=None, max_examples=examples(20))
@given(length=st.integers(1, 200), ranks=st.integers(1, 6), least=st.integers(0, 1))
def test_weights_make_the_mean_over_ranks_that_of_the_global_batch(
    length: int, ranks: int, least: int
) -> None:
    made = samplers(SolarSampler, length, 4, ranks, 1, least=least, quota=SAMPLE_BYTES * length)
    values = np.random.default_rng(0).random(length)
    for step in steps_of(made, 0):
        weights = [s.weight(len(b), summed=least == 0) for s, b in zip(made, step, strict=True)]
        losses = [values[b].sum() if least == 0 else values[b].mean() for b in step]
        mean = np.dot(weights, losses) / ranks
        assert mean == pytest.approx(values[whole(step)].mean(), rel=1e-12)


def test_a_weight_that_no_batch_has_is_refused() -> None:
    (first, _) = samplers(SolarSampler, 100, 4, 2, 1)
    list(first)
    with pytest.raises(ConfigError, match="no batch of 77 samples is left"):
        first.weight(77)
    with pytest.raises(ConfigError, match="the batch of step 0 has"):
        first.weight(77, step=0)


def test_weights_by_step_and_in_order_agree() -> None:
    (first, _) = samplers(SolarSampler, 103, 4, 2, 1)
    batches = list(first)
    in_order = [first.weight(len(batch)) for batch in batches]
    assert in_order == [first.weight(len(batch), step) for step, batch in enumerate(batches)]
    assert len(set(in_order)) > 1


# --- resuming -----------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
@settings(deadline=None, max_examples=examples(25))
@given(
    length=st.integers(1, 200),
    batch=st.integers(1, 6),
    before=st.integers(1, 4),
    after=st.integers(1, 7),
    drop_last=st.booleans(),
    data=st.data(),
)
def test_any_number_of_ranks_continues_the_same_global_batches(
    kind: type[Any],
    length: int,
    batch: int,
    before: int,
    after: int,
    drop_last: bool,
    data: st.DataObject,
) -> None:
    if drop_last and length // before < batch:
        return
    old = samplers(kind, length, batch, before, 1, drop_last=drop_last)
    steps = steps_of(old, 1)
    done = data.draw(st.integers(0, len(steps)))
    state = json.loads(json.dumps(old[0].state_dict(done)))
    new = samplers(kind, length, 1, after, 1)
    for each in new:
        each.load_state_dict(state)
    resumed = [list(step) for step in zip(*new, strict=True)]
    assert len(resumed) == len(steps) - done
    for step, want in zip(resumed, steps[done:], strict=True):
        weights = [s.weight(len(b)) for s, b in zip(new, step, strict=True)]
        counted = [b for b, weight in zip(step, weights, strict=True) if weight]
        assert whole(counted) == whole(want)
        assert all(len(each) >= 1 for each in step)
        if kind is LocalFirstSampler:
            sizes = [len(b) if weight else 0 for b, weight in zip(step, weights, strict=True)]
            assert max(sizes) - min(sizes) <= 1
    assert len(steps_of(new, 2)) == len(steps_of(old, 2)), "the next epoch must have as many steps"


def test_set_epoch_keeps_the_place_in_the_resumed_epoch_only() -> None:
    (sampler,) = samplers(LocalFirstSampler, 40, 4, 1, 1)
    sampler.set_epoch(3)
    all_of_it = list(sampler)
    (resumed,) = samplers(LocalFirstSampler, 40, 4, 1, 1)
    resumed.load_state_dict(sampler.state_dict(6))
    resumed.set_epoch(3)
    assert resumed.state_dict()["done"] == 6
    assert list(resumed) == all_of_it[6:]
    assert list(resumed) == all_of_it, "a second pass must begin at the beginning"
    resumed.load_state_dict(sampler.state_dict(6))
    resumed.set_epoch(4)
    assert len(list(resumed)) == 10


def test_a_state_is_small_and_counts_what_was_handed_out() -> None:
    (sampler,) = samplers(LocalFirstSampler, 40, 4, 1, 1)
    batches = iter(sampler)
    assert sampler.state_dict()["done"] == 0
    next(batches), next(batches)
    assert sampler.state_dict()["done"] == 2
    assert len(json.dumps(sampler.state_dict())) < 1000
    with pytest.raises(ConfigError, match=r"^done: 11 is out of range; an epoch has 10 batches"):
        sampler.state_dict(11)


def test_states_of_something_else_are_refused() -> None:
    (sampler,) = samplers(LocalFirstSampler, 40, 4, 1, 1)
    (other,) = samplers(LocalFirstSampler, 41, 4, 1, 1)
    with pytest.raises(ConfigError, match="dataset with 40 samples, but this dataset has 41"):
        other.load_state_dict(sampler.state_dict())
    with pytest.raises(ConfigError, match="not a state of Monarch's samplers"):
        other.load_state_dict({"epoch": 1})
    right = sampler.state_dict()
    for name, value in (("done", -5), ("per_step", 0), ("seed", 1.5), ("shuffle", 1)):
        with pytest.raises(ConfigError, match=f"^state: {name} is {value}, an impossible value"):
            sampler.load_state_dict({**right, name: value})


def test_a_state_decides_on_the_orders_and_says_so(caplog: pytest.LogCaptureFixture) -> None:
    (old,) = samplers(LocalFirstSampler, 40, 4, 1, 1)
    of_numpy: Any = np.int64(3)
    new: Any = LocalFirstSampler(dataset(40), of_numpy, of_numpy, quota=2400)
    assert json.loads(json.dumps(new.state_dict(of_numpy)))["seed"] == 3
    new.load_state_dict(old.state_dict())
    assert (new.batch_size, list(new)) == (4, list(old))
    assert "the state has seed=17, but the sampler was made with 3" in caplog.text


def test_an_iteration_that_takes_no_batch_leaves_the_place() -> None:
    (old,) = samplers(LocalFirstSampler, 40, 4, 1, 1)
    (new,) = samplers(LocalFirstSampler, 40, 4, 1, 1)
    new.load_state_dict(old.state_dict(6))
    iter(new)
    assert list(new) == list(old)[6:]


def test_the_next_epoch_is_worked_out_while_one_runs() -> None:
    (sampler, _) = samplers(LocalFirstSampler, 400, 4, 2, 1)
    sampler.set_epoch(0)
    next(iter(sampler))
    ahead = sampler._ahead[1]
    sampler.set_epoch(1)
    assert next(iter(sampler)) == ahead.result().samples[:4].tolist()


def test_an_error_of_the_thread_is_raised_where_the_epoch_is_asked_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    (sampler,) = samplers(LocalFirstSampler, 40, 4, 1, 1)
    sampler.set_epoch(0)
    next(iter(sampler))
    sampler._ahead[1]._thread.join()

    def failing(number: int) -> Any:
        raise MemoryError(f"epoch {number}")

    monkeypatch.setattr(sampler, "_make", failing)
    monkeypatch.setattr("threading.excepthook", lambda _: None)
    sampler._ahead.clear()
    sampler._prepare(1)
    sampler.set_epoch(1)
    with pytest.raises(MemoryError, match="epoch 1"):
        list(sampler)


# --- the order of epochs ------------------------------------------------------------------------


def test_epoch_order_runs_every_epoch_once_and_says_what_it_saved() -> None:
    made = samplers(SolarSampler, 200, 4, 2, 1, epoch_order=True, epochs=8)
    plain = samplers(SolarSampler, 200, 4, 2, 1)
    ordered = [[whole(step) for step in steps_of(made, epoch)] for epoch in range(8)]
    given = [[whole(step) for step in steps_of(plain, epoch)] for epoch in range(8)]
    assert ordered != given and sorted(ordered) == sorted(given)
    assert 0 < vars(type(made[0]))["saved"].__get__(made[0]) < 0.2
    with pytest.raises(ConfigError, match="give epochs="):
        samplers(SolarSampler, 200, 4, 2, 1, epoch_order=True)
    with pytest.raises(ConfigError, match="epochs: 0 is out of range"):
        samplers(SolarSampler, 200, 4, 2, 1, epoch_order=True, epochs=0)


def test_epochs_keep_their_order_on_another_number_of_nodes() -> None:
    old = samplers(SolarSampler, 200, 4, 2, 1, epoch_order=True, epochs=8)
    want = [[whole(step) for step in steps_of(old, epoch)] for epoch in range(8)]
    state = json.loads(json.dumps(old[0].state_dict(0)))
    # The new samplers have one node instead of two, so the samples have other holders. The first
    # new sampler is made for another number of epochs. The second one is made without epoch_order.
    # Nevertheless, both must yield the epochs in the order that the loaded state has recorded.
    for more in ({"epochs": 5, "epoch_order": True}, {}):
        new = samplers(SolarSampler, 200, 4, 1, 1, quota=20 * SAMPLE_BYTES, **more)
        steps_of(new, 0)  # makes the sampler compute its own order first
        new[0].load_state_dict(state)
        assert [[whole(step) for step in steps_of(new, epoch)] for epoch in range(8)] == want
    with pytest.raises(ConfigError, match="load it into a SolarSampler"):
        samplers(LocalFirstSampler, 200, 4, 2, 1)[0].load_state_dict(state)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"cap": 0.5}, "cap: 0.5 is out of range"),
        ({"least": -1}, "least: -1 is out of range"),
        ({"batch_size": 0}, "batch_size: 0 is out of range"),
        ({"world_size": None}, "rank: rank and world_size belong together"),
        ({"rank": 9}, "rank: 9 is not one of 4 ranks"),
        ({"ranks_per_node": 3}, "ranks_per_node: 4 ranks are not a multiple of 3"),
        ({"quota": ["1KiB"] * 3}, "quota: got 3 quotas for 2 nodes"),
        ({"quota": 1.5}, "quota: '1.5' is a fraction of a byte"),
        ({"quota": "much"}, "quota: .*much.*; give bytes, or a size"),
        ({"holders": np.zeros(51, np.int32)}, "holders: got 51 rows for 50 samples"),
        ({"files": [("a", 1)]}, r"files: \('a', 1\) is not a path"),
    ],
)
def test_wrong_arguments_are_named(arguments: dict[str, Any], message: str) -> None:
    right = {"rank": 0, "world_size": 4, "ranks_per_node": 2, "quota": "1KiB"}
    with pytest.raises(ConfigError, match=f"^{message}"):
        SolarSampler(**{"files": dataset(50), **right, **arguments})


@pytest.mark.parametrize("kind", KINDS)
def test_one_holder_of_each_sample_is_enough(kind: type[Any]) -> None:
    holders = np.arange(50, dtype=np.int32) % 2
    made = samplers(kind, 50, 5, 2, 1, holders=holders)
    for step in steps_of(made, 0):
        assert all(
            (holders[batch] == node).all() for node, batch in enumerate(step) if len(batch) < 5
        )


# --- steps --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("steps", "want"), [(0, []), (2, [1, 2]), (3, [1, 2, 3]), (7, [1, 2, 3, 1, 2, 3, 1])]
)
def test_all_ranks_make_equally_many_steps(steps: int, want: list[int]) -> None:
    assert list(equal_steps([1, 2, 3], steps)) == want


def test_no_batch_is_taken_beyond_the_last_step() -> None:
    batches = iter([1, 2, 3])
    assert list(equal_steps(batches, 2)) == [1, 2]
    assert next(batches) == 3


def test_ranks_without_batches_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"^batches: there are none"):
        next(equal_steps([], 3))
    with pytest.raises(ConfigError, match=r"^max_steps: -1 is out of range"):
        equal_steps([1], -1)
    with pytest.raises(
        ConfigError, match=r"over them yields none, but 2 are missing; .* not an iterator"
    ):
        list(equal_steps(iter([1, 2, 3]), 5))


def test_lightning_tells_the_epoch_to_the_sampler_of_a_batch_sampler() -> None:
    told, called = (samplers(LocalFirstSampler, 40, 4, 1, 1)[0] for _ in range(2))
    told.sampler.set_epoch(2)
    called.set_epoch(2)
    assert list(told) == list(called)
