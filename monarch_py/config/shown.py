"""A configuration as text: a table of its values with their origins, or a YAML file."""

from collections.abc import Iterator
from dataclasses import MISSING, dataclass
from pathlib import Path
from typing import Any

import yaml

from monarch_py.config.layers import Layer, Layers
from monarch_py.config.limits import lowered
from monarch_py.config.schema import Config
from monarch_py.util.units import GIB, KIB, MIB, TIB
from monarch_py.yaml_files.keys import Declared, Keys, all_declared, declared
from monarch_py.yaml_files.nodes import KeyPath, Spot

DEFAULT = "default"
# Key -> the group in which users write the key, such as `tuning`. Keys without a group are missing.
GROUPS = {name: group for group, keys in Config.GROUPS.items() for name in declared(keys)}


@dataclass(frozen=True, slots=True)
class Value:
    """The value of a key, and where the value comes from.

    layer : "site", "user", "environment", "command line" or "default"
    place : where the value is set: a file and a line, a variable, or an option; "" for a default
    """

    key: str
    value: str
    layer: str
    place: str


def values(layers: Layers) -> Iterator[Value]:
    """Yields the values of all keys, and of each item in an inner mapping or a list. The keys of
    sources and tiers are yielded only if a layer sets them."""
    config = lowered(Config(**layers.given, file=layers.file), layers.top)
    for name, each in all_declared(Config).items():
        key = f"{GROUPS[name]}.{name}" if name in GROUPS else name
        yield from _values(layers, key, (name,), each, getattr(config, each.field.name))


def _values(
    layers: Layers, key: str, key_path: KeyPath, each: Declared, value: Any
) -> Iterator[Value]:
    if isinstance(value, Keys):
        for name, inner in declared(type(value)).items():
            its = getattr(value, inner.field.name)
            yield from _values(layers, f"{key}.{name}", (*key_path, name), inner, its)
    elif isinstance(value, tuple) and value:
        for number, item in enumerate(value):
            yield from _values(layers, f"{key}[{number}]", (*key_path, number), each, item)
    elif isinstance(value, dict) and value:
        spot = layers.top.document.spots[key_path]
        for name, size in value.items():
            yield Value(f"{key}[{name}]", _size(size), layers.of(spot), _place(spot))
    else:
        spots = layers.top.document.spots
        found = spots.get(key_path) or _limit(layers, key_path, value, each)
        is_item = any(isinstance(step, int) for step in key_path)
        if found is not None:
            yield Value(key, _text(each, value), layers.of(found), _place(found))
        elif not is_item:
            yield Value(key, _text(each, value), DEFAULT, "")


def _limit(layers: Layers, key_path: KeyPath, value: Any, each: Declared) -> Spot | None:
    """Returns the position of the site's limit if a key's default was lowered to this limit;
    otherwise None. Call this function only for keys that no layer sets."""
    is_lowered = value != each.field.default and value not in (None, MISSING, (), {})
    return layers.top.document.spots.get(("limits", key_path[-1])) if is_lowered else None


def _place(spot: Spot) -> str:
    return f"{spot.document.name}:{spot.line}" if spot.line else spot.document.name


def _text(each: Declared, value: Any) -> str:
    if value is None or value in ((), {}):
        return each.default.strip("`")
    return _size(value) if _is_size(each) else _plain_text(each, value)


def _plain_text(each: Declared, value: Any) -> str:
    return str(value) if isinstance(value, str | Path) else each.kind.show(value).strip("`")


def _is_size(each: Declared) -> bool:
    return each.field.name.endswith("_bytes")


def _size(n_bytes: int) -> str:
    """Returns the size as text, in the largest unit that divides it without remainder."""
    for unit, name in ((TIB, "TiB"), (GIB, "GiB"), (MIB, "MiB"), (KIB, "KiB")):
        if n_bytes and n_bytes % unit == 0:
            return f"{n_bytes // unit}{name}"
    return str(n_bytes)


# --- as YAML -------------------------------------------------------------------------------------


def as_yaml(layer: Layer) -> str:
    """Returns a layer as YAML text. Keys have their present names, even if the layer's file uses
    older names."""
    found: dict[str, Any] = {}
    for name, each in all_declared(Config).items():
        value = layer.given.get(each.field.name)
        if value is not None and not (name == "block_size" and value == 0):
            place = found.setdefault(GROUPS[name], {}) if name in GROUPS else found
            place[name] = _written(each, value)
    return str(yaml.safe_dump(found, sort_keys=False, allow_unicode=True, width=1000))


def _written(each: Declared, value: Any) -> Any:
    if isinstance(value, tuple):
        return [_written(each, item) for item in value]
    if isinstance(value, Keys):
        inner = declared(type(value)).values()
        found = {
            key.name: _written(key, getattr(value, key.field.name))
            for key in inner
            if getattr(value, key.field.name) != key.field.default
        }
        found.pop("block_size", None)  # the block size of a single tier has no effect
        return found[value.SCALAR] if list(found) == [value.SCALAR] else found
    if isinstance(value, Path):
        return str(value).replace("$", "$$")
    return _size(value) if _is_size(each) else value
