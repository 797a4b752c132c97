"""Converts samplers and loaders to text and arrays and back, so that plan files need no pickles."""

from dataclasses import fields
from typing import Any

import numpy as np

from monarch_py.arrays import Array
from monarch_py.plan import samplers
from monarch_py.plan.loader import Loader
from monarch_py.plan.samplers import Sampler

Arrays = dict[str, Array]

# The name of a loader's holders among its arrays. No sampler has a field of this name.
HOLDERS = "held_by"

# The class of every sampler, by the class's name.
SAMPLERS: dict[str, Any] = {
    name: value
    for name, value in vars(samplers).items()
    if Sampler in getattr(value, "__mro__", ()) and value is not Sampler
}


def loader_to(loader: Loader, prefix: str, arrays: Arrays) -> dict[str, Any]:
    """Returns a loader as JSON types, without its arrays. Adds these to `arrays`, under names that
    begin with `prefix`."""
    sampler: Any = loader.sampler
    text: dict[str, Any] = {"kind": type(sampler).__name__}
    for each in fields(sampler):
        value = getattr(sampler, each.name)
        if isinstance(value, bytes):
            arrays[f"{prefix}.{each.name}"] = np.frombuffer(value, dtype=np.uint8)
        elif isinstance(value, np.ndarray):
            arrays[f"{prefix}.{each.name}"] = value
        else:
            text[each.name] = value
    stored = {**vars(loader), "sampler": text}
    holders = stored.pop("holders")
    if holders is not None:
        arrays[f"{prefix}.{HOLDERS}"] = holders
    return stored


def loader_from(text: dict[str, Any], prefix: str, arrays: Arrays) -> Loader:
    """Returns the loader that `loader_to` converted. Raises KeyError or TypeError for any other
    text."""
    given = dict(text["sampler"])
    kind = SAMPLERS[given.pop("kind")]
    for each in fields(kind):
        stored = arrays.get(f"{prefix}.{each.name}")
        if stored is not None:
            given[each.name] = stored.tobytes() if each.name == "state" else stored
    holders = arrays.get(f"{prefix}.{HOLDERS}")
    return Loader(**{**text, "sampler": kind(**given), "holders": holders})
