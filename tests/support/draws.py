"""Selects the cases, sizes and random draws that a test tries in every run, and those that it tries
only with --long."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Any, TypeVar

import pytest

# conftest.py sets `is_long` before it imports the tests. With --long, `examples` multiplies the
# number of a property test's examples by MORE.
is_long, MORE = False, 5

T = TypeVar("T")


def examples(count: int) -> int:
    return count * MORE if is_long else count


def seeds(count: int, few: int = 2) -> list[Any]:
    """Returns 0 to `count` - 1 as values of a test's parameter. Without --long, the test is run
    with the first `few` values only."""
    return [pytest.param(n, marks=[pytest.mark.long] * (n >= few)) for n in range(count)]


def cases(values: Iterable[Any], short: Collection[Any]) -> list[Any]:
    """Returns `values` as values of a test's parameter. Without --long, the test is run only with
    the values in `short`."""
    every = list(values)
    assert all(value in every for value in short), "a short case is not among the cases"
    return [pytest.param(v, marks=[pytest.mark.long] * (v not in short)) for v in every]


def sized(short: T, long: T) -> T:
    """Returns a size, a duration or a number of rounds: `long` with --long, otherwise `short`."""
    return long if is_long else short
