"""How many random cases a test draws: few in every run, more with --long."""

from __future__ import annotations

from typing import Any

import pytest

# conftest.py sets `is_long` before it imports the tests. With --long, property tests get MORE times
# as many examples.
is_long, MORE = False, 5


def examples(count: int) -> int:
    return count * MORE if is_long else count


def seeds(count: int, few: int = 2) -> list[Any]:
    """Returns the values of a parameter; all but the first `few` are run only with --long."""
    return [pytest.param(n, marks=[pytest.mark.long] * (n >= few)) for n in range(count)]
