"""Tests which texts are accepted as sizes and which are refused, and that a formatted size can be
read again."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from monarch_py.util.units import format_size, parse_size

KNOWN = [
    ("1234", 1234),
    ("0", 0),
    ("12 B", 12),
    ("20 GB", 20 * 10**9),
    ("20kb", 20_000),
    ("3MB", 3 * 10**6),
    ("2 TB", 2 * 10**12),
    ("4KiB", 4096),
    (" 110GiB ", 110 * 2**30),
    ("1.5TiB", 3 * 2**39),
    ("0.5kib", 512),
    # 1.1 * 2**30 = 1181116006.4: the fraction of a byte is dropped.
    ("1.1GiB", 1181116006),
    (str(2**63 - 1), 2**63 - 1),
]


@pytest.mark.parametrize(("text", "n_bytes"), KNOWN)
def test_sizes_are_read(text: str, n_bytes: int) -> None:
    assert parse_size(text) == n_bytes


NO_SIZES = [
    *["", "GiB", "-1", "-4KiB", "nan", "inf", "1e3", "0x10", "1_000", "1,5GiB", "1.GiB", ".5GiB"],
    *["20G", "20Gb/s", "1 2", "½KiB", "١٢", "1.5", "0.5B", "0.0001KiB", str(2**63), "9" * 5000],
]


@pytest.mark.parametrize("text", NO_SIZES)
def test_what_is_no_size_is_refused_in_one_sentence(text: str) -> None:
    with pytest.raises(ValueError, match=r"^[^\n]+[^.\n]$"):
        parse_size(text)


@pytest.mark.parametrize(
    ("n_bytes", "text"),
    [
        (0, "0 B"),
        (1023, "1023 B"),
        (1024, "1 KiB"),
        (1536, "1.5 KiB"),
        (10**6, "976.6 KiB"),
        (2**20 - 1, "1 MiB"),
        (4 * 2**20, "4 MiB"),
        (110 * 2**30, "110 GiB"),
        (5000 * 2**40, "5000 TiB"),
    ],
)
def test_sizes_are_written(n_bytes: int, text: str) -> None:
    assert format_size(n_bytes) == text


def test_a_negative_size_is_not_written() -> None:
    with pytest.raises(ValueError, match="-1"):
        format_size(-1)


SIZES = st.integers(0, 2**62) | st.integers(0, 62).map(lambda power: 2**power - 1)


@given(count=st.integers(0, 1023), unit=st.sampled_from([1, 2**10, 2**20, 2**30, 2**40]))
def test_whole_units_survive_writing_and_reading(count: int, unit: int) -> None:
    assert parse_size(format_size(count * unit)) == count * unit


@given(n_bytes=SIZES)
def test_any_size_survives_to_the_last_digit_written(n_bytes: int) -> None:
    written = format_size(n_bytes)
    again = parse_size(written)
    assert format_size(again) == written
    # A size is written with one decimal, so the error is at most 0.05 units. The size is at least
    # 0.95 units, so the error is at most 5.3 % (0.05 / 0.95) of the size.
    assert abs(again - n_bytes) <= 1 + n_bytes * 0.053


@given(n_bytes=st.integers(0, 2**63 - 1), blank=st.sampled_from(["", " "]))
def test_a_number_of_bytes_is_read_exactly(n_bytes: int, blank: str) -> None:
    assert parse_size(str(n_bytes)) == n_bytes
    assert parse_size(f"{n_bytes}{blank}B") == n_bytes


@given(thousandths=st.integers(0, 10**9), unit=st.sampled_from(["KB", "MB", "GB", "TB"]))
def test_decimal_fractions_are_exact_in_decimal_units(thousandths: int, unit: str) -> None:
    whole, decimals = divmod(thousandths, 1000)
    bytes_per_thousandth = {"KB": 1, "MB": 10**3, "GB": 10**6, "TB": 10**9}[unit]
    assert parse_size(f"{whole}.{decimals:03}{unit}") == thousandths * bytes_per_thousandth
