"""Every named policy makes valid decisions, and no two policies make the same decisions."""

from __future__ import annotations

import numpy as np
import pytest
from policies.jobs import cluster, shuffled

from monarch_py.errors import PolicyError
from monarch_py.policies.named import NAMES, POLICIES
from monarch_py.policies.view import NO_FILE, PFS, STAGING, Decision, Job

# These policies change which node uses which sample. They may refuse nodes with different numbers
# of ranks, or give the nodes batches of different sizes.
UNEVEN = ("locality-aware", "solar", "solar-reordered")


def job_of(ranks: tuple[int, ...] = (2, 2, 2)) -> Job:
    """Returns a job for nodes whose memory holds half of the dataset. Their disks hold a fifth."""
    return shuffled(360, cluster([[60, 24]] * 3, ranks=ranks), epochs=4, batch=6)


@pytest.mark.parametrize("ranks", [(2, 2, 2), (2, 1, 2)])
@pytest.mark.parametrize("name", [each for each in NAMES if not each.startswith("lbann")])
def test_what_it_wants_can_be(name: str, ranks: tuple[int, ...]) -> None:
    """The copies in a storage class fit into it, and a node has at most one copy of a file. Orders
    name only existing files. The copies that serve accesses are not in the staging buffer."""
    job = job_of(ranks)
    try:
        decision = POLICIES[name](job)
    except PolicyError:
        assert name in UNEVEN
        assert len(set(ranks)) > 1
        return
    copies, capacity = decision.copies, job.cluster.capacity
    used = np.zeros(capacity.shape, dtype=np.int64)
    np.add.at(used, (copies.node, copies.cls), job.sizes[copies.file])
    assert (used[:, STAGING + 1 :] <= capacity[:, STAGING + 1 :]).all()
    assert not (copies.cls == STAGING).any()
    assert len({*zip(copies.node.tolist(), copies.file.tolist(), strict=True)}) == len(copies.file)
    for epoch in range(job.epochs):
        order = (decision.orders or job.orders)(epoch)
        assert ((order >= 0) & (order < job.files) | (order == NO_FILE)).all()
        if name not in UNEVEN:
            assert ((order == NO_FILE) == (job.orders(epoch) == NO_FILE)).all()
        if decision.served is None:
            continue
        served = decision.served(epoch, order)
        assert served.holder.shape == served.cls.shape == order.reshape(3, -1).shape
        assert (served.cls[served.holder != PFS] != STAGING).all()
        assert not served.into[order.reshape(3, -1) == NO_FILE].any()
        assert (served.down >= served.into).all()
        if not decision.remote:
            own = served.holder == np.arange(3)[:, None]
            assert (own | (served.holder == PFS)).all()


def told(job: Job, decision: Decision) -> str:
    """Returns all decisions of a policy as text, for comparison."""
    orders = [(decision.orders or job.orders)(epoch) for epoch in range(job.epochs)]
    served = decision.served
    holders = [served(e, o).holder.tolist() for e, o in enumerate(orders)] if served else None
    rows = sorted(zip(*(each.tolist() for each in vars(decision.copies).values()), strict=True))
    flags = (decision.staging, decision.remote, decision.pfs, decision.free, decision.when)
    return repr((flags, rows, holders, [order.tolist() for order in orders]))


def test_no_two_are_one() -> None:
    """Any two policies differ on at least one of two jobs, in a decision or in a refusal.

    If memory holds all files, DeepIO's ordered mode and LBANN's preloading make equal decisions. So
    memory does not hold all files in one of the two jobs, and LBANN refuses that job."""
    small = shuffled(120, cluster([[60, 24]] * 3), epochs=4, batch=4)
    decided: dict[str, str] = {}
    for name in NAMES:
        answers = []
        for job in (job_of(), small):
            try:
                answers.append(told(job, POLICIES[name](job)))
            except PolicyError as error:
                answers.append(type(error).__name__)
        decided[name] = repr(answers)
    assert len(set(decided.values())) == len(NAMES)
