"""What needs gigabytes runs on demand: `python -m pytest tests/plan --long`."""

from __future__ import annotations

import pytest


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if config.getoption("--long"):
        return
    long = [item for item in items if item.get_closest_marker("long")]
    # Not skipped: in CI a skip means that something is missing.
    config.hook.pytest_deselected(items=long)
    items[:] = [item for item in items if item not in long]
