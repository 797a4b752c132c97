"""The order in which a node keeps files that only other nodes use."""

from __future__ import annotations

import numpy as np
import pytest

from monarch_py.daemon.plans.placement import _first_by_anybody
from monarch_py.plan import Plan, PlanPart, analyse
from monarch_py.plan.index import Index
from monarch_py.plan.loader import Loader
from monarch_py.plan.samplers import DistributedSampler


@pytest.mark.parametrize("drop_last", [False, True])
@pytest.mark.parametrize(("files", "ranks", "nodes"), [(101, 8, 4), (99, 6, 2), (40, 3, 3)])
def test_the_first_use_by_anybody_is_the_first_of_all_nodes(
    files: int, ranks: int, nodes: int, drop_last: bool
) -> None:
    index = Index.of("files", "/source", [str(i) for i in range(files)], [1] * files)
    sampler = DistributedSampler(files, ranks, seed=1, drop_last=drop_last)
    plan = Plan((index,), (PlanPart("training", 0, Loader(sampler, ranks, 4)),), 3, nodes)
    timeline = plan.timeline()
    each = np.stack([analyse(timeline, node).first_use for node in range(nodes)])
    assert _first_by_anybody(timeline).tolist() == each.min(axis=0).tolist()
