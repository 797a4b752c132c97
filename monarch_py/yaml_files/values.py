"""Kinds of single values: how to parse them, and how the reference and the JSON schema show them.

A Kind reads the text of a scalar, whatever type YAML gives this scalar. So a number may be in
quotes, as in configurations of the original Monarch. Numbers such as `1:30` and `1_000` are
refused, although YAML accepts them.
"""

import os
import pwd
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import msgspec
import yaml
from msgspec import Meta

from monarch_py.util.spelling import hint as did_you_mean
from monarch_py.util.units import format_size, parse_amount, parse_rate, parse_size
from monarch_py.yaml_files.nodes import Spot, cut, is_empty, shown

_VARIABLE = re.compile(r"\$(?:(?P<dollar>\$)|(?P<bare>\w+)|\{(?P<braced>\w+)\})?", re.ASCII)
FLAGS = {"true": True, "yes": True, "on": True, "false": False, "no": False, "off": False}
_SECONDS = {"": 1, "s": 1, "min": 60, "h": 3600, "d": 86400}
SIZE_HINT = "write a size such as 110GiB, 20GB or 1.5TiB, or a whole number of bytes"
# The reference shows the upper bound of a number only if the bound is at most MOST_TOLD. Larger
# bounds are safeguards, which no user needs to know.
MOST_TOLD = (1 << 16) - 1
# A whole number may have at most 18 digits. Every number with so few digits fits into 64 bits.
_NUMBER = re.compile("-?[0-9]{1,18}", re.ASCII)
MOST_NUMBER = 10**18 - 1
TEXT = {"type": "string"}
NUMBER = {"type": ["string", "number"]}


# `eq=False` makes a Kind hashable. Python hashes the annotations of types that are joined with `|`.
@dataclass(frozen=True, slots=True, eq=False)
class Kind:
    """A kind of value, such as a size or a path.

    parse : a function that reads a value of this kind from a node
    value : the words for such a value in the reference
    schema : the JSON schema of such a value
    show : a function that turns a default value into text, for the reference
    example : a value that hints show; '' for none
    """

    parse: Callable[[yaml.Node, Spot], Any]
    value: str
    schema: Mapping[str, Any]
    show: Callable[[Any], str] = str
    example: str = ""


def words(
    value: str,
    hint: str,
    parse: Callable[[str], Any],
    *,
    schema: Mapping[str, Any] = TEXT,
    show: Callable[[Any], str] = str,
    example: str = "",
) -> Kind:
    """Returns a kind whose values `parse` reads from text.

    To refuse a text, `parse` raises ValueError with one or two arguments: the problem that the
    message describes, and a hint to show instead of `hint`. If the error has no arguments, the
    message only says that the value cannot be this text.
    """

    def read(node: yaml.Node, spot: Spot) -> Any:
        text = scalar(node, spot, hint)
        try:
            return parse(text)
        except ValueError as error:
            if not error.args:
                raise spot.unfit(node, hint) from None
            problem, *others = error.args
            told = str(problem).replace(repr(text), shown(text))
            raise spot.error(told, others[0] if len(others) == 1 else hint) from None

    return Kind(read, value, schema, show, example)


def choice(*shown: str, **others: str) -> Kind:
    """Returns the Kind that reads one of a few words.

    shown : the words
    others : word that is accepted but not documented -> the word in `shown` that it stands for
    """
    accepted = {**{word: word for word in shown}, **others}
    otherwise = f"write {_either(shown)}"

    def parse(text: str) -> str:
        if text not in accepted:
            raise ValueError(f"{text!r} is not known", did_you_mean(text, shown, otherwise))
        return accepted[text]

    # YAML reads digits without quotes as a number, so the schema must accept the number too.
    numbers = [int(word) for word in accepted if word.isdecimal()]
    names = _either([f"`{word}`" for word in shown])
    schema = {"enum": [*accepted, *numbers]}
    return words(names, otherwise, parse, schema=schema, show="`{}`".format)


def _either(words: Sequence[str]) -> str:
    return " or ".join(filter(None, (", ".join(words[:-1]), words[-1])))


def integer(annotation: Any) -> Kind:
    """Returns the Kind that reads integers within the bounds of an annotation, for example
    ``Annotated[int, Meta(ge=1, le=256, title="threads")]``."""
    marks = getattr(annotation, "__metadata__", ())
    meta = next((mark for mark in marks if isinstance(mark, Meta)), Meta())
    bounds = "" if meta.ge is None else f", {meta.ge} or more"
    value = meta.title or "number"
    if meta.le is not None:
        bounds = f" from {meta.ge} to {meta.le}"
        if meta.le <= MOST_TOLD:
            value = f"{meta.ge} to {meta.le} {meta.title or ''}".strip()

    def parse(text: str) -> int:
        if not _NUMBER.fullmatch(text):
            raise ValueError
        try:
            return int(msgspec.convert(int(text), annotation))
        except msgspec.ValidationError:
            raise ValueError(f"{int(text)} is out of range") from None

    schema: dict[str, Any] = {"type": ["integer", "string"], "pattern": "^-?[0-9]+$"}
    schema |= {"minimum": meta.ge} if meta.ge is not None else {}
    schema |= {"maximum": meta.le} if meta.le is not None else {}
    return words(value, f"write a whole number{bounds}", parse, schema=schema, example="1")


def _flag(text: str) -> bool:
    if text.lower() not in FLAGS:
        raise ValueError
    return FLAGS[text.lower()]


FLAG = words(
    "`true` or `false`",
    "write true or false",
    _flag,
    # For an editor, a word such as `yes` is a boolean, but "yes" in quotes is a string. The schema
    # accepts both.
    schema={"enum": [True, False, *FLAGS]},
    show=lambda value: f"`{str(value).lower()}`",
)


def _share(text: str) -> float:
    found = re.fullmatch(r"([0-9]{1,9}(?:\.[0-9]{1,9})?)\s*(%?)", text)
    if found is None:
        raise ValueError
    part = float(found[1]) / (100 if found[2] else 1)
    if part > 1:
        raise ValueError(f"{text!r} is more than 1")
    return part


def _duration(text: str) -> float:
    found = re.fullmatch(r"([0-9]{1,9}(?:\.[0-9]{1,9})?)\s*([a-z]*)", text)
    if found is None or found[2] not in _SECONDS:
        raise ValueError
    return float(found[1]) * _SECONDS[found[2]]


def _shown_duration(seconds: float) -> str:
    return f"{seconds / 60:g}min" if seconds % 60 == 0 else f"{seconds:g}s"


def shown_size(n_bytes: int) -> str:
    return format_size(n_bytes).replace(" ", "") if n_bytes else "0"


def path(node: yaml.Node, spot: Spot) -> Path:
    """Reads an absolute path. Expands ~ and environment variables."""
    hint = "write an absolute path, beginning with '/', '~' or a variable such as $HOME"
    text = scalar(node, spot, hint)
    # Expand the tilde before variables, as a shell does, so that a tilde in a variable's value
    # stays literal.
    expanded = _VARIABLE.sub(lambda found: _value_of(found, spot), os.path.expanduser(text))
    if not os.path.isabs(expanded):
        if text[:1] not in "~$" and text == cut(text):
            here = os.path.abspath(os.path.join(os.path.dirname(spot.document.name), expanded))
            hint = f"write {here!r}, if you mean that"
        raise spot.error(f"{shown(text)} is not an absolute path", hint)
    # Resolve `..` now, because later comparisons of path prefixes do not resolve it.
    return Path(os.path.realpath(expanded) if ".." in Path(expanded).parts else expanded)


def file(hint: str) -> Kind:
    """Returns the Kind that reads file paths. A relative path is relative to the document's
    directory."""

    def read(node: yaml.Node, spot: Spot) -> Path:
        text = scalar(node, spot, hint)
        if text[:1] in "/~$":
            return path(node, spot)
        return Path(os.path.abspath(spot.document.name)).parent / text

    return Kind(read, "file", TEXT)


# Size: whole bytes (units.parse_size). Amount: a mean size in bytes, which may have a fraction.
# Rate: bytes per second, above 0. Share: a fraction of a whole, such as `0.25` or `25%`. Duration:
# seconds, such as `90`, `90s`, `1.5min` or `2h`.
Size = Annotated[
    int, words("size", SIZE_HINT, parse_size, schema=NUMBER, show=shown_size, example="110GiB")
]
Amount = Annotated[float, words("size", SIZE_HINT, parse_amount, schema=NUMBER, show=shown_size)]
RATE_HINT = "write a rate above 0, such as 64MiB/s or 1.5GB/s"
Rate = Annotated[float, words("rate", RATE_HINT, parse_rate, schema=NUMBER, example="330MiB/s")]
SHARE_HINT = "write a number from 0 to 1, or a percentage such as 25%"
Share = Annotated[
    float, words("0 to 1, or percent", SHARE_HINT, _share, schema=NUMBER, show="{:g}".format)
]
TIME_HINT = "write seconds, or a time such as 90s, 5min or 2h"
Duration = Annotated[
    float, words("time", TIME_HINT, _duration, schema=NUMBER, show=_shown_duration)
]


def directory(example: str) -> Kind:
    """Returns the Kind that reads absolute paths of directories.

    example : a path, for the hints of messages
    """
    return Kind(path, "directory", TEXT, lambda found: f"`{found}`", example=example)


Directory = Annotated[Path, directory("/the/dataset")]


def _is_usable(text: str) -> bool:
    """Whether the text can be a part of a path: it can be encoded, and contains no NUL."""
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
            "has a '$' without a name after it", "write $NAME or ${NAME}, or $$ for a dollar sign"
        )
    # An empty variable counts as undefined. Otherwise "/scratch/$JOB" could become "/scratch/".
    value = os.environ.get(name) or (_account() if name == "USER" else "")
    if not value:
        raise spot.error(
            f"the variable {name} is not set in the environment",
            f"export {name} or write the path without it",
        )
    return value


def _account() -> str:
    """Returns the name of this user's account; "" if there is no account. The name replaces the
    variable USER where USER is not set, as in many containers and system services."""
    try:
        return pwd.getpwuid(os.geteuid()).pw_name
    except KeyError:
        return ""


def scalar(node: yaml.Node, spot: Spot, hint: str) -> str:
    """Returns the text of a scalar. Raises ConfigError for a list, a mapping or an empty value, and
    for text that no path can contain."""
    if not isinstance(node, yaml.ScalarNode) or is_empty(node):
        raise spot.unfit(node, hint)
    if not _is_usable(node.value):
        raise spot.error(
            f"{shown(node.value)} contains a character that is not allowed in a path", "remove it"
        )
    return str(node.value)
