"""The values of a curve of rates between, below and above its points, and units of rates."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from monarch_py.simulator.scenario import Curve
from monarch_py.util.units import GIB, KIB, MIB, parse_amount, parse_rate

# The rate of the file system by number of clients [MB/s], from NoPFS, section 6.1.
PFS = Curve({1: 330.0, 2: 730.0, 4: 1540.0, 8: 2870.0})
CURVES = st.dictionaries(st.integers(1, 64), st.floats(1, 1e12), min_size=1).map(Curve)


@pytest.mark.parametrize(
    ("clients", "total"),
    [(0, 0), (1, 330), (2, 730), (3, 1135), (4, 1540), (5, 1872.5), (8, 2870), (9, 2870)],
)
def test_between_points_it_is_linear_and_above_the_last_constant(
    clients: int, total: float
) -> None:
    assert PFS.total(clients) == pytest.approx(total)


def test_below_the_first_point_it_is_proportional() -> None:
    staging = Curve({8: 111_000.0})
    assert staging.total([1, 2, 8, 16]) == pytest.approx([13_875, 27_750, 111_000, 111_000])


@given(CURVES, st.integers(1, 100))
def test_points_are_met(curve: Curve, number: int) -> None:
    for known, rate in curve.points.items():
        assert float(curve.total(known)) == pytest.approx(rate)
    lowest, highest = min(curve.points.values()), max(curve.points.values())
    assert 0 < float(curve.total(number)) <= highest * (1 + 1e-12)
    if number >= min(curve.points):
        assert float(curve.total(number)) >= lowest * (1 - 1e-12)


def test_many_numbers_at_once() -> None:
    numbers = np.array([[1, 2], [4, 8]])
    assert PFS.total(numbers) / numbers == pytest.approx(np.array([[330, 365], [385, 358.75]]))


@pytest.mark.parametrize(
    "points", [{}, {0: 1.0}, {1: 0.0}, {1: -5.0}, {1: float("nan")}, {2: float("inf")}]
)
def test_what_is_no_curve_is_refused(points: dict[int, float]) -> None:
    with pytest.raises(ValueError, match="curve"):
        Curve(points)


@pytest.mark.parametrize(
    ("text", "rate"),
    [
        ("64MiB/s", 64 * MIB),
        ("1.5 GB / s", 1.5e9),
        (" 330MiB/s ", 330 * MIB),
        ("24GiB", 24 * GIB),
        ("0.5", 0.5),
    ],
)
def test_rates_are_read(text: str, rate: float) -> None:
    assert parse_rate(text) == rate


@pytest.mark.parametrize(
    "text", ["", "0", "0MiB/s", "-64MiB/s", "MiB/s", "64MiB/h", "64MiB/s/s", "nan", "inf", "1e3"]
)
def test_no_rates(text: str) -> None:
    with pytest.raises(ValueError, match=r"rate"):
        parse_rate(text)


def test_an_amount_keeps_its_fraction() -> None:
    assert parse_amount("0.76KiB") == 0.76 * KIB
    assert parse_amount("0.1077MiB") == 0.1077 * MIB
    with pytest.raises(ValueError, match="not a unit"):
        parse_amount("3 apples")
    with pytest.raises(ValueError, match="more than any"):
        parse_amount("10000000TiB")
