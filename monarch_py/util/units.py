"""Reads and writes sizes and rates as people write them."""

from __future__ import annotations

import re

__all__ = [
    "GIB",
    "KIB",
    "MIB",
    "TIB",
    "counted",
    "format_size",
    "parse_amount",
    "parse_rate",
    "parse_size",
]

KIB = 1 << 10
MIB = 1 << 20
GIB = 1 << 30
TIB = 1 << 40

_UNIT_BYTES = {
    "": 1,
    "b": 1,
    "kb": 10**3,
    "mb": 10**6,
    "gb": 10**9,
    "tb": 10**12,
    "kib": KIB,
    "mib": MIB,
    "gib": GIB,
    "tib": TIB,
}
_BINARY_UNITS = (("KiB", KIB), ("MiB", MIB), ("GiB", GIB), ("TiB", TIB))

# off_t is signed: no file and no file system holds more bytes than this.
_LARGEST_BYTES = (1 << 63) - 1

# [0-9] and not \d, which also takes the digits of other scripts. The lengths keep int() cheap.
_SIZE = re.compile(r"([0-9]{1,30})(?:\.([0-9]{1,30}))?\s*([A-Za-z]*)")


def parse_size(size: str | float) -> int:
    """The number of bytes that `size` means.

    `size` is a number of bytes or a text such as ``110GiB``, ``20 GB``, ``1.5TiB``, ``1234``.
    KB, MB, GB, TB are powers of 1000; KiB, MiB, GiB, TiB powers of 1024; case does not matter.
    A number without a unit must be whole; if a unit leaves a fraction of a byte (``1.1GiB``), the
    fraction is dropped. Raises ValueError, with one sentence, for everything else: negative sizes,
    nan, fractions of a byte, unknown units, more than 2**63 - 1 bytes.
    """
    if isinstance(size, str):
        n_bytes = _parse_text(size)
    # nan and the infinities fail here too, because their remainder is never 0.
    elif isinstance(size, bool) or size < 0 or size % 1 != 0:
        raise ValueError(f"{size!r} is not a whole number of bytes, 0 or more")
    else:
        n_bytes = int(size)
    if n_bytes > _LARGEST_BYTES:
        raise ValueError(f"{size!r} is more than any file system holds")
    return n_bytes


def _parse_text(text: str) -> int:
    number, scale, unit_bytes = _parts(text, text, "size")
    # Integers, because 8.1 TiB as a product of floats is a byte off.
    n_bytes, rest = divmod(number * unit_bytes, scale)
    if rest and (unit_bytes == 1 or n_bytes == 0):
        raise ValueError(f"{text!r} is a fraction of a byte")
    return n_bytes


def parse_amount(amount: str) -> float:
    """The mean number of bytes that `amount` means: as parse_size, but with fractions of a byte
    (``0.76KiB`` is 778.24), as the nearest float.

    Raises ValueError, with one sentence, for what is not a size or larger than any file system.
    """
    n_bytes = _to_float(amount, amount, "size")
    if n_bytes > _LARGEST_BYTES:
        raise ValueError(f"{amount!r} is more than any file system holds")
    return n_bytes


def parse_rate(rate: str) -> float:
    """The bytes per second that `rate` means: ``64MiB/s``, ``1.5 GB/s``, or without ``/s``.

    Raises ValueError, with one sentence, for what is not a rate, and for rates of 0 or less.
    """
    amount = rate.strip()
    if amount.startswith("-"):
        raise ValueError(f"{rate!r} is negative and so no rate")
    per_second = _to_float(re.sub(r"\s*/\s*s$", "", amount), rate, "rate")
    if per_second == 0:
        raise ValueError(f"{rate!r} is no rate, since nothing would ever end")
    return per_second


def _to_float(text: str, written: str, what: str) -> float:
    number, scale, unit_bytes = _parts(text, written, what)
    # Python rounds a quotient of whole numbers once, to the nearest float.
    return number * unit_bytes / scale


def _parts(text: str, written: str, what: str) -> tuple[int, int, int]:
    """`text` as (number, scale, bytes of the unit), which is number / scale units."""
    found = _SIZE.fullmatch(text.strip())
    if found is None:
        raise ValueError(f"{written!r} is not a {what}")
    whole, decimals, unit = found[1], found[2] or "", found[3].lower()
    if unit + "ib" in _UNIT_BYTES and unit not in _UNIT_BYTES:
        raise ValueError(f"{written!r} is not a {what}: the unit is {found[3]}iB or {found[3]}B")
    if unit not in _UNIT_BYTES:
        raise ValueError(f"{written!r} is not a {what}: {found[3]!r} is not a unit")
    return int(whole + decimals), int(10 ** len(decimals)), _UNIT_BYTES[unit]


def format_size(n_bytes: int) -> str:
    """`n_bytes` [bytes] in the largest binary unit that it reaches, with at most one decimal.

    Whole numbers of that unit lose nothing (``4 MiB``); others are rounded (``976.6 KiB``).
    Raises ValueError for a negative number.
    """
    if n_bytes < 0:
        raise ValueError(f"{n_bytes} is not a size")
    if n_bytes < KIB:
        return f"{n_bytes} B"
    # The rounded number decides the unit: 1 MiB less a byte is "1 MiB", never "1024 KiB".
    fitting = (pair for pair in _BINARY_UNITS if _tenths(n_bytes, pair[1]) < 10 * 1024)
    name, unit = next(fitting, _BINARY_UNITS[-1])
    whole, tenth = divmod(_tenths(n_bytes, unit), 10)
    return f"{whole}.{tenth} {name}" if tenth else f"{whole} {name}"


def _tenths(n_bytes: int, unit: int) -> int:
    """`n_bytes` in tenths of `unit`, rounded half up."""
    return (20 * n_bytes + unit) // (2 * unit)


def counted(n: int, noun: str) -> str:
    """A number of things: ``1 copy``, ``1,234 copies``."""
    if n == 1:
        return f"1 {noun}"
    return f"{n:,} {noun[:-1]}ies" if noun.endswith("y") else f"{n:,} {noun}s"
