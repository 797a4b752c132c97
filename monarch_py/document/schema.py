"""Makes the JSON schema of a file, for editors, from the declaration of its keys."""

from __future__ import annotations

from types import UnionType
from typing import Any, Union, get_args, get_origin

import msgspec

from monarch_py.document.keys import Declared, Keys, declared
from monarch_py.document.values import FLAGS, TEXT, Kind

__all__ = ["schema"]


def schema(keys: type[Keys]) -> dict[str, Any]:
    """The JSON schema of a mapping with these keys. It leaves out what only reading can check:
    bounds of sizes, and which keys exclude each other."""
    known = declared(keys).values()
    properties: dict[str, Any] = {name: schema(group) for name, group in keys.GROUPS.items()}
    properties |= {name: {"$ref": "#"} for name in keys.WRAPPERS}
    for name, why in keys.IGNORED.items():
        properties[name] = {"description": f"ignored: {why}", "deprecated": True}
    for each in known:
        properties |= {name: _of_key(each) for name in (each.name, *each.key.aliases)}
    found = {"type": "object", "properties": properties, "additionalProperties": keys.OPEN}
    needed = [(each.name, *each.key.aliases) for each in known if each.required]
    if needed:
        found["allOf"] = [{"anyOf": [{"required": [name]} for name in names]} for names in needed]
    return found


def _of_key(each: Declared) -> dict[str, Any]:
    found = {"description": each.meaning, **(each.kind.schema or _of_type(each.annotation))}
    if each.key.alone:
        found |= {"type": ["array", "string"]}
    if isinstance(each.field.default, str | int | float) and not each.key.default:
        found["default"] = each.field.default
    return found


def _of_type(annotation: Any) -> dict[str, Any]:
    marks = getattr(annotation, "__metadata__", ())
    plain = annotation.__origin__ if marks else annotation
    kind = next((mark for mark in marks if isinstance(mark, Kind)), None)
    parts = get_args(plain)
    found: dict[str, Any]
    if kind is not None and kind.schema is not None:
        found = dict(kind.schema)
    elif get_origin(plain) in (Union, UnionType):  # with None
        found = _of_type(parts[0])
    elif get_origin(plain) is tuple:
        found = {"type": "array", "items": _of_type(parts[0])}
    elif get_origin(plain) is dict:
        found = {"type": "object", "additionalProperties": _of_type(parts[1])}
    elif isinstance(plain, type) and issubclass(plain, Keys):
        found = {"anyOf": [TEXT, schema(plain)]} if plain.SCALAR else schema(plain)
    elif plain is bool:
        # YAML has more words for true and false, and both may stand in quotes.
        found = {"enum": [True, False, *FLAGS, "true", "false"]}
    else:
        number = msgspec.json.schema(annotation)
        found = {**number, "type": ["integer", "string"], "pattern": "^-?[0-9]+$"}
    return found
