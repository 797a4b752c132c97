"""The simulated machine: cases computed by hand, and limits that no machine can exceed."""

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
from support import draws
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
    """Each of four samples of 10 bytes takes 1 s to read and then 2 s to compute."""
    measured = run(Machine({1: 10}, compute=5), [10] * 4, [[[[0, 1], [2, 3]]]], DEMAND)
    assert measured.epoch_end.tolist() == pytest.approx([12])
    assert measured.stall.tolist() == pytest.approx([4])
    assert measured.ready.tolist() == [0]


def test_with_prefetching_only_the_first_sample_is_waited_for() -> None:
    """Samples are ready at 1, 2, 3 and 4 s, and their computation starts at 1, 3, 5 and 7 s."""
    measured = run(Machine({1: 10}, compute=5), [10] * 4, [[[[0, 1], [2, 3]]]], STAGED)
    assert measured.epoch_end.tolist() == pytest.approx([9])
    assert measured.stall.tolist() == pytest.approx([1])
    assert measured.ready.tolist() == [3]


@pytest.mark.parametrize(("staging", "end"), [(60, 13), (30, 14)])
def test_a_sample_waits_for_room_in_the_staging_buffer(staging: int, end: int) -> None:
    """Samples 0, 1 and 2 have 10 bytes, and sample 3 has 30 bytes.

    If the buffer has room for all, the samples are ready at 1, 2, 3 and 6 s, and sample 3 is
    computed from 7 to 13 s. If the buffer has room for 30 bytes, sample 3 is read only when sample
    2 leaves the buffer, at 5 s. So sample 3 is ready at 8 s and computed until 14 s.
    """
    machine = Machine({1: 10}, compute=5, staging=staging)
    measured = run(machine, [10, 10, 10, 30], [[[[0, 1, 2, 3]]]], STAGED)
    assert measured.epoch_end.tolist() == pytest.approx([end])


def test_a_sample_larger_than_the_staging_buffer_goes_through_alone() -> None:
    machine = Machine({1: 10}, compute=10, staging=15)
    measured = run(machine, [10, 40, 10], [[[[0, 1, 2]]]], STAGED)
    # Sample 0 is ready at 1 s. Sample 1 is read from 1 to 5 s and computed until 9 s. Sample 2 is
    # read from 5 to 6 s and computed from 9 to 10 s.
    assert measured.epoch_end.tolist() == pytest.approx([10])


@pytest.mark.parametrize("epochs", [2, 3, 4, 8])
@pytest.mark.parametrize("seed", range(6))
def test_the_staging_buffer_has_the_same_room_in_every_epoch(epochs: int, seed: int) -> None:
    """Several epochs take as long as one epoch with all their samples.

    There is only one node, so no node waits for others at the end of an epoch."""
    samples = np.arange(8 * epochs)
    sizes = np.random.default_rng(seed).integers(10, 60, len(samples)).tolist()
    machine = Machine({1: 10}, compute=8, staging=60)
    parts = run(machine, sizes, samples.reshape(epochs, 1, 8, 1).tolist(), STAGED)
    whole = run(machine, sizes, samples.reshape(1, 1, -1, 1).tolist(), STAGED)
    assert parts.epoch_end[-1] == pytest.approx(whole.epoch_end[0])


def epoch_ends(
    sizes: list[int], steps: int, staging: int, read: float, compute: float
) -> list[float]:
    """Computes when each epoch of `steps` samples ends, on one node that reads and uses one sample
    after the other. A sample of epoch e is read as soon as the buffer has room for it and epoch
    e - 2 has ended. When the use of a sample begins, its room in the buffer becomes free."""
    read_end, ends, held = 0.0, [0.0], 0
    used: list[float] = []  # when each sample's use begins
    gone = 0  # how many samples have left the buffer
    for number, size in enumerate(sizes):
        begin = read_end
        if number >= 2 * steps:
            begin = max(begin, ends[(number // steps - 1) * steps])
        while gone < number and held + size > staging:
            begin = max(begin, used[gone])
            held -= sizes[gone]
            gone += 1
        held += size
        read_end = begin + size / read
        used.append(max(ends[-1], read_end))
        ends.append(used[-1] + size / compute)
    return ends[steps::steps]


@pytest.mark.parametrize("seed", draws.seeds(200, few=25))
def test_a_node_with_any_staging_buffer(seed: int) -> None:
    """The size of the buffer is random, from one sample to several epochs. The rate of computing is
    random too: in some cases reading takes longer, in others computing."""
    random = np.random.default_rng(seed)
    epochs, steps = random.integers(1, (12, 9)).tolist()
    samples = np.arange(epochs * steps)
    sizes = np.exp(random.uniform(0, 4, len(samples))).astype(int).tolist()
    staging = int(max(sizes) * random.uniform(1, 20))
    compute = float(random.uniform(7, 14))
    machine = Machine({1: 10}, compute=compute, staging=staging)
    measured = run(machine, sizes, samples.reshape(epochs, 1, steps, 1).tolist(), STAGED)
    right = epoch_ends(sizes, steps, staging, 10, compute)
    assert measured.epoch_end.tolist() == pytest.approx(right)


def test_all_nodes_share_the_file_system_and_meet_after_each_step() -> None:
    """Two nodes read at 10 bytes/s in total and start each step together.

    In the first step, node 0 reads a sample of 10 bytes, and node 1 reads a sample of 20 bytes.
    While both read, each gets 5 bytes/s, so node 0's sample is ready at 2 s. Then node 1 gets
    10 bytes/s, and its sample is ready at 3 s. The nodes compute until 4 and 7 s. So the second
    step, which is like the first, begins at 7 s."""
    order = [[[[0], [2]], [[1], [3]]]]
    measured = run(Machine({1: 10, 2: 10}, compute=5), [10, 20, 10, 20], order, DEMAND)
    assert measured.epoch_end.tolist() == pytest.approx([14])
    assert measured.stall.tolist() == pytest.approx([4, 6])
    # The slower node needs 7 s for a step, which is more than 1.1 times the 4 s of the faster one.
    assert measured.imbalanced.tolist() == [2]


def test_a_node_alone_gets_what_one_client_gets() -> None:
    """The file system gives 10 bytes/s to one client and 12 to two together.

    Node 0 reads 10 bytes and node 1 reads one byte, both at 6 bytes/s. Node 1 ends after 1/6 s.
    Node 0 then has 9 bytes left, and reads them at 10 bytes/s in 0.9 s."""
    machine = Machine({1: 10, 2: 12})
    measured = run(machine, [10, 1], [[[[0]], [[1]]]], DEMAND)
    assert measured.epoch_end[0] == pytest.approx(1 / 6 + 0.9)


@pytest.mark.parametrize(
    ("pfs", "from_where", "end"), [(True, FROM_PFS, 1), (False, REMOTE, 2), (False, LOCAL, 4)]
)
def test_each_sample_comes_from_the_fastest_place(pfs: bool, from_where: int, end: int) -> None:
    """10 bytes take 1 s from the file system, 2 s over the link, or 4 s from the node's own
    class."""
    machine = Machine({1: 10, 2: 20}, network=5, cache_rate=2.5 if from_where == LOCAL else FAST)
    holder = 0 if from_where == LOCAL else 1
    decision = Decision(
        staging=False,
        copies=Copies.of([(holder, 1, np.array([0]))]),
        when=When.BEFORE,
        remote=True,
        pfs=pfs,
    )
    # Node 1 has to take part in the step, so it reads an empty file.
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
    """NoPFS's model (section 4 of its paper) gives a time to read a file from each place. If only
    one node reads, the file must come from the place with the shortest time, and take this time.

    On each of two nodes, the file has a copy in one of two classes, or no copy."""

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
    """Node 0 sends 6 bytes to node 1 and 3 bytes to node 2 over its link of 1 byte/s.

    If transfers take the link one after the other, they end at 6 and 9 s. If they share the link,
    each gets 0.5 bytes/s at first, so node 2 has its 3 bytes at 6 s. Node 1 then still needs 3 of
    its 6 bytes, and gets them at 1 byte/s, until 9 s."""
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
    """Links are shared by max-min fairness: a transfer uses what other transfers leave of a link.

    Each link has 1 byte/s. Node 0 sends 1 byte to each of three nodes, so each of these transfers
    gets 1/3 byte/s and takes 3 s. One of them goes to node 1, whose link thus has 2/3 byte/s left.
    Over this link, node 4 sends 3 bytes: 2 bytes during these 3 s, and then the last byte in 1
    s."""
    copies = [(0, 1, np.array([0, 1, 2, 4, 5])), (4, 1, np.array([3, 6, 7]))]
    decision = Decision(copies=Copies.of(copies), when=When.BEFORE, remote=True, pfs=False)
    machine = Machine({1: FAST}, network=1, links="fair", staging_threads=2)
    order = [[[[4, 5]], [[0, 3]], [[1, 4]], [[2, 5]], [[6, 7]]]]
    measured = run(machine, [1, 1, 1, 3, 0, 0, 0, 0], order, decision)
    assert measured.epoch_end[0] - measured.first_step == pytest.approx(4)


def test_an_owner_sends_on_over_shared_links() -> None:
    """An owner sends a file to two nodes at once, and each gets half of the owner's link.

    Node 0 reads the file of 4 bytes at 4 bytes/s. At 1 s it begins to send the file to nodes 1 and
    2. Its link has 1 byte/s, so both have the file 8 s later."""
    owner = np.zeros(2, np.int32)
    decision = Decision(staging=False, owner=owner, remote=True)
    machine = Machine({1: 4}, network=1, links="fair")
    measured = run(machine, [4, 0], [[[[1]], [[0]], [[0]]]], decision)
    assert measured.epoch_end[0] == pytest.approx(9)


@pytest.mark.parametrize(("due", "from_where"), [(0, REMOTE), (1, FROM_PFS)])
def test_nobody_asks_for_a_copy_before_it_is_due(due: int, from_where: int) -> None:
    """Node 0 asks node 1 for a copy only if node 0 is past the access at which the copy is due.

    Node 1 has the copy from the beginning. Node 0 needs the file at its access 1. If the copy is
    due at access 0, node 0 asks node 1. If the copy is due at access 1, node 0 reads from the file
    system."""
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
    """Copying two files of 10 bytes at 10 bytes/s delays training by 2 s. Afterwards all reads are
    local."""
    decision = Decision(copies=Copies.of([(0, 1, np.array([0, 1]))]), when=When.BEFORE)
    measured = run(Machine({1: 10}, compute=10), [10, 10], [[[[0, 1]]]] * 2, decision)
    assert measured.first_step == pytest.approx(2)
    assert measured.epoch_end.tolist() == pytest.approx([4, 6])
    assert measured.filled.tolist() == [20]
    assert measured.bytes.sum(axis=0).tolist() == [0, 40, 0, 0]
    assert measured.reused.tolist() == [20, 20]


def test_a_read_keeps_what_has_a_place() -> None:
    """File 1 may be copied into the cache, and file 0 may not. The second epoch reads file 1 from
    the cache, and file 0 from the file system."""
    decision = Decision(copies=Copies.of([(0, 1, np.array([1]))]), when=When.ON_USE)
    measured = run(Machine({1: 10}), [10, 10], [[[[0, 1]]], [[[1, 0]]]], decision)
    assert measured.bytes.tolist() == [[0, 0, 0, 20], [0, 10, 0, 10]]
    assert measured.reused.tolist() == [0, 10]
    assert measured.epoch_end.tolist() == pytest.approx([2, 3])


def test_copies_made_beside_training_wait_for_the_readers() -> None:
    """File 1 is to be copied, but the read of file 0, for which training waits, comes first.

    File 1 is copied while training computes file 0 for 30 s."""
    decision = Decision(staging=False, copies=Copies.of([(0, 1, np.array([1]))]))
    measured = run(Machine({1: 10}, compute=1 / 3), [10, 10], [[[[0], [1]]]], decision)
    # Training reads file 0 for 1 s and computes for 30 s. Reading the copy of file 1 takes no time.
    # Training then computes for another 30 s.
    assert measured.epoch_end.tolist() == pytest.approx([61])
    assert measured.bytes[0].tolist() == [0, 10, 0, 10]
    assert measured.filled.tolist() == [10]


def test_an_owner_reads_for_all() -> None:
    """Both nodes use file 0. Node 0 owns it, and reads it from the file system for both nodes.

    Node 0 reads the 10 bytes in 1 s, and then sends them to node 1 in 2 s. In the second
    epoch, node 1 reads node 0's copy in 2 s."""
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
    """The owner of a file reads it for another node, and keeps it for later epochs.

    Node 0 owns file 0. Only node 1 uses the file in the first epoch, and only node 0 uses it in the
    second epoch."""
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
    # The file system takes 1 s and the link takes 2 s.
    assert measured.epoch_end.tolist() == pytest.approx([3, 3])
    assert measured.filled.tolist() == [10, 0]
    assert measured.node_bytes[:, [LOCAL, REMOTE]].tolist() == [[10, 0], [0, 10]]


def test_a_read_for_two_samples_is_counted_once() -> None:
    """Two threads of node 0 prefetch file 0 at the same time, one for the first epoch and one for
    the second. The file is read from the file system only once."""
    decision = Decision(owner=np.array([0], np.int32), pfs=False)
    machine = Machine({1: 10}, staging_threads=2)
    measured = run(machine, [10], [[[[0]]]] * 2, decision)
    assert measured.pfs_bytes.tolist() == [10, 0]
    assert measured.bytes.tolist() == [[0, 0, 0, 10], [10, 0, 0, 0]]
    assert measured.filled.tolist() == [0]


def test_a_read_that_nobody_waited_for_is_hurried_when_somebody_does() -> None:
    """Node 1 needs a file that its owner, node 0, would copy later. Node 0 then reads it sooner.

    Each of two nodes reads 10 bytes/s. Files have 10 bytes; only file 13 is empty. Node 0 reads
    file 0, and then files 3 to 12 for its own training. It would copy file 1 only after these
    reads. Node 1 waits 1 s for file 2, and then needs file 1. Node 0 ends its read of file 3 at
    2 s, and then reads file 1 until 3 s. So node 1 waits 2 s for file 1. If node 0 read file 1 only
    after its other reads, node 1 would wait 11 s."""
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
    # A read of either sample from the file system includes 5 redundant bytes, but only sample 0 is
    # read from there.
    assert measured.filled.tolist() == [5]
    assert measured.epoch_end.tolist() == pytest.approx([11.5])


@pytest.mark.parametrize(
    ("holders", "end"),
    [([0, 1, 2, 3], 10), ([1, 2, 3, 0], 10), ([0, 0, 2, 3], 20), ([3, 3, 3, 1], 30),
     ([2, 2, 2, 2], 40)],
)  # fmt: skip
def test_each_node_has_classes_of_its_own(holders: list[int], end: int) -> None:
    """Each of four nodes reads one sample of 10 bytes from its own storage class or from that of
    another node. `holders` lists, for each node, the node from whose class it reads. A class
    delivers 1 byte/s to all its readers together, so n reads from one class take 10 n seconds."""
    none = np.zeros((4, 1), np.int8)
    held = np.array(holders, np.int32).reshape(4, 1)
    served = Served(held, np.ones((4, 1), np.int8), none, none)
    decision = Decision(served=lambda epoch, order: served)
    machine = Machine({4: 10}, cache_rate=1)
    measured = run(machine, [10] * 4, [[[[i]] for i in range(4)]], decision)
    assert measured.epoch_end.tolist() == pytest.approx([end])
    local = sum(holder == node for node, holder in enumerate(holders))
    assert measured.bytes[0].tolist() == [0, 10 * local, 10 * (4 - local), 0]


@pytest.mark.parametrize(("into", "end"), [(0, 11), (1, 21)])
def test_what_comes_into_a_class_takes_its_time(into: int, end: int) -> None:
    """Writing a file into a class delays later reads of that class.

    Sample 0 comes from the file system after 1 s. Reading sample 1 from the class takes 10 s. If
    sample 0 is written to the class, the write takes until 11 s, and the read of sample 1 begins
    only then."""
    places = np.array([[into, 0]], np.int8)
    served = Served(np.array([[PFS, 0]], np.int32), np.ones((1, 2), np.int8), places, places)
    decision = Decision(served=lambda epoch, order: served)
    measured = run(Machine({1: 10}, cache_rate=1), [10, 10], [[[[0, 1]]]], decision)
    assert measured.epoch_end.tolist() == pytest.approx([end])


@pytest.mark.parametrize(("into", "end"), [(0, 1), (1, 3)])
def test_a_miss_that_is_kept_goes_through_its_owner(into: int, end: int) -> None:
    """Node 0 needs a file of 10 bytes that node 1 owns, and no node has a copy.

    If node 1 is to keep the file, node 1 reads it in 1 s, and sends it to node 0 in 2 s. Otherwise
    node 0 reads the file itself, in 1 s."""
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
    """In a step, node 0 uses three samples and node 1 uses one sample. The two missing samples of
    node 1 take no time, and are not counted."""
    order = [[[[0, 1, 2]], [[3, -1, -1]]]]
    measured = run(Machine({1: 10, 2: 20}, compute=10), [10] * 4, order, DEMAND)
    assert measured.epoch_end.tolist() == pytest.approx([6])
    assert measured.compute.tolist() == pytest.approx([3, 1])
    assert measured.bytes[0].sum() == 40
    assert measured.ready.tolist() == [0]


def in_every_step(threads: list[int], epoch: int, order: Ints) -> npt.NDArray[np.int32]:
    return np.full((*order.shape[:2], len(threads)), threads, np.int32)


def test_two_ranks_of_a_node_share_its_threads() -> None:
    """The shares (`Decision.threads`) decide which rank the two threads of a node serve first.

    Rank 0 needs two samples of 30 bytes, and rank 1 needs two samples of 10 bytes. A thread
    preprocesses 10 bytes/s. Without shares, each rank has one thread: rank 0 has its samples at
    6 s, and rank 1 at 2 s. With shares of 2 and 1, both threads serve rank 0 first: rank 0 has its
    samples at 3 s, and rank 1 at 4 s. With shares of 1 and 3, both threads serve rank 1 first: rank
    1 has its samples at 1 s, and rank 0 at 4 s."""
    machine = Machine({1: FAST}, preprocess=10, staging_threads=2)
    order = [[[[0, 1, 2, 3]]]]
    for threads, ends in (([], [6, 2]), ([2, 1], [3, 4]), ([1, 3], [4, 1])):
        shared = partial(in_every_step, threads)
        decision = Decision(threads=shared if threads else None)
        measured = run(machine, [30, 30, 10, 10], order, decision, ranks=2)
        assert measured.stall.tolist() == pytest.approx(ends)
        assert measured.bytes[0, FROM_PFS] == 80


def test_a_thread_that_sleeps_wakes_for_room_that_another_rank_makes() -> None:
    """The node has three threads. Each of its two ranks has 30 bytes of the buffer.

    The first samples of both ranks have 30 bytes, so each fills its rank's part of the buffer.
    Thread 1 reads rank 0's first sample from the node's storage class for 100 s. Thread 2 reads
    rank 1's first sample from the file system for 3 s, and preprocesses it for 3 s. Thread 3
    sleeps, because there is no room. At 6 s, rank 1 takes its first sample. This makes room for its
    other three samples of 10 bytes, which threads 2 and 3 read one after the other:

        second sample   read until 7 s, preprocessed until 8 s
        third sample    read until 8 s, preprocessed until 9 s
        last sample     read until 9 s, preprocessed until 10 s

    Rank 1 computes its first sample in 0.75 s, and each other sample in 0.25 s. So it waits until
    6 s, from 6.75 to 8 s, from 8.25 to 9 s, and from 9.25 to 10 s."""
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
    """If there are fewer threads than ranks, a rank without a thread loads its sample itself.

    The node has one thread and four ranks. Each rank has a sample of 40 bytes, which a thread or a
    rank preprocesses in 4 s. So the step takes only 4 s."""
    machine = Machine({1: FAST}, preprocess=10, staging_threads=1)
    measured = run(machine, [40] * 4, [[[[0, 1, 2, 3]]]], STAGED, ranks=4)
    assert measured.epoch_end[0] == pytest.approx(4)


def test_a_slow_link_bounds_copies_and_checkpoints_too() -> None:
    """The file system gives 10 bytes/s, but the node's link to the file system has only 1 byte/s.

    So two copies of 10 bytes take 20 s, and a checkpoint of 20 bytes takes 20 s too."""
    of = scenario(Machine({1: 10}), nodes=1, epochs=1, batch=2, files=2)
    of = replace(of, rates=replace(of.rates, pfs_link=1.0))
    work = job(of, [10, 10], [[[[0, 1]]]])
    before = Decision(copies=Copies.of([(0, 1, np.array([0, 1]))]), when=When.BEFORE)
    assert measure(of, work, before).first_step == pytest.approx(20)
    of = replace(of, checkpoint=Checkpoint(every=1, size_bytes=20))
    assert measure(of, work, Decision(free=True)).epoch_end[0] == pytest.approx(20)


@pytest.mark.parametrize("slow", [0, 1, 2])
def test_a_checkpoint_is_written_when_the_slowest_node_has_written_it(slow: int) -> None:
    """Each of three nodes writes 20 bytes to the file system, which gives each node 10 bytes/s. But
    the link of the node `slow` has only 1 byte/s."""
    of = scenario(Machine({1: 10, 2: 20, 3: 30}), nodes=3, epochs=1, batch=1, files=3)
    override = NodeOverride((slow,), pfs_link=1.0)
    of = replace(of, checkpoint=Checkpoint(every=1, size_bytes=20), overrides=(override,))
    work = job(of, [10] * 3, [[[[0]], [[1]], [[2]]]])
    assert measure(of, work, Decision(free=True)).epoch_end[0] == pytest.approx(20)


def test_a_copy_that_is_on_its_way_holds_nobody_up() -> None:
    """A local read does not wait for a remote file that is being copied into the same class.

    Rank 0's file of 10 bytes takes 10 s over a link of 1 byte/s. Writing the file to the class
    takes 0.1 s. The simulation does this write when the file is requested, not when it arrives. So
    the write delays rank 1's local read, but only by 0.1 s at most."""
    machine = Machine({1: 10, 2: 20}, network=1, cache_rate=100, staging_threads=2)
    copies = Copies.of([(1, 1, np.array([0])), (0, 1, np.array([1, 0]))])
    # In the second epoch, rank 0 of node 0 reads file 0 from node 1, and rank 1 of node 0 reads
    # file 1 locally.
    order = [[[[1, 1]], [[0, 2]]], [[[0, 1]], [[2, 2]]]]
    decision = Decision(copies=copies, when=When.ON_USE, remote=True, pfs=False)
    measured = run(machine, [10, 10, 10], order, decision, ranks=2)
    assert measured.bytes[1, REMOTE] == 10
    assert measured.stall[1] < 5


def test_a_checkpoint_stops_everybody_and_takes_the_file_system() -> None:
    of = scenario(Machine({1: 10, 2: 20}, compute=5), nodes=2, epochs=1, batch=1, files=4)
    of = replace(of, checkpoint=Checkpoint(every=1, size_bytes=40))
    with_it = measure(of, job(of, [10] * 4, [[[[0], [1]], [[2], [3]]]]), Decision(free=True))
    # Each of the two steps computes for 2 s, and then writes 2 x 40 bytes at 20 bytes/s for 4 s.
    assert with_it.epoch_end.tolist() == pytest.approx([12])


def test_a_checkpoint_comes_before_reads_that_are_queued() -> None:
    """A checkpoint is written before reads that are queued, but after reads that are under way.

    One node reads, writes and computes at 10 bytes/s. Samples 0 to 3 have 10, 30, 10 and 10 bytes.
    A step has one sample, and a checkpoint of 20 bytes follows each step. Sample 0 is read until
    1 s and computed until 2 s. At this time, the read of sample 1 is under way (1 to 4 s), and the
    read of sample 2 is queued. So the first checkpoint is written from 4 to 6 s. Then sample 1 is
    computed until 9 s, while samples 2 and 3 are read. The other checkpoints are written from 9 to
    11 s, 12 to 14 s and 15 to 17 s."""
    of = scenario(
        Machine({1: 10}, compute=10, staging_threads=2), nodes=1, epochs=1, batch=1, files=4
    )
    of = replace(of, checkpoint=Checkpoint(every=1, size_bytes=20))
    work = job(of, [10, 30, 10, 10], [[[[0], [1], [2], [3]]]])
    assert measure(of, work, STAGED).epoch_end.tolist() == pytest.approx([17])


def test_nodes_may_have_different_numbers_of_ranks() -> None:
    """Node 0 has two ranks, and node 1 has one rank.

    The ranks compute samples of 10, 20 and 30 bytes at 5 bytes/s, so the slowest rank takes 6 s.
    Then each of the three ranks writes a checkpoint of 10 bytes. At 30 bytes/s in total, the
    checkpoints take 1 s."""
    of = scenario(Machine({1: 30, 2: 30}, compute=5), nodes=2, ranks=2, epochs=1, batch=1, files=3)
    of = replace(of, overrides=(NodeOverride((1,), ranks=1),), checkpoint=Checkpoint(1, 10))
    work = job(of, [10, 20, 30], [[[[0, 1]], [[2, NO_FILE]]]])
    measured = measure(of, work, Decision(free=True))
    # At first, each node writes at 15 bytes/s. When node 1 has written its 10 bytes, node 0 still
    # has 10 of its 20 bytes left, and writes them at 30 bytes/s.
    assert measured.epoch_end.tolist() == pytest.approx([7])
    assert measured.compute.tolist() == pytest.approx([2, 4, 6])
    assert measured.stall.tolist() == pytest.approx([0, 0, 0])
    assert measured.ready.tolist() == [3]


def test_samples_are_dealt_to_the_ranks_that_there_are() -> None:
    """Three nodes have 2, 1 and 3 ranks, and each rank takes 2 samples in a step. So a step has
    twelve samples, and each of the 36 samples occurs once in the three steps of an epoch."""
    of = scenario(Machine({1: 10}), nodes=3, ranks=2, epochs=2, batch=2, files=36)
    of = replace(of, overrides=(NodeOverride((1,), ranks=1), NodeOverride((2,), ranks=3)))
    order = job_of(of).orders(1)
    assert order.shape == (3, 3, 6)
    assert np.count_nonzero(order != NO_FILE, axis=2).tolist() == [[4] * 3, [2] * 3, [6] * 3]
    assert sorted(order[order != NO_FILE].tolist()) == list(range(36))
    # The simulated job has two epochs, so each sample is used twice.
    assert simulate(of, POLICIES["nopfs"]).bytes["staging"] == 0
    assert sum(simulate(of, POLICIES["nopfs"]).bytes.values()) == 2 * 36


def test_the_ranks_of_a_node_share_its_staging() -> None:
    """Each node has a staging buffer of 20 bytes. On node 0, which has two ranks, each rank has
    room for one sample of 10 bytes. On node 1, the only rank has room for two samples.

    Each node has one thread, which preprocesses 1 byte/s. A rank without a thread preprocesses its
    samples itself. So each node's first samples are ready at 10 s. Node 1's second sample is ready
    at 20 s, because its rank first computes with the first sample for 10 s."""
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


# --- limits that no machine can exceed ----------------------------------------------------------

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
    """Draws a scenario and a job.

    most : the largest number of nodes. A node has at most 2 ranks, or one rank if `most` is 1"""
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
    # Each sample is counted once, under the place that it came from.
    assert measured.bytes.sum(axis=1).tolist() == used.sum(axis=(1, 2, 3)).tolist()
    assert measured.node_bytes.sum(axis=1).tolist() == used.sum(axis=(0, 2, 3)).tolist()
    # A rank computes the samples that it uses, and each step ends with the slowest rank.
    per_rank = used.reshape(of.epochs, nodes, used.shape[2], of.ranks_per_node, -1).sum(axis=4)
    assert end >= per_rank.max(axis=(1, 3)).sum() / of.rates.compute
    # The run is long enough for each device to transfer its bytes at its full rate.
    clients = np.arange(1, nodes + 1)
    assert end >= measured.pfs_bytes.sum() / of.pfs.total(clients).max()
    assert end >= measured.node_bytes[:, FROM_PFS].max() / (of.pfs.total(clients) / clients).max()
    assert end >= measured.node_bytes[:, REMOTE].max() / of.rates.network
    assert end >= measured.node_bytes[:, LOCAL].max() / work.cluster.read_rate[0, 1]
    assert (measured.reused <= measured.bytes[:, [LOCAL, REMOTE]].sum(axis=1)).all()
    # Epochs end in order, and a second simulation gives the same times.
    assert (np.diff(measured.epoch_end) >= 0).all()
    assert measure(of, work, decision).epoch_end.tolist() == measured.epoch_end.tolist()


@settings(deadline=None, max_examples=examples(40))
@given(jobs(most=1))
def test_prefetching_in_order_is_no_slower_than_not(made: tuple[Scenario, Job]) -> None:
    """For a single rank, prefetching is no slower than reading each sample when it is needed.

    For several ranks, prefetching can be a few percent slower. The file system may then be serving
    a sample that one rank reads ahead, and so delay a sample that another rank needs at once."""
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
