"""The suites that take minutes run on demand: `python -m pytest tests/conformance --long`."""

from __future__ import annotations

import pytest

LIMIT_S = 2000  # two runs of a suite, and some


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    long = [item for item in items if item.get_closest_marker("long")]
    if config.getoption("--long"):
        for item in long:
            item.add_marker(pytest.mark.timeout(LIMIT_S))
        return
    # Not skipped: in CI a skip means that something is missing.
    config.hook.pytest_deselected(items=long)
    items[:] = [item for item in items if item not in long]
