"""How many cases a test draws: few in every run, more with --long."""

from __future__ import annotations

from typing import Any

import pytest

# Set by conftest.py before it loads the tests. With --long, properties get so many times as many
# examples.
is_long, MORE = False, 5


def examples(count: int) -> int:
    return count * MORE if is_long else count


def seeds(count: int, few: int = 2) -> list[Any]:
    """Values of a parameter, of which all but a few take --long."""
    return [pytest.param(n, marks=[pytest.mark.long] * (n >= few)) for n in range(count)]
