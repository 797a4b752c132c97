"""Parsers of single values: each takes a YAML node and its spot, and raises ConfigError.

They read the text of a scalar and not YAML's idea of its type, so that a number may stand in
quotes, as in configurations of the original Monarch, and `1:30` or `1_000` is no number.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path

import yaml

from monarch_py.document.nodes import Spot, is_empty
from monarch_py.document.table import Parser
from monarch_py.util.units import parse_amount, parse_rate, parse_size

__all__ = [
    "amount",
    "choice",
    "duration",
    "flag",
    "integer",
    "path",
    "rate",
    "scalar",
    "share",
    "size",
]

_FLAGS = {"true": True, "yes": True, "on": True, "false": False, "no": False, "off": False}
_RATE_MEND = "write a rate above 0, such as 64MiB/s or 1.5GB/s"
_VARIABLE = re.compile(r"\$(?:(?P<dollar>\$)|(?P<bare>\w+)|\{(?P<braced>\w+)\})?", re.ASCII)
_SECONDS = {"": 1, "s": 1, "min": 60, "h": 3600, "d": 86400}
_SIZE_MEND = "write a size such as 110GiB, 20GB or 1.5TiB, or a whole number of bytes"


def size(node: yaml.Node, spot: Spot) -> int:
    """A size [bytes], see units.parse_size."""
    try:
        return parse_size(scalar(node, spot, "a size", _SIZE_MEND))
    except ValueError as error:
        raise spot.error(str(error), _SIZE_MEND) from None


def amount(node: yaml.Node, spot: Spot) -> float:
    """An average size [bytes], which may have a fraction, see units.parse_amount."""
    try:
        return parse_amount(scalar(node, spot, "a size", _SIZE_MEND))
    except ValueError as error:
        raise spot.error(str(error), _SIZE_MEND) from None


def rate(node: yaml.Node, spot: Spot) -> float:
    """A rate [bytes/s] above 0, see units.parse_rate."""
    try:
        return parse_rate(scalar(node, spot, "a rate", _RATE_MEND))
    except ValueError as error:
        raise spot.error(str(error), _RATE_MEND) from None


def integer(least: int, most: int | None = None) -> Parser:
    """A parser of whole numbers from `least` to `most`, both included; None = no bound."""
    wanted = f"a whole number, {least} or more" if most is None else f"from {least} to {most}"
    mend = f"write {wanted}" if most is None else f"write a whole number {wanted}"

    def parse(node: yaml.Node, spot: Spot) -> int:
        text = scalar(node, spot, "a whole number", mend)
        # 18 digits hold every number anybody means, and int() of a million digits takes minutes.
        number = int(text) if re.fullmatch(r"-?[0-9]{1,18}", text) else None
        if number is None:
            raise spot.wrong_type(node, "a whole number", mend)
        if number < least or (most is not None and number > most):
            raise spot.error(f"{number} is out of range", mend)
        return number

    return parse


def share(node: yaml.Node, spot: Spot) -> float:
    """A part of the whole, from 0 to 1: `0.25`, or `25%`."""
    mend = "write a number from 0 to 1, or a percentage such as 25%"
    text = scalar(node, spot, "a share", mend)
    found = re.fullmatch(r"([0-9]{1,9}(?:\.[0-9]{1,9})?)\s*(%?)", text)
    if found is None:
        raise spot.wrong_type(node, "a share", mend)
    part = float(found[1]) / (100 if found[2] else 1)
    if part > 1:
        raise spot.error(f"{text!r} is more than 1", mend)
    return part


def duration(node: yaml.Node, spot: Spot) -> float:
    """A time [s]: `90`, `90s`, `1.5min`, `2h`."""
    mend = "write seconds, or a time such as 90s, 5min or 2h"
    text = scalar(node, spot, "a time", mend)
    found = re.fullmatch(r"([0-9]{1,9}(?:\.[0-9]{1,9})?)\s*([a-z]*)", text)
    if found is None or found[2] not in _SECONDS:
        raise spot.wrong_type(node, "a time", mend)
    return float(found[1]) * _SECONDS[found[2]]


def flag(node: yaml.Node, spot: Spot) -> bool:
    """true or false, in YAML's spellings, also in quotes."""
    text = scalar(node, spot, "true or false", "write true or false")
    if text.lower() not in _FLAGS:
        raise spot.wrong_type(node, "true or false", "write one of the two")
    return _FLAGS[text.lower()]


def choice(values: Mapping[str, str]) -> Parser:
    """A parser of a few words: written word -> what it means here."""
    mend = "write " + " or ".join(values)

    def parse(node: yaml.Node, spot: Spot) -> str:
        text = scalar(node, spot, "a word", mend)
        if text not in values:
            raise spot.error(f"{text!r} is not known", mend)
        return values[text]

    return parse


def path(node: yaml.Node, spot: Spot) -> Path:
    """An absolute path, after ~ and the variables of the environment are expanded."""
    mend = "write an absolute path, beginning with '/', '~' or a variable such as $HOME"
    text = scalar(node, spot, "a path", mend)
    # The tilde first, as in a shell: one that comes out of a variable is a character.
    expanded = _VARIABLE.sub(lambda found: _value_of(found, spot), os.path.expanduser(text))
    if not os.path.isabs(expanded):
        if text[:1] not in "~$":
            here = os.path.abspath(os.path.join(os.path.dirname(spot.document.name), expanded))
            mend = f"write {here!r}, if you mean that"
        raise spot.error(f"{text!r} is not an absolute path", mend)
    # Path keeps `..`, which a comparison by prefix would never see through.
    return Path(os.path.realpath(expanded) if ".." in Path(expanded).parts else expanded)


def _is_usable(text: str) -> bool:
    """Whether it can be a part of a path; functions of the system refuse all else in odd ways."""
    try:
        return b"\0" not in os.fsencode(text)
    except UnicodeEncodeError:
        return False


def _value_of(found: re.Match[str], spot: Spot) -> str:
    if found["dollar"]:
        return "$"
    name = found["bare"] or found["braced"]
    if name is None:
        raise spot.error(
            "has a '$' with no name behind it", "write $NAME or ${NAME}, or $$ for a dollar sign"
        )
    # Empty counts as undefined: "/scratch/$JOB" must never become "/scratch/".
    if not os.environ.get(name):
        raise spot.error(
            f"the variable {name} is not set in the environment",
            f"export {name} or write the path without it",
        )
    return os.environ[name]


def scalar(node: yaml.Node, spot: Spot, wanted: str, mend: str) -> str:
    """The text of a scalar; ConfigError that it must be `wanted` for all else."""
    if not isinstance(node, yaml.ScalarNode) or is_empty(node):
        raise spot.wrong_type(node, wanted, mend)
    if not _is_usable(node.value):
        raise spot.error(f"{node.value!r} holds a character that no path can", "remove it")
    return str(node.value)
