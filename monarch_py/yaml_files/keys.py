"""Reads a YAML mapping into a dataclass that declares its keys.

Each field of a subclass of Keys declares a key. The field's type determines how the value is
parsed, and a `msgspec.Meta` in the type sets bounds. If the key is missing, its value is the
field's default. A line ``name : meaning`` in the docstring of the class describes the key. Error
messages, the JSON schema and the reference in docs/ are generated from these declarations.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import MISSING, Field, dataclass, fields, is_dataclass, replace
from functools import partial
from inspect import cleandoc
from pathlib import Path
from types import UnionType
from typing import (
    Any,
    ClassVar,
    Literal,
    TypeVar,
    Union,
    cast,
    get_args,
    get_origin,
    get_type_hints,
)

import yaml

from monarch_py.errors import ConfigError
from monarch_py.util.spelling import nearest
from monarch_py.yaml_files.nodes import Spot, is_empty, shown
from monarch_py.yaml_files.values import FLAG, TEXT, Kind, choice, integer

K = TypeVar("K", bound="Keys")


@dataclass(frozen=True, slots=True)
class Key:
    """Properties of a key in addition to the name, the type and the default of its field.

    name : the key, if it differs from the field's name
    aliases : other names that a user may write for the key
    default : what the reference shows as the default, if this differs from the field's default
    like : the name of another key, whose value is used if this key is missing
    alone : whether the user may write a single item in place of a list of one item
    """

    name: str = ""
    default: str = ""
    like: str = ""
    aliases: tuple[str, ...] = ()
    alone: bool = False


# Marks a field that is not a key.
DERIVED = Key("-")
_MEANING = re.compile(r"^(\w+) : (.+(?:\n .+)*)", re.MULTILINE)


class Keys:
    """The base of dataclasses that declare keys.

    GROUPS : name of an inner mapping (a group) -> the class that declares the mapping's keys. A
        class with groups inherits from the groups' classes, and so has a field for each of their
        keys
    WRAPPERS : names of inner mappings. A key has the same effect inside such a mapping as outside
    IGNORED : name of a key that has no effect -> the reason, for the warning if a user writes the
        key
    SCALAR : the key that is set if the user writes a scalar in place of the mapping; '' for none
    OPEN : whether unknown keys are ignored instead of rejected
    """

    __slots__ = ()
    GROUPS: ClassVar["Mapping[str, type[Keys]]"] = {}
    WRAPPERS: ClassVar[tuple[str, ...]] = ()
    IGNORED: ClassVar[Mapping[str, str]] = {}
    SCALAR: ClassVar[str] = ""
    OPEN: ClassVar[bool] = False


@dataclass(frozen=True, slots=True)
class Declared:
    """A key and its properties, from the declaration of a field.

    name, meaning : the key's name and description
    field : the dataclass's field for the key;  key : the Key in the field's annotation
    kind : the Kind that reads the key's value
    """

    name: str
    field: Field[Any]
    key: Key
    kind: Kind
    meaning: str

    @property
    def required(self) -> bool:
        fallbacks = (self.field.default, self.field.default_factory)
        return not self.key.like and all(each is MISSING for each in fallbacks)

    @property
    def default(self) -> str:
        """The default as the reference of the keys shows it."""
        if self.key.like:
            return f"`{self.key.like}`"
        if self.key.default or self.required:
            return self.key.default or "required"
        value = self.field.default
        return "none" if value in (None, (), MISSING) else self.kind.show(value)


def declared(keys: type[Keys]) -> dict[str, Declared]:
    """Returns the keys that a class declares, as a dict: name -> key. The keys of groups (inner
    mappings) are left out."""
    if keys not in _DECLARED:
        inner = {name for group in keys.GROUPS.values() for name in declared(group)}
        found = {each.name: each for each in _declared(keys) if each.name not in inner}
        _DECLARED[keys] = found
    return _DECLARED[keys]


_DECLARED: dict[type[Keys], dict[str, Declared]] = {}


def _declared(keys: Any) -> Iterator[Declared]:
    meanings = dict(_MEANING.findall(cleandoc(keys.__doc__ or "")))
    annotations = get_type_hints(keys, include_extras=True)
    for each in fields(keys):
        annotation = annotations[each.name]
        key = next((mark for mark in _marks(annotation) if isinstance(mark, Key)), Key())
        if key is not DERIVED:
            name = key.name or each.name
            meaning = " ".join(meanings.get(name, "").split())
            yield Declared(name, each, key, kind_of(annotation, key), meaning)


def read_as(node: yaml.Node, spot: Spot, keys: type[K], **more: Any) -> K:
    """Reads the mapping at `node` into an object of the class `keys`. Raises ConfigError if a key
    or a value does not fit.

    more : values of fields that are not keys
    """
    known = declared(keys)
    if keys.SCALAR and isinstance(node, yaml.ScalarNode) and not is_empty(node):
        one = known[keys.SCALAR]
        more[one.field.name] = one.kind.parse(node, spot)
        spot.document.spots[spot.of(one.name).key_path] = spot
    else:
        _read_entries(node, spot, keys, keys, more)
    for each in known.values():
        if each.field.name in more:
            continue
        if each.required:
            raise missing(spot, keys, each.name)
        if each.key.like:
            more[each.field.name] = more[known[each.key.like].field.name]
    return keys(**more)


def read_given(node: yaml.Node, spot: Spot, keys: type[Keys]) -> dict[str, Any]:
    """Reads the keys that the mapping at `node` has. Required keys may be missing. Returns a dict:
    name of a field of `keys` -> the key's value. Raises ConfigError if a key or a value does not
    fit."""
    given: dict[str, Any] = {}
    _read_entries(node, spot, keys, keys, given)
    return given


def all_declared(keys: type[Keys]) -> dict[str, Declared]:
    """Like `declared`, but the returned keys include the keys of the class's groups."""
    found = dict(declared(keys))
    for group in keys.GROUPS.values():
        found |= declared(group)
    return found


def named_paths(value: Any) -> Iterator[Path]:
    """Yields every Path in `value`, which is an object with keys, or the value of a key. Searches
    lists and inner mappings too."""
    if isinstance(value, Path):
        yield value
    elif isinstance(value, tuple):
        for each in value:
            yield from named_paths(each)
    elif isinstance(value, Keys):
        for each in fields(cast(Any, value)):
            yield from named_paths(getattr(value, each.name))


def missing(spot: Spot, keys: type[Keys], name: str) -> ConfigError:
    """Returns the error to raise for a key that the mapping at `spot` lacks."""
    # A key's description may end with ", see " and a link within the reference. The error message
    # omits the link.
    meaning = declared(keys)[name].meaning.partition(", see ")[0]
    return spot.of(name).error("is missing", f"add '{name}: ...' ({meaning})")


def _read_entries(
    node: yaml.Node, spot: Spot, whole: type[Keys], place: type[Keys], given: dict[str, Any]
) -> None:
    """Reads the keys of the mapping at `node` into `given`.

    whole : the class of the whole mapping
    place : the class that declares the keys allowed at `node`. For a group (an inner mapping), this
        is the group's class; otherwise it is `whole`
    """
    known = declared(place)
    use = "one of the keys " + ", ".join((*known, *place.GROUPS))
    if not isinstance(node, yaml.MappingNode):
        raise spot.unfit(node, f"write 'key: value' with {use}")
    names = {alias: each.name for each in known.values() for alias in each.key.aliases}
    # An ignored key may be written both inside and outside of a wrapper (an inner mapping that has
    # no meaning of its own). The two keys get different key paths. Otherwise the second one would
    # be reported as a duplicate.
    names |= {name: f"{spot.key}.{name}" for name in place.IGNORED if spot.key}
    for written, here, value in _entries(node, spot, names):
        name = str(here.key_path[-1])
        if written in place.IGNORED:
            here.warn(f"ignored: {place.IGNORED[written]}")
        elif name not in (*known, *place.GROUPS, *place.WRAPPERS):
            if place.OPEN:
                continue
            raise _unknown(here, written, whole, place, f"use {use}")
        elif is_empty(value):
            raise here.error("has no value", "give it one or remove the key")
        elif name in known:
            given[known[name].field.name] = known[name].kind.parse(value, here)
        else:
            # `value` is an inner mapping: a group or a wrapper. Its keys are read as if they were
            # directly in the mapping at `node`. So their key paths lack the inner mapping's name.
            inner = replace(here, key_path=spot.key_path)
            _read_entries(value, inner, whole, place.GROUPS.get(name, place), given)


def _entries(
    node: yaml.MappingNode, spot: Spot, names: Mapping[str, str]
) -> Iterator[tuple[str, Spot, yaml.Node]]:
    """Yields each key as the user wrote it, its spot, and its value. Stores the spots in the
    document."""
    spots = spot.document.spots
    for name_node, value in node.value:
        if not isinstance(name_node, yaml.ScalarNode):
            raise spot.at_key(name_node, "?").unfit(name_node, "write 'key: value'")
        written = name_node.value
        here = spot.at_key(name_node, written, names.get(written, written))
        first = spots.setdefault(here.key_path, here)
        if first is not here:
            raise _given_twice(here, first)
        yield written, here, value


def _given_twice(spot: Spot, first: Spot) -> ConfigError:
    is_other_spelling = spot.key.rpartition(".")[2] != first.key.rpartition(".")[2]
    problem = f"means the same as '{first.key}'" if is_other_spelling else "is given twice"
    name = str(spot.key_path[-1]).rpartition(".")[2]
    return spot.error(f"{problem}, first in line {first.line}", f"keep one '{name}'")


def _unknown(
    spot: Spot, written: str, whole: type[Keys], place: type[Keys], otherwise: str
) -> ConfigError:
    if place is not whole and written in declared(whole):
        group = next(name for name, keys in whole.GROUPS.items() if keys is place)
        return spot.error("does not belong here", f"move it out, beside '{group}:'")
    groups = {name: group for group, keys in place.GROUPS.items() for name in declared(keys)}
    if written in groups:
        return spot.error(f"belongs under '{groups[written]}:'", "move it there, indented")
    aliases = [alias for each in declared(place).values() for alias in each.key.aliases]
    known = [*declared(place), *aliases, *place.IGNORED, *place.GROUPS, *groups]
    meant = nearest(written, known)
    under = f" under '{groups[meant]}:'" if meant in groups else ""
    return spot.error("unknown key", f"did you mean {meant!r}{under}?" if meant else otherwise)


# --- kinds that are derived from a type ---------------------------------------------------------


def _marks(annotation: Any) -> tuple[Any, ...]:
    return getattr(annotation, "__metadata__", ())


def kind_of(annotation: Any, key: Key = DERIVED) -> Kind:
    """Returns the Kind that reads the values of an annotated type. If the annotation contains a
    Kind, returns that Kind. Otherwise derives a Kind from the type."""
    marks, plain = _marks(annotation), annotation.__origin__ if _marks(annotation) else annotation
    given = next((mark for mark in marks if isinstance(mark, Kind)), None)
    origin = get_origin(plain)
    parts = [part for part in get_args(plain) if part is not ...]
    if given is not None:
        kind = given
    elif origin in (Union, UnionType):  # a type or None
        kind = kind_of(parts[0], key)
    elif origin is tuple:
        kind = _list_of(parts[0], is_alone=key.alone)
    elif origin is dict:
        kind = _mapping_of(kind_of(parts[0]), kind_of(parts[1]))
    elif origin is Literal:
        kind = choice(*parts)
    elif is_dataclass(plain):
        keys = cast(type[Keys], plain)
        found = {"anyOf": [TEXT, schema(keys)]} if keys.SCALAR else schema(keys)
        kind = Kind(partial(read_as, keys=keys), "mapping", found)
    else:
        kind = FLAG if plain is bool else integer(annotation)
    return kind


def schema(keys: type[Keys]) -> dict[str, Any]:
    """Returns the JSON schema of a mapping with these keys, for editors. The schema lacks the
    bounds of sizes, and does not say which keys exclude each other. These are checked when the file
    is read."""
    known = declared(keys).values()
    properties: dict[str, Any] = {name: schema(group) for name, group in keys.GROUPS.items()}
    properties |= {name: {"$ref": "#"} for name in keys.WRAPPERS}
    for name, why in keys.IGNORED.items():
        properties[name] = {"description": f"ignored: {why}", "deprecated": True}
    for each in known:
        found = {"description": each.meaning, **each.kind.schema}
        if isinstance(each.field.default, str | int | float) and not each.key.default:
            found["default"] = each.field.default
        properties |= dict.fromkeys((each.name, *each.key.aliases), found)
    needed = [(each.name, *each.key.aliases) for each in known if each.required]
    required = [{"anyOf": [{"required": [name]} for name in names]} for names in needed]
    found = {"type": "object", "properties": properties, "additionalProperties": keys.OPEN}
    return {**found, "allOf": required} if required else found


def _list_of(annotation: Any, *, is_alone: bool) -> Kind:
    """Returns the Kind that reads lists whose items have this annotation.

    is_alone : whether the user may write a single item in place of a list of one item
    """
    item = kind_of(annotation)
    one, many, hint = item.value, f"list of {item.value}s", f"write [{item.example or '...'}]"
    if isinstance(annotation, type) and issubclass(annotation, Keys):
        known = declared(annotation)
        one, many = known[annotation.SCALAR].kind.value if annotation.SCALAR else "mapping", "list"
        hint = f"write {_shown_item(list(known.values()))} below it"

    def parse(node: yaml.Node, spot: Spot) -> tuple[Any, ...]:
        is_text = isinstance(node, yaml.ScalarNode) and not is_empty(node)
        if is_alone and is_text:
            here = replace(spot, key_path=(*spot.key_path, 0))
            return (item.parse(node, spot.document.spots.setdefault(here.key_path, here)),)
        if not isinstance(node, yaml.SequenceNode):
            is_item = is_text and many != "list"
            raise spot.unfit(node, f"write [{shown(node.value)}]" if is_item else hint)
        return tuple(item.parse(each, spot.at_item(each, at)) for at, each in enumerate(node.value))

    schema = {"type": ["array", "string"] if is_alone else "array", "items": item.schema}
    return Kind(parse, f"{one} or {many}" if is_alone else many, schema)


def _shown_item(keys: Sequence[Declared]) -> str:
    """Returns an example of a list item, for a hint. The example has the item's first key and all
    required keys."""
    shown = [each for each in keys if each is keys[0] or each.default == "required"]
    lines = [f"{each.name}: {each.kind.example or '...'}" for each in shown]
    return " and ".join(f"'{'  ' if at else '- '}{line}'" for at, line in enumerate(lines))


def _mapping_of(name: Kind, item: Kind) -> Kind:
    def parse(node: yaml.Node, spot: Spot) -> dict[Any, Any]:
        if not isinstance(node, yaml.MappingNode) or not node.value:
            example = f"{name.example or name.value}: {item.example or item.value}"
            raise spot.unfit(node, f"write {{{example}, ...}}")
        found: dict[Any, Any] = {}
        for name_node, value in node.value:
            here = spot.at_key(name_node, str(name_node.value))
            at = name.parse(name_node, here)
            if at in found:
                raise here.error("is given twice", f"keep one {at}")
            found[at] = item.parse(value, here)
        return found

    schema = {"type": "object", "additionalProperties": item.schema}
    return Kind(parse, f"{item.value}s by {name.value}", schema)
