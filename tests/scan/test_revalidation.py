"""When directories are compared with the source again."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from monarch_py.daemon.scan.revalidation import Metadata


@pytest.mark.parametrize("answer", ["hits", "metadata_hits"])
def test_an_open_that_finds_no_copy_makes_no_comparison_due(answer: str) -> None:
    """An open that finds no copy makes no comparison due, because the source itself answers it. An
    answer that relies on the last comparison makes the next one due."""
    totals = {"hits": 0, "misses": 0, "opens": 0, "metadata_hits": 0}
    config: Any = SimpleNamespace(metadata="cached", revalidate_s=1)
    shared: Any = SimpleNamespace(totals=lambda: totals, clients=SimpleNamespace(stale=0))
    metadata = Metadata(config, shared, None)  # type: ignore[arg-type]
    totals.update(opens=5, misses=5)
    assert not metadata._is_due()
    totals[answer] += 1
    assert metadata._is_due()
