"""The machine of the simulation: cases worked out by hand, and what no machine can do."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from simulator.machine import FAST, Machine, job, run, scenario
from simulator.model import NONE, Places, fetch_seconds
from support.draws import examples

from monarch_py.policies.named import POLICIES
from monarch_py.policies.view import NO_FILE, PFS, Copies, Decision, Ints, Job, Served, When
from monarch_py.simulator.engine import measure, simulate
from monarch_py.simulator.jobs import job_of
from monarch_py.simulator.result import PLACES
from monarch_py.simulator.scenario import (
    LINKS,
    Checkpoint,
    Curve,
    NodeOverride,
    Scenario,
    StorageClass,
)

DEMAND = Decision(staging=False)
STAGED = Decision()
STAGING, LOCAL, REMOTE, FROM_PFS = range(len(PLACES))


def test_without_prefetching_reading_and_computing_take_turns() -> None:
    """Four samples of 10 bytes: each is 1 s on its way and 2 s in compute."""
    measured = run(Machine({1: 10}, compute=5), [10] * 4, [[[[0, 1], [2, 3]]]], DEMAND)
    assert measured.epoch_end.tolist() == pytest.approx([12])
    assert measured.stall.tolist() == pytest.approx([4])
    assert measured.ready.tolist() == [0]


def test_with_prefetching_only_the_first_sample_is_waited_for() -> None:
    """The samples are there at 1, 2, 3, 4 s, and are used at 1, 3, 5, 7 s."""
    measured = run(Machine({1: 10}, compute=5), [10] * 4, [[[[0, 1], [2, 3]]]], STAGED)
    assert measured.epoch_end.tolist() == pytest.approx([9])
    assert measured.stall.tolist() == pytest.approx([1])
    assert measured.ready.tolist() == [3]


@pytest.mark.parametrize(("staging", "end"), [(60, 13), (30, 14)])
def test_a_sample_waits_for_room_in_the_staging_buffer(staging: int, end: int) -> None:
    """Sizes 10, 10, 10, 30. With room for all they are there at 1, 2, 3, 6 s and the last is used
    from 7 to 13 s. In 30 bytes the last has room when the third leaves, at 5 s; it is there at 8.
    """
    machine = Machine({1: 10}, compute=5, staging=staging)
    measured = run(machine, [10, 10, 10, 30], [[[[0, 1, 2, 3]]]], STAGED)
    assert measured.epoch_end.tolist() == pytest.approx([end])


def test_a_sample_larger_than_the_staging_buffer_goes_through_alone() -> None:
    machine = Machine({1: 10}, compute=10, staging=15)
    measured = run(machine, [10, 40, 10], [[[[0, 1, 2]]]], STAGED)
    # 0: there at 1; 1: from 1 to 5, used until 9; 2: from 5, there at 6, used from 9 to 10.
    assert measured.epoch_end.tolist() == pytest.approx([10])


@pytest.mark.parametrize("epochs", [2, 3, 4, 8])
@pytest.mark.parametrize("seed", range(6))
def test_the_staging_buffer_has_the_same_room_in_every_epoch(epochs: int, seed: int) -> None:
    """A node that is alone waits for nobody at the end of an epoch, so the job takes as long as one
    epoch with all the samples."""
    samples = np.arange(8 * epochs)
    sizes = np.random.default_rng(seed).integers(10, 60, len(samples)).tolist()
    machine = Machine({1: 10}, compute=8, staging=60)
    parts = run(machine, sizes, samples.reshape(epochs, 1, 8, 1).tolist(), STAGED)
    whole = run(machine, sizes, samples.reshape(1, 1, -1, 1).tolist(), STAGED)
    assert parts.epoch_end[-1] == pytest.approx(whole.epoch_end[0])


def test_all_nodes_share_the_file_system_and_meet_after_each_step() -> None:
    """Two nodes at 10 bytes/s together, samples of 10 and 20 bytes: the first is there after 2 s,
    and the second, alone from then on, after 3; they are computed after 4 and 7 s, and the second
    step begins at 7 s."""
    order = [[[[0], [2]], [[1], [3]]]]
    measured = run(Machine({1: 10, 2: 10}, compute=5), [10, 20, 10, 20], order, DEMAND)
    assert measured.epoch_end.tolist() == pytest.approx([14])
    assert measured.stall.tolist() == pytest.approx([4, 6])
    # 7 s for the slower of a step is more than 1.1 times 4 s.
    assert measured.imbalanced.tolist() == [2]


def test_a_node_alone_gets_what_one_client_gets() -> None:
    """The file system gives 10 bytes/s to one and 12 to two. Node 1 has a byte, which is there
    after 1/6 s; node 0 has 9 of its 10 bytes left then, and needs 0.9 s for them."""
    machine = Machine({1: 10, 2: 12})
    measured = run(machine, [10, 1], [[[[0]], [[1]]]], DEMAND)
    assert measured.epoch_end[0] == pytest.approx(1 / 6 + 0.9)


@pytest.mark.parametrize(
    ("pfs", "from_where", "end"), [(True, FROM_PFS, 1), (False, REMOTE, 2), (False, LOCAL, 4)]
)
def test_each_sample_comes_from_the_fastest_place(pfs: bool, from_where: int, end: int) -> None:
    """10 bytes: from the file system 1 s, over the link 2 s, from the own class 4 s."""
    machine = Machine({1: 10, 2: 20}, network=5, cache_rate=2.5 if from_where == LOCAL else FAST)
    holder = 0 if from_where == LOCAL else 1
    decision = Decision(
        staging=False,
        copies=Copies.of([(holder, 1, np.array([0]))]),
        when=When.BEFORE,
        remote=True,
        pfs=pfs,
    )
    # The other node reads a file of no size to be there.
    measured = run(machine, [10, 0], [[[[0]], [[1]]]], decision)
    assert measured.epoch_end[0] - measured.first_step == pytest.approx(end)
    assert measured.node_bytes[0, from_where] == 10


@pytest.mark.parametrize("here", [0, 1, 2])
@pytest.mark.parametrize("there", [0, 1, 2])
@pytest.mark.parametrize("pfs", [30.0, 60.0, 90.0])
@pytest.mark.parametrize("links", LINKS)
def test_an_idle_machine_is_the_performance_model(
    here: int, there: int, pfs: float, links: str
) -> None:
    """A copy in one of two classes, or in none, of either node, and one client of the file system:
    the machine takes as long as the least of the model's times (NoPFS 4), from that place."""

    def storage(name: str, threads: int, rate: float) -> StorageClass:
        curve = Curve({threads: rate})
        return StorageClass(name, 1000, threads, curve, curve)

    of = scenario(Machine({1: pfs}, network=80, links=links), nodes=2, epochs=1, batch=1, files=2)
    of = replace(of, classes=(of.staging, storage("ram", 4, 400), storage("ssd", 2, 100)))
    work = job(of, [60, 0], [[[[0]], [[1]]]])
    rows = [(node, cls, np.array([0])) for node, cls in ((0, here), (1, there)) if cls]
    decision = Decision(staging=False, copies=Copies.of(rows), when=When.BEFORE, remote=True)
    measured = measure(of, work, decision)
    places = Places(*(np.array([each or NONE]) for each in (here, 1, there)))
    seconds = fetch_seconds(work.cluster, 0, np.array([60]), places, 1)[0]
    assert measured.epoch_end[0] - measured.first_step == pytest.approx(seconds.min())
    chosen = (LOCAL, REMOTE, FROM_PFS)[int(seconds.argmin())]
    assert measured.node_bytes[0].nonzero()[0].tolist() == [chosen]


@pytest.mark.parametrize(("links", "stalls"), [("in_order", [6, 9]), ("fair", [9, 6])])
def test_transfers_share_a_link_or_take_turns(links: str, stalls: list[float]) -> None:
    """Node 0 sends 6 bytes to node 1 and 3 to node 2, at 1 byte/s. One after the other they are
    there after 6 and 9 s. Together each gets half of the link until the 3 bytes are there, after
    6 s; of the others 3 are left then, and come in 3 s."""
    decision = Decision(
        staging=False,
        copies=Copies.of([(0, 1, np.array([0, 1]))]),
        when=When.BEFORE,
        remote=True,
        pfs=False,
    )
    machine = Machine({1: FAST}, network=1, links=links)
    measured = run(machine, [6, 3, 0], [[[[2]], [[0]], [[1]]]], decision)
    assert measured.stall.tolist() == pytest.approx([0, *stalls])


def test_what_others_leave_of_a_link_is_used() -> None:
    """Max-min: three transfers of 1 byte from node 0 get a third of its link each, for 3 s. One of
    them comes to node 1, whose link leaves two thirds for 3 bytes from node 4: 2 of them in these
    3 s, and the last one in 1 s more."""
    copies = [(0, 1, np.array([0, 1, 2, 4, 5])), (4, 1, np.array([3, 6, 7]))]
    decision = Decision(copies=Copies.of(copies), when=When.BEFORE, remote=True, pfs=False)
    machine = Machine({1: FAST}, network=1, links="fair", staging_threads=2)
    order = [[[[4, 5]], [[0, 3]], [[1, 4]], [[2, 5]], [[6, 7]]]]
    measured = run(machine, [1, 1, 1, 3, 0, 0, 0, 0], order, decision)
    assert measured.epoch_end[0] - measured.first_step == pytest.approx(4)


def test_an_owner_sends_on_over_shared_links() -> None:
    """Node 0 reads 4 bytes at 4 bytes/s, which are on their way to both others when they are there,
    after 1 s. Each gets half of the link of 1 byte/s."""
    owner = np.zeros(2, np.int32)
    decision = Decision(staging=False, owner=owner, remote=True)
    machine = Machine({1: 4}, network=1, links="fair")
    measured = run(machine, [4, 0], [[[[1]], [[0]], [[0]]]], decision)
    assert measured.epoch_end[0] == pytest.approx(9)


@pytest.mark.parametrize(("due", "from_where"), [(0, REMOTE), (1, FROM_PFS)])
def test_nobody_asks_for_a_copy_before_it_is_due(due: int, from_where: int) -> None:
    """Node 1 has the file from the beginning. Node 0 needs it at its access 1, and believes it to
    be there if node 1 was to have it by access 0."""
    decision = Decision(
        copies=Copies.of([(1, 1, np.array([0]))]),
        when=When.BEFORE,
        remote=True,
        due=np.array([due]),
        pfs=False,
    )
    measured = run(Machine({1: 10}), [10, 0], [[[[1, 0]], [[1, 1]]]], decision)
    assert measured.node_bytes[0, from_where] == 10


def test_copies_made_before_training_delay_it() -> None:
    """Two files of 10 bytes at 10 bytes/s: training begins after 2 s, and reads from the class."""
    decision = Decision(copies=Copies.of([(0, 1, np.array([0, 1]))]), when=When.BEFORE)
    measured = run(Machine({1: 10}, compute=10), [10, 10], [[[[0, 1]]]] * 2, decision)
    assert measured.first_step == pytest.approx(2)
    assert measured.epoch_end.tolist() == pytest.approx([4, 6])
    assert measured.filled.tolist() == [20]
    assert measured.bytes.sum(axis=0).tolist() == [0, 40, 0, 0]
    assert measured.reused.tolist() == [20, 20]


def test_a_read_keeps_what_has_a_place() -> None:
    """One of two files has a place: in the second epoch it is local."""
    decision = Decision(copies=Copies.of([(0, 1, np.array([1]))]), when=When.ON_USE)
    measured = run(Machine({1: 10}), [10, 10], [[[[0, 1]]], [[[1, 0]]]], decision)
    assert measured.bytes.tolist() == [[0, 0, 0, 20], [0, 10, 0, 10]]
    assert measured.reused.tolist() == [0, 10]
    assert measured.epoch_end.tolist() == pytest.approx([2, 3])


def test_copies_made_beside_training_wait_for_the_readers() -> None:
    """File 1 is to be copied; the reader of file 0 comes first at the file system, and then the
    reader waits 30 s in compute, in which the copy is made."""
    decision = Decision(staging=False, copies=Copies.of([(0, 1, np.array([1]))]))
    measured = run(Machine({1: 10}, compute=1 / 3), [10, 10], [[[[0], [1]]]], decision)
    # 1 s to read, 30 s of compute, nothing to read file 1 from the class, 30 s of compute.
    assert measured.epoch_end.tolist() == pytest.approx([61])
    assert measured.bytes[0].tolist() == [0, 10, 0, 10]
    assert measured.filled.tolist() == [10]


def test_an_owner_reads_for_all() -> None:
    """Both nodes want file 0 (10 bytes), which node 0 alone reads: it is there after 1 s, and 2 s
    later over the link to node 1, for which 20 bytes of the file system would take 2 s in all. In
    the second epoch node 1 has it after 2 s, from node 0's copy."""
    decision = Decision(
        staging=False,
        copies=Copies.of([(0, 1, np.array([0]))]),
        when=When.ON_USE,
        remote=True,
        owner=np.array([0], np.int32),
        pfs=False,
    )
    measured = run(Machine({1: 10}, network=5), [10], [[[[0]], [[0]]]] * 2, decision)
    assert measured.epoch_end.tolist() == pytest.approx([3, 5])
    assert measured.pfs_bytes.tolist() == [10, 0]
    assert measured.bytes.tolist() == [[0, 0, 10, 10], [0, 10, 10, 0]]
    assert measured.reused.tolist() == [0, 10]


def test_an_owner_reads_for_another_what_it_does_not_want_itself() -> None:
    """And keeps it: file 0 is node 1's first sample, and node 0's in the second epoch."""
    decision = Decision(
        staging=False,
        copies=Copies.of([(0, 1, np.array([0]))]),
        when=When.ON_USE,
        remote=True,
        owner=np.array([0, PFS], np.int32),
        pfs=False,
    )
    machine = Machine({1: 10}, network=5)
    measured = run(machine, [10, 0], [[[[1]], [[0]]], [[[0]], [[1]]]], decision)
    # 1 s at the file system and 2 s over the link.
    assert measured.epoch_end.tolist() == pytest.approx([3, 3])
    assert measured.filled.tolist() == [10, 0]
    assert measured.node_bytes[:, [LOCAL, REMOTE]].tolist() == [[10, 0], [0, 10]]


def test_a_read_for_two_samples_is_counted_once() -> None:
    """Node 0 prefetches file 0 for both epochs: the second sample comes with the first one."""
    decision = Decision(owner=np.array([0], np.int32), pfs=False)
    machine = Machine({1: 10}, staging_threads=2)
    measured = run(machine, [10], [[[[0]]]] * 2, decision)
    assert measured.pfs_bytes.tolist() == [10, 0]
    assert measured.bytes.tolist() == [[0, 0, 0, 10], [10, 0, 0, 0]]
    assert measured.filled.tolist() == [0]


def test_a_read_that_nobody_waited_for_is_hurried_when_somebody_does() -> None:
    """Two nodes at 10 bytes/s each, files of 10 bytes but the last, which has none. Node 0 reads
    file 0 and then 3 to 12, and its class's thread is to copy file 1 when nobody waits. Node 1 has
    file 2 after 1 s and wants file 1 then: it is read behind file 3, which is under way from 1 to 2
    s, and there at 3 s. In all it has waited for 1 and 2 s; without hurry it were 1 and 11 s."""
    order = [[[[0], *([i] for i in range(3, 13))], [[2], [1], *([13] for _ in range(9))]]]
    decision = Decision(
        copies=Copies.of([(0, 1, np.array([1]))]),
        remote=True,
        owner=np.array([PFS, 0, *[PFS] * 12], np.int32),
        pfs=False,
    )
    measured = run(Machine({1: 10, 2: 20}), [10] * 13 + [0], order, decision)
    assert measured.stall[1] == pytest.approx(3)
    assert measured.pfs_bytes.tolist() == [130]
    assert measured.filled.tolist() == [10, 0]


def test_what_a_policy_says_is_served_is_served() -> None:
    none = np.zeros((1, 2), np.int8)
    served = Served(
        np.array([[PFS, 0]], np.int32), np.ones((1, 2), np.int8), none, none, np.array([[5, 5]])
    )
    decision = Decision(served=lambda epoch, order: served)
    measured = run(Machine({1: 10}, cache_rate=1), [10, 10], [[[[0, 1]]]], decision)
    assert measured.bytes[0].tolist() == [0, 10, 0, 10]
    assert measured.filled.tolist() == [5]  # redundant ones, only with what is read
    assert measured.epoch_end.tolist() == pytest.approx([11.5])


@pytest.mark.parametrize(("into", "end"), [(0, 11), (1, 21)])
def test_what_comes_into_a_class_takes_its_time(into: int, end: int) -> None:
    """Sample 0 comes from the file system after 1 s. If its 10 bytes go into the class, of 1
    byte/s, that takes until 11 s, and only then sample 1 is read there for 10 s."""
    places = np.array([[into, 0]], np.int8)
    served = Served(np.array([[PFS, 0]], np.int32), np.ones((1, 2), np.int8), places, places)
    decision = Decision(served=lambda epoch, order: served)
    measured = run(Machine({1: 10}, cache_rate=1), [10, 10], [[[[0, 1]]]], decision)
    assert measured.epoch_end.tolist() == pytest.approx([end])


@pytest.mark.parametrize(("into", "end"), [(0, 1), (1, 3)])
def test_a_miss_that_is_kept_goes_through_its_owner(into: int, end: int) -> None:
    """Node 0 misses a file of 10 bytes that belongs to node 1, at 10 bytes/s. If it is kept there
    it comes by the link of 5 bytes/s, else straight."""
    places = np.array([[into], [0]], np.int8)
    holder = np.array([[PFS], [1]], np.int32)
    served = Served(holder, np.ones((2, 1), np.int8), places, places)
    owner = np.array([1, 1], np.int32)
    decision = Decision(served=lambda epoch, order: served, owner=owner, remote=True)
    measured = run(Machine({1: 10}, network=5), [10, 0], [[[[0]], [[1]]]], decision)
    assert measured.epoch_end.tolist() == pytest.approx([end])
    assert measured.node_bytes[0, REMOTE if into else FROM_PFS] == 10
    assert measured.filled.tolist() == [0, 10 if into else 0]


def test_a_node_may_take_fewer_samples_in_a_step() -> None:
    """Node 0 takes three samples, node 1 one; what is no file takes no time, and is not counted."""
    order = [[[[0, 1, 2]], [[3, -1, -1]]]]
    measured = run(Machine({1: 10, 2: 20}, compute=10), [10] * 4, order, DEMAND)
    assert measured.epoch_end.tolist() == pytest.approx([6])
    assert measured.compute.tolist() == pytest.approx([3, 1])
    assert measured.bytes[0].sum() == 40
    assert measured.ready.tolist() == [0]


def in_every_step(threads: list[int], epoch: int, order: Ints) -> npt.NDArray[np.int32]:
    return np.full((*order.shape[:2], len(threads)), threads, np.int32)


def test_two_ranks_of_a_node_share_its_threads() -> None:
    """Rank 0 has two samples of 30 bytes, rank 1 of 10, and a thread prepares 10 bytes/s. With a
    thread of its own rank 0 has its samples after 3 and 6 s. If rank 0 should have two threads of
    three, the first one goes there, and so does the second: one of two and one of one leave as much
    of a thread missing, and rank 0 comes first. After 3 s both go on with rank 1's samples, which
    are there at 4 s. If rank 1 should have two of three, it has its samples first, at 1 s, and rank
    0 after 4 s."""
    machine = Machine({1: FAST}, preprocess=10, staging_threads=2)
    order = [[[[0, 1, 2, 3]]]]
    for threads, ends in (([], [6, 2]), ([2, 1], [3, 4]), ([1, 3], [4, 1])):
        shared = partial(in_every_step, threads)
        decision = Decision(threads=shared if threads else None)
        measured = run(machine, [30, 30, 10, 10], order, decision, ranks=2)
        assert measured.stall.tolist() == pytest.approx(ends)
        assert measured.bytes[0, FROM_PFS] == 80


def test_a_thread_that_sleeps_wakes_for_room_that_another_rank_makes() -> None:
    """Each of two ranks has 30 bytes of the buffer, a thread prepares 10 bytes/s. Rank 0's first
    sample fills its part, and is read for 100 s from the class by the first of three threads. Rank
    1's first sample fills the other part, and is read for 3 s from the file system by the second.
    So the third has nothing to do until 100 s, or until rank 1 takes its sample, at 6 s. Then two
    threads read 10 bytes each until 7 and 8 s and prepare them until 8 and 9 s, and the first to be
    free the last 10 bytes, until 9 and 10 s. Rank 1 waits until 6 s, computes for 0.75 s, waits for
    1.25 s, and twice computes for 0.25 and waits for 0.75 s."""
    machine = Machine({1: 10}, compute=40, staging=60, staging_threads=3, preprocess=10)
    machine = replace(machine, cache_rate=0.3)
    decision = Decision(
        copies=Copies.of([(0, 1, np.array([0]))]),
        when=When.BEFORE,
        pfs=False,
        threads=partial(in_every_step, [1, 1]),
    )
    sizes = [30, 30, 0, 0, 30, 10, 10, 10]
    measured = run(machine, sizes, [[[list(range(8))]]], decision, ranks=2)
    assert measured.stall[1] == pytest.approx(6 + 1.25 + 2 * 0.75)


def test_a_rank_for_which_there_is_no_thread_loads_by_itself() -> None:
    """One thread that prepares 10 bytes/s, and four ranks with 40 bytes each: a staging buffer with
    fewer threads than ranks is no slower than none."""
    machine = Machine({1: FAST}, preprocess=10, staging_threads=1)
    measured = run(machine, [40] * 4, [[[[0, 1, 2, 3]]]], STAGED, ranks=4)
    assert measured.epoch_end[0] == pytest.approx(4)


def test_a_slow_link_bounds_copies_and_checkpoints_too() -> None:
    """10 bytes/s at the file system, 1 on the way: two copies of 10 bytes take 20 s, and a
    checkpoint of 20 bytes takes 20."""
    of = scenario(Machine({1: 10}), nodes=1, epochs=1, batch=2, files=2)
    of = replace(of, rates=replace(of.rates, pfs_link=1.0))
    work = job(of, [10, 10], [[[[0, 1]]]])
    before = Decision(copies=Copies.of([(0, 1, np.array([0, 1]))]), when=When.BEFORE)
    assert measure(of, work, before).first_step == pytest.approx(20)
    of = replace(of, checkpoint=Checkpoint(every=1, size_bytes=20))
    assert measure(of, work, Decision(free=True)).epoch_end[0] == pytest.approx(20)


def test_a_copy_that_is_on_its_way_holds_nobody_up() -> None:
    """A remote sample comes over a link of 1 byte/s and is kept, which takes its class 0.1 s, from
    when it was asked for: a local sample of the other rank does not wait for it."""
    machine = Machine({1: 10, 2: 20}, network=1, cache_rate=100, staging_threads=2)
    copies = Copies.of([(1, 1, np.array([0])), (0, 1, np.array([1, 0]))])
    # Node 0: rank 0 reads 0, which node 1 has, rank 1 reads 1.
    order = [[[[1, 1]], [[0, 2]]], [[[0, 1]], [[2, 2]]]]
    decision = Decision(copies=copies, when=When.ON_USE, remote=True, pfs=False)
    measured = run(machine, [10, 10, 10], order, decision, ranks=2)
    assert measured.bytes[1, REMOTE] == 10
    assert measured.stall[1] < 5


def test_a_checkpoint_stops_everybody_and_takes_the_file_system() -> None:
    of = scenario(Machine({1: 10, 2: 20}, compute=5), nodes=2, epochs=1, batch=1, files=4)
    of = replace(of, checkpoint=Checkpoint(every=1, size_bytes=40))
    with_it = measure(of, job(of, [10] * 4, [[[[0], [1]], [[2], [3]]]]), Decision(free=True))
    # 2 s of compute and 80 bytes at 20 bytes/s, twice.
    assert with_it.epoch_end.tolist() == pytest.approx([12])


def test_a_checkpoint_comes_before_reads_that_are_queued() -> None:
    """One node at 10 bytes/s; samples of 10, 30, 10, 10 bytes, a second of compute for 10 bytes, a
    checkpoint of 20 bytes after each step of one. The first sample is there at 1 s and computed at
    2, when the second is under way until 4 and the third waits: the checkpoint goes before it, from
    4 to 6. Then 3 s of compute; the third and fourth have come at 7 and 8. So the second checkpoint
    is written from 9 to 11, the third from 12 to 14, the last from 15 to 17."""
    of = scenario(
        Machine({1: 10}, compute=10, staging_threads=2), nodes=1, epochs=1, batch=1, files=4
    )
    of = replace(of, checkpoint=Checkpoint(every=1, size_bytes=20))
    work = job(of, [10, 30, 10, 10], [[[[0], [1], [2], [3]]]])
    assert measure(of, work, STAGED).epoch_end.tolist() == pytest.approx([17])


def test_nodes_may_have_different_numbers_of_ranks() -> None:
    """Node 0 has two ranks, which compute 10 and 20 bytes at 5 bytes/s, node 1 has one with 30. A
    checkpoint of each rank's 10 bytes at 30 bytes/s takes a second."""
    of = scenario(Machine({1: 30, 2: 30}, compute=5), nodes=2, ranks=2, epochs=1, batch=1, files=3)
    of = replace(of, overrides=(NodeOverride((1,), ranks=1),), checkpoint=Checkpoint(1, 10))
    work = job(of, [10, 20, 30], [[[[0, 1]], [[2, NO_FILE]]]])
    measured = measure(of, work, Decision(free=True))
    # Node 0 writes its 20 bytes at 15 bytes/s while node 1 does, and ends alone: 1 s for all 30.
    assert measured.epoch_end.tolist() == pytest.approx([7])
    assert measured.compute.tolist() == pytest.approx([2, 4, 6])
    assert measured.stall.tolist() == pytest.approx([0, 0, 0])
    assert measured.ready.tolist() == [3]


def test_samples_are_dealt_to_the_ranks_that_there_are() -> None:
    """Ranks 2, 1 and 3 with batches of 2: twelve samples a step, each once in an epoch."""
    of = scenario(Machine({1: 10}), nodes=3, ranks=2, epochs=2, batch=2, files=36)
    of = replace(of, overrides=(NodeOverride((1,), ranks=1), NodeOverride((2,), ranks=3)))
    order = job_of(of).orders(1)
    assert order.shape == (3, 3, 6)
    assert np.count_nonzero(order != NO_FILE, axis=2).tolist() == [[4] * 3, [2] * 3, [6] * 3]
    assert sorted(order[order != NO_FILE].tolist()) == list(range(36))
    # And a run uses them all.
    assert simulate(of, POLICIES["nopfs"]).bytes["staging"] == 0
    assert sum(simulate(of, POLICIES["nopfs"]).bytes.values()) == 2 * 36


def test_the_ranks_of_a_node_share_its_staging() -> None:
    """With room of 20 bytes each of two ranks has room for one sample of 10 bytes, a rank alone for
    two. There is one thread, which prepares 1 byte/s; a rank that has none does so itself: each
    waits 10 s for its first sample, and has the second one when it has computed for 10 s."""
    of = scenario(
        Machine({1: 1e6}, compute=1, staging=20, preprocess=1),
        nodes=2,
        ranks=2,
        epochs=1,
        batch=2,
        files=6,
    )
    of = replace(of, overrides=(NodeOverride((1,), ranks=1),))
    work = job(of, [10, 10, 0], [[[[0, 1, 2, 2]], [[0, 1, NO_FILE, NO_FILE]]]])
    measured = measure(of, work, STAGED)
    assert measured.stall.tolist() == pytest.approx([10, 0, 10], abs=1e-3)


# --- what no machine can do ---------------------------------------------------------------------

rates = st.floats(1, 1e4)
machines = st.builds(
    Machine,
    pfs=st.lists(rates, min_size=1, max_size=4).map(lambda r: dict(enumerate(r, 1))),
    compute=rates,
    staging=st.integers(1, 5000),
    staging_threads=st.integers(1, 4),
    preprocess=rates,
    cache_rate=rates,
    cache_threads=st.integers(1, 3),
    network=rates,
    links=st.sampled_from(LINKS),
)


@st.composite
def jobs(draw: st.DrawFn, most: int = 4) -> tuple[Scenario, Job]:
    """most : nodes, and ranks of a node, of which there are two at most"""
    nodes, ranks = draw(st.integers(1, most)), draw(st.integers(1, min(2, most)))
    batch, steps = draw(st.integers(1, 4)), draw(st.integers(1, 5))
    epochs, files = draw(st.integers(1, 4)), nodes * ranks * batch * steps
    of = scenario(draw(machines), nodes=nodes, ranks=ranks, epochs=epochs, batch=batch, files=files)
    random = np.random.default_rng(draw(st.integers(0, 1000)))
    orders = [random.permutation(files).reshape(nodes, steps, -1) for _ in range(epochs)]
    if nodes > 1 and ranks > 1 and draw(st.booleans()):
        of = replace(of, overrides=(NodeOverride((nodes - 1,), ranks=1),))
        for order in orders:
            order[-1, :, batch:] = NO_FILE
    return of, job(of, random.integers(0, 1000, files).tolist(), orders)


@st.composite
def decisions(draw: st.DrawFn, of: Job) -> Decision:
    random = np.random.default_rng(draw(st.integers(0, 1000)))
    parts = [
        (node, 1, random.permutation(of.files)[: random.integers(0, of.files + 1)])
        for node in range(of.cluster.nodes)
    ]
    ranks = int(of.cluster.ranks.max())

    def shares(epoch: int, order: Ints) -> npt.NDArray[np.int32]:
        own = np.random.default_rng(epoch)
        return own.integers(1, 5, (*order.shape[:2], ranks), np.int32)

    return Decision(
        staging=draw(st.booleans()),
        copies=Copies.of(parts),
        when=draw(st.sampled_from(When)),
        remote=draw(st.booleans()),
        due=draw(st.sampled_from([None, random.integers(0, 50, sum(len(p[2]) for p in parts))])),
        owner=draw(
            st.sampled_from(
                [None, random.integers(PFS, of.cluster.nodes, of.files).astype(np.int32)]
            )
        ),
        pfs=draw(st.booleans()),
        threads=draw(st.sampled_from([None, shares])),
    )


@settings(deadline=None, max_examples=examples(40))
@given(jobs(), st.data())
def test_nothing_is_faster_than_its_parts(made: tuple[Scenario, Job], data: st.DataObject) -> None:
    of, work = made
    decision = data.draw(decisions(work))
    measured = measure(of, work, decision)
    end, nodes = measured.epoch_end[-1] * (1 + 1e-9), of.nodes
    orders = np.stack([work.orders(epoch) for epoch in range(of.epochs)])
    used = np.where(orders == NO_FILE, 0, work.sizes[orders])
    # Every sample came from somewhere, once.
    assert measured.bytes.sum(axis=1).tolist() == used.sum(axis=(1, 2, 3)).tolist()
    assert measured.node_bytes.sum(axis=1).tolist() == used.sum(axis=(0, 2, 3)).tolist()
    # A rank computes what it uses, and the slowest of a step holds the others.
    per_rank = used.reshape(of.epochs, nodes, used.shape[2], of.ranks_per_node, -1).sum(axis=4)
    assert end >= per_rank.max(axis=(1, 3)).sum() / of.rates.compute
    # What can be given in the time was given.
    clients = np.arange(1, nodes + 1)
    assert end >= measured.pfs_bytes.sum() / of.pfs.total(clients).max()
    assert end >= measured.node_bytes[:, FROM_PFS].max() / (of.pfs.total(clients) / clients).max()
    assert end >= measured.node_bytes[:, REMOTE].max() / of.rates.network
    assert end >= measured.node_bytes[:, LOCAL].max() / work.cluster.read_rate[0, 1]
    assert (measured.reused <= measured.bytes[:, [LOCAL, REMOTE]].sum(axis=1)).all()
    # Time goes forward, and the same comes out again.
    assert (np.diff(measured.epoch_end) >= 0).all()
    assert measure(of, work, decision).epoch_end.tolist() == measured.epoch_end.tolist()


@settings(deadline=None, max_examples=examples(40))
@given(jobs(most=1))
def test_prefetching_in_order_is_no_slower_than_not(made: tuple[Scenario, Job]) -> None:
    """For one rank alone. With several it can be slower, by some percent: what one fetches ahead
    stands before, or takes a part of the file system from, the sample that another one needs."""
    of, work = made
    ends = [measure(of, work, decision).epoch_end[-1] for decision in (STAGED, DEMAND)]
    assert ends[0] <= ends[1] * (1 + 1e-9)


def test_the_report_of_a_run_says_what_happened() -> None:
    def on_use(job: Job) -> Decision:
        copies = Copies.of([(node, 1, np.arange(job.files)) for node in range(2)])
        return Decision(copies=copies, when=When.ON_USE, notes=("a note",))

    of = scenario(Machine({1: 10}, compute=5), nodes=2, epochs=3, batch=2, files=8)
    result = simulate(of, on_use)
    document = result.to_dict()
    assert document["total_seconds"] == pytest.approx(sum(document["epoch_seconds"]))
    assert sum(document["bytes"].values()) == 24
    assert 0 < document["reuse_hit_ratio"] <= 1
    assert document["details"]["notes"] == ["a note"]
