"""Parses and formats sizes and rates as people write them."""

import re
from fractions import Fraction

KIB = 1 << 10
MIB = 1 << 20
GIB = 1 << 30
TIB = 1 << 40

_BINARY_UNITS = (("KiB", KIB), ("MiB", MIB), ("GiB", GIB), ("TiB", TIB))
_UNIT_BYTES = {"": 1, "b": 1, "kb": 10**3, "mb": 10**6, "gb": 10**9, "tb": 10**12}
_UNIT_BYTES |= {name.lower(): n_bytes for name, n_bytes in _BINARY_UNITS}

# The largest size [bytes]. No file or file system holds more bytes, because off_t is signed.
_LARGEST_BYTES = (1 << 63) - 1

# The pattern uses [0-9] instead of \d, because \d also matches the digits of other scripts. The
# number of digits is limited, so that parsing stays cheap.
_SIZE = re.compile(r"([0-9]{1,30}(?:\.[0-9]{1,30})?)\s*([A-Za-z]*)")


def parse_size(size: str) -> int:
    """Returns the number of bytes that `size` means: ``110GiB``, ``20 GB``, ``1.5TiB``, ``1234``.

    KB, MB, GB, TB are powers of 1000; KiB, MiB, GiB, TiB are powers of 1024; case does not matter.
    A number without a unit must be an integer. With a unit, a fraction of a byte is dropped
    (``1.1GiB``), but the result must not become 0. Raises ValueError for any other text, for
    example a negative size, an unknown unit, or more than 2**63 - 1 bytes. The error's message is
    one sentence.
    """
    exact, unit_bytes = _parsed(size, size, "size")
    n_bytes = int(exact)
    if exact != n_bytes and (unit_bytes == 1 or n_bytes == 0):
        raise ValueError(f"{size!r} is a fraction of a byte")
    return n_bytes


def parse_amount(amount: str) -> float:
    """Returns the number of bytes that `amount` means, as the nearest float. The amount is an
    average, so fractions of a byte are kept (``0.76KiB`` is 778.24). Otherwise accepts the same
    texts as `parse_size`."""
    return float(_parsed(amount, amount, "size")[0])


def parse_rate(rate: str) -> float:
    """Returns the bytes per second that `rate` means: ``64MiB/s``, ``1.5 GB/s``, or without ``/s``.

    Raises ValueError for other text, and for rates of 0 or less. The error's message is one
    sentence.
    """
    if rate.strip().startswith("-"):
        raise ValueError(f"{rate!r} is a negative rate")
    per_second = float(_parsed(re.sub(r"\s*/\s*s\s*$", "", rate), rate, "rate")[0])
    if per_second == 0:
        raise ValueError(f"{rate!r} is a rate of 0, at which no transfer would end")
    return per_second


def _parsed(text: str, written: str, what: str) -> tuple[Fraction, int]:
    """Returns the exact number of bytes that `text` means, and the number of bytes in its unit.

    written : the complete text that the user has written, for error messages; `text` may be a part
        of it
    what : "size" or "rate", for error messages
    """
    found = _SIZE.fullmatch(text.strip())
    if found is None:
        raise ValueError(f"{written!r} is not a {what}")
    unit = found[2].lower()
    if unit not in _UNIT_BYTES:
        is_short = unit + "ib" in _UNIT_BYTES
        use = f"write {found[2]}iB or {found[2]}B" if is_short else f"{found[2]!r} is not a unit"
        raise ValueError(f"{written!r} is not a {what}: {use}")
    exact = Fraction(found[1]) * _UNIT_BYTES[unit]
    if exact > _LARGEST_BYTES:
        raise ValueError(f"{written!r} is more than any file system holds")
    return exact, _UNIT_BYTES[unit]


def format_size(n_bytes: int) -> str:
    """Returns `n_bytes` [bytes] in the largest binary unit that it reaches, with at most one
    decimal.

    A whole number of units is shown exactly (``4 MiB``); other sizes are rounded (``976.6 KiB``).
    Raises ValueError for a negative number.
    """
    if n_bytes < 0:
        raise ValueError(f"{n_bytes} is not a size")
    if n_bytes < KIB:
        return f"{n_bytes} B"
    # The number is rounded before the unit is chosen, so that 1 MiB minus a byte becomes "1 MiB",
    # never "1024 KiB".
    fitting = (pair for pair in _BINARY_UNITS if _tenths(n_bytes, pair[1]) < 10 * 1024)
    name, unit = next(fitting, _BINARY_UNITS[-1])
    whole, tenth = divmod(_tenths(n_bytes, unit), 10)
    return f"{whole}.{tenth} {name}" if tenth else f"{whole} {name}"


def _tenths(n_bytes: int, unit: int) -> int:
    """Returns `n_bytes` in tenths of `unit`, rounded half up."""
    return (20 * n_bytes + unit) // (2 * unit)


def counted(n: int, noun: str) -> str:
    """Returns a number with its noun: ``1 copy``, ``1,234 copies``."""
    if n == 1:
        return f"1 {noun}"
    return f"{n:,} {noun[:-1]}ies" if noun.endswith("y") else f"{n:,} {noun}s"
