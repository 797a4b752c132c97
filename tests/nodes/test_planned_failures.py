"""Several nodes follow a plan, but one of the nodes fails, or jobs are restarted, or quotas differ
or are too small. The nodes go on with the plan, and each file that they can hold is read from the
source once."""

from __future__ import annotations

import signal
from collections.abc import Callable
from contextlib import ExitStack

import pytest
from support.draws import cases
from support.epoch import READER_LIMIT_S
from support.nodes import Host, Node
from support.planned import PlannedNodes, follows
from support.session import MIB, wait_until

from benchmarks.peers.nodes import Nodes as Namespaces
from monarch_py.plan.loader import Loader
from monarch_py.plan.samplers import DistributedSampler

RANKS, FILES, SIZE, EPOCHS, SEED = 3, 360, 40_000, 6, 11
VICTIM = 1
# The room that a copy takes in a tier [bytes].
COUNTED = 40_960
# The quota of each node [bytes]. Three nodes together have room for all files, and for a twentieth
# more.
QUOTA = FILES * COUNTED * 21 // 20 // RANKS + MIB
SLOW = 5e6
# On a busy machine, a node may stop waiting for another node, and read a few files from the source
# itself. In this way, all nodes together may read at most this number of bytes.
SOME = FILES * SIZE // 10


def orders_of(*epochs: int) -> list[list[int]]:
    """Returns the files that each rank reads in these epochs, one epoch after the other."""
    sampler = DistributedSampler(FILES, RANKS, SEED)
    whole = [sampler.epoch(epoch).tolist() for epoch in epochs]
    return [[unit for order in whole for unit in order[rank::RANKS]] for rank in range(RANKS)]


@pytest.fixture
def make(planned_factory: Callable[..., PlannedNodes]) -> Callable[..., PlannedNodes]:
    """Returns a function that starts nodes for a training run with two workers in each rank. If
    another node has a file, the file comes from that node, however fast the source is.

    settings : see nodes_factory"""

    def made(area: int = 2 * MIB, **settings: object) -> PlannedNodes:
        loader = Loader(DistributedSampler(FILES, RANKS, SEED), RANKS, 2, workers=2)
        settings = {"peers": {"fetch": "holders"}, **settings}
        return planned_factory(loader, EPOCHS, FILES, SIZE, QUOTA, area, **settings).start()

    return made


def in_the_middle(planned: PlannedNodes, do: Callable[[Node], None]) -> None:
    """Calls `do` in the first of two epochs, after the victim has sent data to the other nodes."""
    victim = planned.all[VICTIM]
    # The source is so slow that the test notices the middle of the epoch, even on a busy machine.
    planned.source.rate(SLOW / 4)
    with ExitStack() as stack:
        orders = orders_of(0, 1)
        readers = [stack.enter_context(planned.reader(rank, orders[rank])) for rank in range(RANKS)]
        wait_until(lambda: victim.nodes()["served_bytes"] > 4 * SIZE, what="data from the victim")
        do(victim)
        assert all(reader.runs() for reader in readers)
        planned.source.rate(SLOW)
        ends = [reader.end() for reader in readers]
    assert max(end["longest_s"] for end in ends) < READER_LIMIT_S
    planned.source.rate(0)


def epoch_of_all(planned: PlannedNodes, epoch: int) -> None:
    """Reads this epoch on all nodes. Waits until all nodes know that the training run has reached
    the end of this epoch, or the beginning of the next epoch."""
    planned.read(orders_of(epoch))

    def known() -> bool:
        plans = [node.plan() for node in planned.all]
        ends = (epoch, epoch + 1)
        return all(plan["state"] == "following" and plan["epoch"] in ends for plan in plans)

    wait_until(known, what=f"nodes in epoch {epoch}")
    planned.nodes.wait_idle()


def goes_on(planned: PlannedNodes) -> None:
    """Reads epochs 2 to 4. In epoch 4, all files have copies, so hardly anything may come from the
    source. The victim must send files to other nodes again."""
    victim = planned.all[VICTIM]

    def usable() -> bool:
        members = (member for node in planned.all for member in node.nodes()["members"])
        return all(member.get("usable", True) for member in members)

    wait_until(usable, timeout=60, what="nodes that ask each other again")
    for epoch in (2, 3):
        epoch_of_all(planned, epoch)
    before, served = planned.read_by_fills(), victim.nodes()["served_bytes"]
    epoch_of_all(planned, 4)
    assert planned.read_by_fills() <= before + SOME
    assert victim.nodes()["served_bytes"] > served


def test_a_daemon_that_is_killed_and_started_empty(make: Callable[..., PlannedNodes]) -> None:
    """The restarted daemon finds out which place in the plan the training run has reached."""
    planned = make()
    in_the_middle(planned, Node.kill)
    victim = planned.all[VICTIM]
    assert all(follows(node) for node in planned.all if node is not victim)
    victim.start()
    victim.wait_scanned()
    planned.wait_follows(victim)
    goes_on(planned)


@pytest.mark.long
def test_a_daemon_that_stops_and_goes_on(make: Callable[..., PlannedNodes]) -> None:
    planned = make()
    victim = planned.all[VICTIM]
    daemon = victim.daemon
    assert daemon is not None
    in_the_middle(planned, lambda _: daemon.send_signal(signal.SIGSTOP))
    daemon.send_signal(signal.SIGCONT)
    wait_until(victim.connection.serves, what="an answer of the continued daemon")
    goes_on(planned)


@pytest.mark.long
def test_a_link_that_is_cut_and_mended(
    namespaces: Namespaces, hosts: list[Host], make: Callable[..., PlannedNodes]
) -> None:
    planned = make(hosts=hosts)
    in_the_middle(planned, lambda _: namespaces.set_link(VICTIM, up=False))
    namespaces.set_link(VICTIM, up=True)
    goes_on(planned)


@pytest.mark.parametrize("epoch", cases([1, 4], short=[4]))
def test_a_job_that_is_killed_goes_on_at_another_epoch(
    make: Callable[..., PlannedNodes], epoch: int
) -> None:
    """A job is killed in epoch 1. When it runs again, it begins with this epoch or with a later
    one, as if it resumed from a checkpoint. The nodes find the job's place in the plan and still
    have their copies, so no file is read from the source twice."""
    planned = make()
    epoch_of_all(planned, 0)
    planned.read([order[: FILES // RANKS - 1] for order in orders_of(1)])
    epoch_of_all(planned, epoch)
    assert planned.read_by_fills() <= FILES * SIZE + SOME


@pytest.mark.long  # without --long, test_ownership.py and the next test cover this case
def test_quotas_that_differ(make: Callable[..., PlannedNodes]) -> None:
    """The nodes have room for two thirds, a third and a sixteenth of the files. Each node owns no
    more files than fit into its quota. Together they own all files, and read each file from the
    source once."""
    parts = (32, 16, 3)
    quotas = [FILES * COUNTED * part // 48 + MIB for part in parts]
    planned = make(quotas=quotas)
    own = [node.nodes()["own_files"] for node in planned.all]
    assert sum(own) == FILES
    for epoch in range(3):
        epoch_of_all(planned, epoch)
    for node, quota, files in zip(planned.all, quotas, own, strict=True):
        assert files * COUNTED <= quota
        assert len(node.copies()) >= files
        assert node.status()["tiers"][0]["used_bytes"] <= quota
    assert planned.read_by_fills() <= FILES * SIZE + SOME


def test_files_that_nobody_holds(make: Callable[..., PlannedNodes]) -> None:
    """The nodes have room for three fifths of the files. A node that needs one of the other files
    fetches this file ahead of its use."""
    quota, area = FILES * COUNTED // 5, MIB // 2
    planned = make(area, quotas=[quota] * RANKS)
    held = sum(node.nodes()["own_files"] for node in planned.all)
    assert 0.55 < held / FILES <= 0.6
    epochs = 4
    for epoch in range(epochs):
        epoch_of_all(planned, epoch)
    expected = (held + epochs * (FILES - held)) * SIZE
    # At the end of an epoch, the staging areas may still hold the files that were used last. After
    # the last epoch, they may hold files that were fetched for the next epoch.
    most = RANKS * area
    least = expected - (epochs - 1) * most
    # On a busy machine, a reader may read a file itself, because the reader's node has not fetched
    # it yet. No fill reads such a file if the staging area has no room for it.
    assert least - SOME <= planned.read_by_fills() <= expected + most + SOME
