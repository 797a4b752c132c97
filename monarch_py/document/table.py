"""Reading a YAML mapping by a table of its keys.

The table is the one place that knows a mapping's keys: it parses, gives defaults, finds unknown,
doubled and missing keys, and writes the rows of the user's documentation (markdown_rows).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import yaml

from monarch_py.document.nodes import Spot, is_empty
from monarch_py.util.spelling import mend

__all__ = ["Key", "Parser", "Section", "Table", "list_of", "markdown_rows", "read_mapping"]

Parser = Callable[[yaml.Node, Spot], Any]


@dataclass(frozen=True, slots=True)
class Key:
    """One key of a mapping: how its value is read, and what the documentation says of it.

    value : the kind of value and its unit;  meaning : what it does
    default : what the program uses;  default_text : how the documentation writes it
    """

    parse: Parser
    value: str
    meaning: str
    default: Any = None
    default_text: str = "none"
    required: bool = False


@dataclass(frozen=True, slots=True)
class Table:
    """The keys of one mapping.

    aliases : other spelling -> key;  ignored : key without effect -> what to tell its user
    """

    keys: Mapping[str, Key]
    aliases: Mapping[str, str] = field(default_factory=dict)
    ignored: Mapping[str, str] = field(default_factory=dict)

    def names(self) -> list[str]:
        """Every key that is accepted, in the order of the table."""
        return [*self.keys, *self.aliases, *self.ignored]


@dataclass(frozen=True, slots=True)
class Section:
    """A mapping that was read: parsed values and spots of the keys that were written."""

    spot: Spot
    table: Table
    values: dict[str, Any] = field(default_factory=dict)
    spots: dict[str, Spot] = field(default_factory=dict)

    def __getitem__(self, name: str) -> Any:
        """The value of a key, or its default."""
        return self.values.get(name, self.table.keys[name].default)

    def __contains__(self, name: str) -> bool:
        return name in self.spots

    def spot_of(self, name: str) -> Spot:
        """Where the key is written, or where it is missing."""
        missing = Spot(self.spot.document, self.spot.line, _join(self.spot.key, name))
        return self.spots.get(name, missing)

    def require(self, name: str) -> None:
        """Refuse the mapping if a key is missing that it must have."""
        if name not in self:
            # The rest of a meaning leads to other places of the page that it stands on.
            meaning = self.table.keys[name].meaning.partition(", see ")[0]
            raise self.spot_of(name).error("is missing", f"add '{name}: ...' ({meaning})")

    def add(self, name: str, value: Any, spot: Spot) -> None:
        """Keep a value; ConfigError if the key was there already."""
        if name in self.spots:
            raise _given_twice(spot, name, self.spots[name])
        self.values[name] = value
        self.spots[name] = spot


def read_mapping(node: yaml.Node, spot: Spot, table: Table) -> Section:
    """Read a mapping by its table; ConfigError for whatever does not fit."""
    if not isinstance(node, yaml.MappingNode):
        raise spot.wrong_type(node, "a mapping", f"write 'key: value' with {_choices(table)}")
    section = Section(spot, table)
    seen: dict[str, Spot] = {}
    for written, here, value in _entries(node, spot):
        name = table.aliases.get(written, written)
        if name in seen:
            raise _given_twice(here, name, seen[name])
        seen[name] = here
        if written in table.ignored:
            here.warn(f"ignored: {table.ignored[written]}")
        elif name not in table.keys:
            raise here.error("unknown key", mend(written, table.names(), f"use {_choices(table)}"))
        elif is_empty(value):
            raise here.error("has no value", "give it one or remove the key")
        else:
            section.add(name, table.keys[name].parse(value, here), here)
    for name, key in table.keys.items():
        if key.required:
            section.require(name)
    return section


def list_of(parse_item: Parser, mend: str) -> Parser:
    """A parser of lists, in which every item is read by `parse_item`."""

    def parse(node: yaml.Node, spot: Spot) -> list[Any]:
        if not isinstance(node, yaml.SequenceNode):
            raise spot.wrong_type(node, "a list", mend)
        return [
            parse_item(item, spot.at_item(item, index)) for index, item in enumerate(node.value)
        ]

    return parse


def markdown_rows(table: Table) -> list[str]:
    """The table as rows of Markdown: key, value, default, meaning."""
    return [
        f"| `{name}` | {key.value} | {'required' if key.required else key.default_text}"
        f" | {key.meaning} |"
        for name, key in table.keys.items()
    ]


def _entries(node: yaml.MappingNode, spot: Spot) -> Iterator[tuple[str, Spot, yaml.Node]]:
    for key_node, value in node.value:
        if not isinstance(key_node, yaml.ScalarNode):
            raise spot.at_key(key_node, "?").wrong_type(key_node, "a word", "write 'key: value'")
        yield key_node.value, spot.at_key(key_node, key_node.value), value


def _given_twice(spot: Spot, name: str, first: Spot) -> Exception:
    is_other_spelling = spot.key.rpartition(".")[2] != first.key.rpartition(".")[2]
    problem = f"means the same as '{first.key}'" if is_other_spelling else "is given twice"
    return spot.error(f"{problem}, first in line {first.line}", f"keep one '{name}'")


def _choices(table: Table) -> str:
    return "one of the keys " + ", ".join(table.keys)


def _join(outer: str, name: str) -> str:
    return f"{outer}.{name}" if outer else name
