"""Each switch of the re-created NoPFS simulator changes a result.

If a switch is on, the simulator behaves like the published program. If the switch is off, it
behaves correctly."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from simulator.published_scenarios import MB, scenario

from benchmarks.published import AS_PUBLISHED, POLICIES, Behaviour, simulate
from benchmarks.published.clients import ClientLog
from benchmarks.published.holders import Holders
from benchmarks.published.inputs import Speeds, make_inputs
from benchmarks.published.orders import RawDraws
from benchmarks.published.run import Run
from monarch_py.simulator.result import Result

B = Behaviour
TINY = {"staging": 3000}  # the staging buffer holds less than a batch
ROOMY = {"ram": 400_000, "disk": 700_000}  # a node has room for the dataset
# For each published behaviour that the simulator can switch on: a policy, and the settings of a
# scenario. The result of this policy in this scenario depends on whether the behaviour is on.
CASES: dict[Behaviour, tuple[str, dict[str, Any]]] = {
    B.SHUFFLES_BEFORE_SIZES: ("perfect", {}),
    B.WHOLE_CLASS_FOR_ONE_THREAD: ("lbann-dynamic", {}),
    B.PFS_FLAT_BELOW_FIRST_POINT: ("naive", {"pfs": {3: 10 * MB, 4: 15 * MB}}),
    B.CLIENTS_OF_THE_FUTURE: ("naive", {}),
    B.CLIENTS_BY_UNSORTED_SEARCH: ("nopfs", {"pfs": {3: 10 * MB, 4: 15 * MB}}),
    B.NODES_IN_TURN: ("naive", {}),
    B.LAST_NODES_FIRST_FILL: ("locality-aware", {}),
    B.STAGING_DURING_FIRST_FILL: ("deepio-ordered", {}),
    B.BATCH_FREED_LATE: ("staging-buffer", TINY),
    B.RETURNING_FILES_TAKE_NO_ROOM: ("staging-buffer", {}),
    B.ONE_TURN_FOR_ALL: ("staging-buffer", {}),
    B.STAGES_THE_PAST: ("staging-buffer", TINY),
    B.LAST_HOLDER: ("nopfs", TINY),
    B.NOPFS_WITHOUT_PEERS: ("nopfs", {}),
    B.CLASSES_AT_ALL_CLIENTS: ("nopfs", {}),
    B.ORDERED_BY_OTHER_CLASSES: ("nopfs", {}),
    B.UNREAD_FILES_TAKE_ROOM: ("nopfs", {}),
    B.LAST_FILE_LEFT_OUT: ("nopfs", {"nodes": 1, **ROOMY}),
    B.SHARDS_LEAVE_A_REST: ("lbann-preloading", {}),
    B.LOCALITY_WITHOUT_REORDERING: ("locality-aware", {}),
    B.DEEPIO_DRAWS_AGAIN: ("deepio-opportunistic", {}),
    B.DEEPIO_FIRST_NODE_LOCAL: ("deepio-opportunistic", {}),
    B.DEEPIO_ONE_NEIGHBOUR: ("deepio-opportunistic", {}),
    B.DEEPIO_LOCAL_CHANCE: ("deepio-opportunistic", {}),
    B.STAGING_DRAWS_AGAIN: ("parallel-staging", {}),
    B.STAGING_FROM_LOWER_SHARDS: ("parallel-staging", ROOMY),
}


def without(*behaviours: Behaviour) -> frozenset[Behaviour]:
    return AS_PUBLISHED - set(behaviours)


def run(policy: str, *off: Behaviour, **changes: Any) -> Run:
    return Run(make_inputs(scenario(**changes), without(*off)), POLICIES[policy])


def outcome(policy: str, *off: Behaviour, **changes: Any) -> Result:
    result = simulate(scenario(**changes), policy, without(*off))
    assert isinstance(result, Result)
    return result


def held(of: Run, node: int) -> npt.NDArray[np.intp]:
    return np.flatnonzero(np.frombuffer(of.holders.level[node], np.uint8))


def test_all_switches_have_a_case() -> None:
    assert set(CASES) == set(Behaviour)


@pytest.mark.parametrize("behaviour", Behaviour, ids=lambda behaviour: behaviour.name.lower())
def test_no_switch_is_dead(behaviour: Behaviour) -> None:
    policy, changes = CASES[behaviour]
    on, off = outcome(policy, **changes), outcome(policy, behaviour, **changes)
    assert on.to_dict() != off.to_dict()
    assert on.to_dict() == outcome(policy, **changes).to_dict()
    for sentence in (behaviour.on, behaviour.off):
        assert sentence[0].isupper() and sentence.endswith(".")
    assert ".py" in behaviour.where


def test_sizes_do_not_change_with_the_epochs() -> None:
    def sizes(epochs: int, *off: Behaviour) -> list[float]:
        return list(make_inputs(scenario(epochs=epochs), without(*off)).sizes)

    assert sizes(2) != sizes(5)
    assert sizes(2, B.SHUFFLES_BEFORE_SIZES) == sizes(5, B.SHUFFLES_BEFORE_SIZES)


def test_a_thread_has_its_part_of_a_class() -> None:
    small = scenario()
    assert Speeds.of(small, AS_PUBLISHED).local == [500 * MB, 500 * MB, 6 * MB]
    divided = Speeds.of(small, without(B.WHOLE_CLASS_FOR_ONE_THREAD))
    assert divided.local == [250 * MB, 250 * MB, 6 * MB]
    assert divided.remote == [240 * MB, 240 * MB, 6 * MB]
    # The rate of writing, which is limited by preprocessing, does not depend on the switch.
    assert divided.write == 20 * MB


def test_few_clients_have_a_proportional_part() -> None:
    few = scenario(pfs={2: 8 * MB})
    assert Speeds.of(few, AS_PUBLISHED).pfs[1] == 8 * MB
    proportional = Speeds.of(few, without(B.PFS_FLAT_BELOW_FIRST_POINT))
    assert proportional.pfs == pytest.approx([0, 4 * MB, 4 * MB, 8 / 3 * MB, 2 * MB])


def test_clients_are_those_that_read_now() -> None:
    for off, seen_by_3, before in [((), 2, 4), ((B.CLIENTS_OF_THE_FUTURE,), 3, 1)]:
        log = ClientLog(4, without(*off))
        log.read(1, 0.95)  # within the window before the time 1.0
        log.read(2, 1.05)  # within the window after the time 1.0
        log.read(3, 7.0)  # long after the time 1.0
        log.read(3, 8.0)
        # The clients are counted at the time 1.0. The published program counts all nodes that read
        # after this time: nodes 2 and 3. Without the switch CLIENTS_OF_THE_FUTURE, `log` counts the
        # nodes that read within the window around this time: nodes 1 and 2.
        assert log.clients(1.0, 0) == 3
        assert log.clients(1.0, 3) == seen_by_3
        assert log.clients(0.0, 0) == before


def test_reads_are_found_in_the_order_of_time() -> None:
    for off, clients in [((), 1), ((B.CLIENTS_BY_UNSORTED_SEARCH,), 2)]:
        log = ClientLog(2, without(*off))
        log.prefetch_many(1, [2.0, 0.1, 0.2, 0.3])
        log.prefetch(1, 0.95)
        # Node 1's list of read times is not sorted: 2.0 0.1 0.2 0.3 0.95. The published program
        # searches it for a read after the time 1.0 with a binary search. The search visits 0.2 and
        # 0.95, so it misses the read at 2.0.
        assert log.clients(1.0, 0) == clients


def test_nodes_that_do_the_same_take_the_same_time() -> None:
    both = (B.NODES_IN_TURN, B.CLIENTS_OF_THE_FUTURE)
    changes = {"size": 1000.0, "epochs": 1}
    in_turn = outcome("naive", B.CLIENTS_OF_THE_FUTURE, **changes)
    assert in_turn.imbalanced_iterations > 0.05
    together = outcome("naive", *both, **changes)
    # Except for the first reads, four nodes always read at the same time.
    pfs, (compute, preprocess) = 15 * MB / 4, (6 * MB, 20 * MB)
    samples = 18 * 8
    seconds = samples * 1000 * (1 / pfs + 1 / compute + 1 / preprocess)
    assert together.total_seconds == pytest.approx(seconds, rel=2e-3)
    assert together.imbalanced_iterations < 0.06


NOTHING_OR_LAST: list[tuple[Behaviour, ...]] = [(), (B.LAST_NODES_FIRST_FILL,)]


def test_training_waits_for_the_slowest_fill() -> None:
    last, slowest = (run("lbann-preloading", *off) for off in NOTHING_OR_LAST)
    # The log contains only the reads with which the nodes first fill their caches, because
    # afterwards this policy reads only from the caches.
    ends = [max(times) for times in slowest.log.prefetches]
    assert slowest.first_fill == max(ends)
    assert last.first_fill == ends[-1] < max(ends)


def test_staging_begins_when_the_caches_are_full() -> None:
    early, late = run("deepio-ordered"), run("deepio-ordered", B.STAGING_DURING_FIRST_FILL)
    assert min(early.staging.buffers[0].ready) < early.first_fill
    assert all(min(buffer.ready) > late.first_fill for buffer in late.staging.buffers)


def test_room_is_free_once_a_sample_was_read() -> None:
    waits = outcome("staging-buffer", **TINY)
    off = (B.BATCH_FREED_LATE, B.STAGES_THE_PAST, B.RETURNING_FILES_TAKE_NO_ROOM)
    flows = outcome("staging-buffer", *off, **TINY)
    # If the room of a sample is freed late, most samples of a batch find no room in the staging
    # buffer. If it is freed at once, room for three samples is enough to stage nearly all samples.
    assert waits.details["direct"] > 0.5
    assert flows.details["direct"] < 0.1


def test_returning_files_take_room() -> None:
    published = run("staging-buffer")
    published.result()
    assert min(buffer.used for buffer in published.staging.buffers) < -50_000
    right = run("staging-buffer", B.RETURNING_FILES_TAKE_NO_ROOM)
    right.result()
    for buffer in right.staging.buffers:
        assert 0 < buffer.used < 20_000


def test_every_node_counts_its_own_turns() -> None:
    assert [b.turn for b in run("staging-buffer").staging.buffers[1:]] == [0, 0, 0]
    for buffer in run("staging-buffer", B.ONE_TURN_FOR_ALL).staging.buffers:
        assert buffer.turn == buffer.ahead % 2


def test_nothing_is_staged_after_it_was_read() -> None:
    for off, is_stuck in [((), True), ((B.STAGES_THE_PAST,), False)]:
        small = run("staging-buffer", *off, **TINY)
        small.result()
        behind = [b.ahead < len(b.order) - 32 for b in small.staging.buffers]
        # Samples that are staged too late are never freed, so the buffer fills up.
        assert any(behind) == is_stuck


def test_the_fastest_holder_is_asked() -> None:
    for off, asked, asked_now in [((), 3, 2), ((B.LAST_HOLDER,), 1, 2)]:
        holders = Holders(4, 10, [0.0, 200.0, 10.0], without(*off))
        file = np.array([7], np.int32)
        holders.hold(3, file, 2, 9.0)
        holders.hold(1, file, 1, 5.0)
        holders.hold(2, file, 2, 1.0)
        assert holders.elsewhere(0, 7) == asked
        assert holders.elsewhere_now(0, 7, 2.0) == asked_now
        assert holders.elsewhere(0, 8) == holders.elsewhere_now(0, 7, 0.5) == -1
        # Node 0 asks the node `asked`. That node itself would ask node 2 for the file.
        assert holders.elsewhere(asked, 7) == 2


def test_nopfs_reads_from_peers() -> None:
    assert outcome("nopfs").share["remote"] == 0
    with_peers = outcome("nopfs", B.NOPFS_WITHOUT_PEERS)
    assert with_peers.share["remote"] > 0.1
    assert with_peers.share["pfs"] < outcome("nopfs").share["pfs"]


def test_class_prefetchers_share_the_pfs_with_who_is_there() -> None:
    first = run("nopfs", B.CLASSES_AT_ALL_CLIENTS, size=1000.0)
    published = run("nopfs", size=1000.0)
    alone, shared = 1000 / (3 * MB) + 1000 / (20 * MB), 1000 / (15 * MB / 4) + 1000 / (20 * MB)
    # Node 0 fetches its first file before any other node has logged a read. Without the switch
    # CLASSES_AT_ALL_CLIENTS, node 0 is then the only client. In the published program, all nodes
    # count as clients.
    assert min(t for t in first.holders.since[0] if t) == pytest.approx(alone)
    assert min(t for t in published.holders.since[0] if t) == pytest.approx(shared)


def test_a_class_is_filled_in_the_order_of_first_use() -> None:
    for off, is_in_order in [((), False), ((B.ORDERED_BY_OTHER_CLASSES,), True)]:
        one = run("nopfs", *off)
        reads = one.inputs.orders[0].tolist()
        files = np.flatnonzero(np.frombuffer(one.holders.level[0], np.uint8) == 2)
        times = np.frombuffer(one.holders.since[0])[files]
        first = [reads.index(f) if f in reads else len(reads) for f in files[np.argsort(times)]]
        assert (first == sorted(first)) == is_in_order


def test_nodes_place_what_they_read() -> None:
    for off, is_read in [((), False), ((B.UNREAD_FILES_TAKE_ROOM,), True)]:
        one = run("nopfs", *off, **ROOMY)
        reads = set(one.inputs.orders[1].tolist())
        assert (set(held(one, 1).tolist()) <= reads) == is_read


def test_the_last_file_is_placed() -> None:
    changes = {"nodes": 1, **ROOMY}
    assert len(held(run("nopfs", **changes), 0)) == 602
    assert len(held(run("nopfs", B.LAST_FILE_LEFT_OUT, **changes), 0)) == 603


@pytest.mark.parametrize("policy", ["lbann-preloading", "locality-aware", "parallel-staging"])
def test_shards_cover_the_dataset(policy: str) -> None:
    def covered(*off: Behaviour) -> int:
        one = run(policy, *off)
        return len(set(np.concatenate([held(one, node) for node in range(4)]).tolist()))

    assert (covered(), covered(B.SHARDS_LEAVE_A_REST)) == (600, 603)


def test_locality_aware_exchanges_within_a_batch() -> None:
    plain = make_inputs(scenario(), AS_PUBLISHED).orders
    dealt = run("locality-aware", B.LOCALITY_WITHOUT_REORDERING).inputs.orders
    for begin in range(0, len(plain[0]), 8):
        batch, other = ([order[begin : begin + 8] for order in orders] for orders in (plain, dealt))
        assert sorted(np.concatenate(batch)) == sorted(np.concatenate(other))
    assert outcome("locality-aware").share["local"] < 0.3
    assert outcome("locality-aware", B.LOCALITY_WITHOUT_REORDERING).share["local"] > 0.8


def draws_of_epochs(one: Run, files: npt.NDArray[np.intp]) -> list[npt.NDArray[np.intp]]:
    """Returns, for each epoch, how often all nodes together read each of `files`."""
    per_epoch = [np.split(order, 3) for order in one.inputs.orders]
    return [
        np.bincount(np.concatenate([order[epoch] for order in per_epoch]), minlength=603)[files]
        for epoch in range(3)
    ]


def test_deepio_uses_a_shard_up_before_it_begins_again() -> None:
    for off, spread in [((), 3), ((B.DEEPIO_DRAWS_AGAIN,), 1)]:
        one = run("deepio-opportunistic", *off)
        counts = draws_of_epochs(one, held(one, 0))
        assert min(np.ptp(count) for count in counts) >= (2 if not off else 0)
        assert max(np.ptp(count) for count in counts) >= spread
        assert not off or max(np.ptp(count) for count in counts) == 1


def test_the_first_node_of_deepio_is_as_the_others() -> None:
    def far(*off: Behaviour) -> float:
        one = run("deepio-opportunistic", *off)
        return float(np.mean(one.inputs.orders[0] >= 150))

    assert far() == 0
    assert far(B.DEEPIO_FIRST_NODE_LOCAL) == pytest.approx(2 / 3, abs=0.06)


def test_deepio_draws_from_every_other_node() -> None:
    def owners(*off: Behaviour) -> list[int]:
        one = run("deepio-opportunistic", *off)
        return sorted(set(np.minimum(one.inputs.orders[2] // 150, 3).tolist()))

    assert (owners(), owners(B.DEEPIO_ONE_NEIGHBOUR)) == ([1, 2], [0, 1, 2, 3])


def test_the_local_chance_of_deepio() -> None:
    def near(*off: Behaviour) -> float:
        one = run("deepio-opportunistic", *off, epochs=30)
        return float(np.mean(one.inputs.orders[1] // 150 == 1))

    assert near() == pytest.approx(1 / 3, abs=0.03)
    assert near(B.DEEPIO_LOCAL_CHANCE) == pytest.approx(1 / 4, abs=0.03)


def test_parallel_staging_reads_a_file_once_an_epoch() -> None:
    for off, most in [((), 2), ((B.STAGING_DRAWS_AGAIN,), 1)]:
        one = run("parallel-staging", *off)
        counts = np.max(draws_of_epochs(one, held(one, 0)))
        assert counts >= most if not off else counts == 1


NOTHING_OR_UPPER: list[tuple[Behaviour, ...]] = [(), (B.STAGING_FROM_LOWER_SHARDS,)]


def test_parallel_staging_copies_whatever_there_is_room_for() -> None:
    published, right = (run("parallel-staging", *off, **ROOMY) for off in NOTHING_OR_UPPER)
    assert [len(held(published, node)) for node in range(4)] == [150, 300, 450, 600]
    assert [len(held(right, node)) for node in range(4)] == [603] * 4


@pytest.mark.parametrize("seed", [0, 1, 42])
def test_draws_are_those_of_randint(seed: int) -> None:
    state = np.random.RandomState(seed)
    state.standard_normal(7)
    draws = RawDraws(state)
    ranges = np.random.RandomState(99).randint(0, 10_000, (5000, 2))
    for low, width in ranges.tolist():
        high = low + 1 + width % (1 + low)
        assert draws.between(low, high) == state.randint(low, high)
    with pytest.raises(ValueError, match="no number"):
        draws.between(5, 5)
