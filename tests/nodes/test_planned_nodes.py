"""Several nodes follow a plan, which determines which node keeps which file. Together, they read
each file from the source only once."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from support.draws import sized
from support.planned import PlannedNodes, follows
from support.session import MIB, wait_until

from monarch_py.plan.loader import Loader
from monarch_py.plan.samplers import DistributedSampler

RANKS, FILES, SIZE, EPOCHS, SEED = 3, 120, 100_000, 3, 7
# Room for half of the files.
QUOTA = FILES * (SIZE + 8192) // 2 + MIB


def order_of(rank: int, epoch: int) -> list[int]:
    """Returns a rank's order of files. tests/plan compares the plan's sampler with torch's."""
    order: list[int] = DistributedSampler(FILES, RANKS, SEED).epoch(epoch).tolist()
    return order[rank::RANKS]


@pytest.mark.usefixtures("alone")
def test_a_plan_shares_the_files_out_and_the_source_is_read_once(
    planned_factory: Callable[..., PlannedNodes],
) -> None:
    """Each file has an owner, and half of the files have a second holder, which gets its copy after
    the owner. With the setting `fetch: holders`, a node that lacks a copy asks a holder even if the
    source is faster. So no file is read from the source a second time."""
    loader = Loader(DistributedSampler(FILES, RANKS, SEED), RANKS, 2)
    planned = planned_factory(
        loader, EPOCHS, FILES, SIZE, QUOTA, area=4 * MIB, peers={"fetch": "holders"}
    ).start()
    assert sum(node.nodes()["own_files"] for node in planned.all) == FILES
    for epoch in range(EPOCHS):
        planned.read([order_of(rank, epoch) for rank in range(RANKS)])
    planned.nodes.wait_idle()
    totals = [node.totals() for node in planned.all]
    assert all(map(follows, planned.all))
    assert planned.read_by_fills() == FILES * SIZE
    assert sum(each["fallbacks"] for each in totals) == 0
    # Each node owns a third of the files. According to the plan, it also keeps files that it does
    # not own.
    assert sum(each["bytes_from_peers"] for each in totals) > 0
    assert all(node.nodes()["kept_files"] > FILES // RANKS for node in planned.all)


@pytest.fixture
def pair(planned_factory: Callable[..., PlannedNodes]) -> PlannedNodes:
    """Makes two nodes, but does not start them. If a file is staged on both nodes, the second node
    gets it from the first, even if the source would be faster."""
    loader = Loader(DistributedSampler(FILES, 2, SEED), 2, 2)
    peers = {"fetch": "holders"}
    return planned_factory(loader, EPOCHS, FILES, SIZE, QUOTA, area=2 * MIB, peers=peers)


def assert_read_once(pair: PlannedNodes) -> None:
    """Asserts that both nodes follow the plan, and that each file was read from the source by only
    one of the nodes."""
    for node in pair.all:
        pair.wait_follows(node)
    pair.nodes.wait_idle()
    assert pair.all[0].totals()["bytes_from_peers"] > 0
    assert pair.read_by_fills() == FILES * SIZE


@pytest.mark.long  # without --long, the next test covers this case
@pytest.mark.usefixtures("alone")
def test_who_is_there_first_reads_nothing_for_the_others(pair: PlannedNodes) -> None:
    """The first node fetches ahead, while the other node's daemon does not run yet. Even so, each
    file is read from the source only once."""
    first, late = pair.all
    with first.start(), late:
        first.wait_scanned()
        wait_until(lambda: late.seen_by(first)["last_failure"] != "ok", what="an attempt")
        late.start()
        late.wait_scanned()
        assert_read_once(pair)


def test_who_knows_first_reads_nothing_for_who_does_not_know_yet(pair: PlannedNodes) -> None:
    """The daemon of the node `late` runs, but has not found the plan's files yet. Even so, each
    file is read from the source only once."""
    first, late = pair.all
    late.config.write_text(late.config.read_text() + f"scan_rate: {FILES // sized(2, 3)}\n")
    with first.start(), late.start():
        pair.wait_follows(first)
        assert not late.status()["scanned"]
        assert_read_once(pair)
