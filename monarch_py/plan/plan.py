"""The plan of a training run: its datasets, and how the loops of the training read them.

A plan's file does not contain the accesses. It contains a description from which they are computed,
as text and arrays, and no pickled Python objects.
"""

import json
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import numpy as np

from monarch_py.arrays import Array, Ints
from monarch_py.errors import ConfigError
from monarch_py.plan.index import GRAINS, DatasetUnits, Index, load_arrays, save_arrays
from monarch_py.plan.loader import Loader
from monarch_py.plan.samplers import SAMPLERS, check_choice
from monarch_py.plan.timeline import Part, Timeline

# Every plan's file contains one of these two texts, which identifies the file as a plan and gives
# the version of its format. In files with OLD_FORMAT, an unknown number of workers is 0 instead of
# null.
FORMAT, OLD_FORMAT = "monarch plan 2", "monarch plan 1"

# Fields of a Plan that its file stores as integers, under the fields' names.
NUMBERS = ("epochs", "nodes", "range_bytes")

# The name under which a plan's file stores the array `Loader.holders`. The arrays of the loader's
# sampler are stored beside it under the names of the sampler's fields, so no sampler may have a
# field of this name.
HOLDERS = "held_by"

DEFAULT_RANGE_BYTES = 4 << 20


@dataclass(frozen=True, eq=False)
class PlanPart:
    """One loop of the training over a dataset, for example the validation.

    dataset : the index of the loop's dataset in Plan.datasets
    every : n if the loop runs in every n-th epoch
    """

    name: str
    dataset: int
    loader: Loader
    every: int = 1


@dataclass(frozen=True, eq=False)
class Plan:
    """Which nodes access which units, and when. A unit is a sample, a file or a part of a file. The
    constructor raises ConfigError if `grain` is not known, if `range_bytes` is below 1, or if a
    dataset and the sampler of a loop differ in the number of samples.

    parts : the loops, in the order in which they run in an epoch
    grain : what a unit is, one of index.GRAINS
    range_bytes : the size of the blocks into which the grain 'ranges' divides each file [bytes]
    """

    datasets: tuple[Index, ...]
    parts: tuple[PlanPart, ...]
    epochs: int
    nodes: int
    grain: str = "files"
    range_bytes: int = DEFAULT_RANGE_BYTES

    def __post_init__(self) -> None:
        check_choice("grain", self.grain, GRAINS)
        if self.range_bytes < 1:
            raise ConfigError(
                f"range_size: {self.range_bytes} is out of range; write 1 byte or more"
            )
        for part in self.parts:
            samples = self.datasets[part.dataset].samples
            if part.loader.sampler.length != samples:
                raise ConfigError(
                    f"dataset: the dataset of {part.name!r} has {samples} samples, but the"
                    f" sampler of {part.name!r} has {part.loader.sampler.length}; remove 'length'"
                    " or correct it"
                )

    # --- derived from the plan ------------------------------------------------------------------

    def units(self) -> list[DatasetUnits]:
        """Returns the units of each dataset. Units are numbered consecutively across all datasets:
        a dataset's first unit follows the last unit of the previous dataset."""
        return [index.units(self.grain, self.range_bytes) for index in self.datasets]

    def timeline(self) -> Timeline:
        """Returns the timeline of all accesses of the training, as accesses to units. Raises
        ConfigError if the parts do not fit together."""
        parts = [(Part(each.name, each.loader, each.every), each.dataset) for each in self.parts]
        return Timeline.joined(parts, self.units(), self.epochs, self.nodes)

    def unit_bytes(self) -> Ints:
        """Returns the size of every unit, (units,) int64 [bytes]."""
        return np.concatenate([units.length for units in self.units()])

    def digests(self) -> list[str]:
        """Returns the digest of each dataset (Index.digest)."""
        return [index.digest() for index in self.datasets]

    # --- stored as a file -------------------------------------------------------------------------

    def save(self, path: Path) -> None:
        """Writes the plan as .npz. If this fails, an existing file is not changed, and ConfigError
        is raised."""
        arrays: dict[str, Array] = {}
        parts = [
            {**vars(part), "loader": _loader_to(part.loader, f"part{number}", arrays)}
            for number, part in enumerate(self.parts)
        ]
        for number, index in enumerate(self.datasets):
            arrays |= {f"dataset{number}.{name}": a for name, a in index.arrays().items()}
        text = {
            "format": FORMAT,
            "digests": self.digests(),
            "parts": parts,
            **{name: getattr(self, name) for name in NUMBERS},
            "grain": self.grain,
        }
        arrays["plan"] = np.frombuffer(json.dumps(text).encode(), dtype=np.uint8)
        save_arrays(path, arrays)

    @classmethod
    def load(cls, path: Path) -> "Plan":
        """Reads a file that `save` wrote. Raises ConfigError for any other file; the message names
        the file."""
        try:
            return cls._from_arrays(load_arrays(path))
        except (AttributeError, IndexError, KeyError, TypeError, ValueError) as error:
            raise ConfigError(
                f"{path}: not a plan ({error}); make one with `monarch plan make -c plan.yaml`"
            ) from None

    @classmethod
    def _from_arrays(cls, arrays: dict[str, Array]) -> "Plan":
        if "plan" not in arrays:
            raise ValueError("it is an index" if "pool" in arrays else "it holds other arrays")
        text = json.loads(arrays["plan"].tobytes())
        if not isinstance(text, dict):
            raise ValueError("its description is not a mapping")
        if text.get("format") not in (FORMAT, OLD_FORMAT):
            raise ValueError(f"its format is {text.get('format')!r}")
        if text["format"] == OLD_FORMAT:
            for each in text["parts"]:
                each["loader"]["workers"] = each["loader"]["workers"] or None
        datasets = tuple(
            Index.from_arrays(_below(f"dataset{number}.", arrays))
            for number in range(len(text["digests"]))
        )
        if [index.digest() for index in datasets] != text["digests"]:
            raise ValueError("its names and sizes are damaged")
        parts = tuple(
            PlanPart(**{**each, "loader": _loader_from(each["loader"], f"part{number}", arrays)})
            for number, each in enumerate(text["parts"])
        )
        if not all(0 <= part.dataset < len(datasets) for part in parts):
            raise ValueError("a part has a dataset that is not there")
        numbers = {name: text[name] for name in NUMBERS}
        if not all(isinstance(number, int) for number in numbers.values()):
            raise ValueError(f"{', '.join(NUMBERS)} must be whole numbers")
        return cls(datasets, parts, **numbers, grain=text["grain"])


def _below(prefix: str, arrays: dict[str, Array]) -> dict[str, Array]:
    """Returns the arrays whose names begin with `prefix`. Removes the prefix from the names."""
    return {n.removeprefix(prefix): a for n, a in arrays.items() if n.startswith(prefix)}


def _loader_to(loader: Loader, prefix: str, arrays: dict[str, Array]) -> dict[str, Any]:
    """Returns a loader without its arrays, as types that JSON can represent. Adds the loader's
    arrays to `arrays`, under names that begin with `prefix`."""
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


def _loader_from(text: dict[str, Any], prefix: str, arrays: dict[str, Array]) -> Loader:
    """Returns a loader from the results of `_loader_to`: `text`, and the arrays that begin with
    `prefix`. Raises KeyError or TypeError if `text` does not describe a loader."""
    given = dict(text["sampler"])
    kind = SAMPLERS[given.pop("kind")]
    for each in fields(kind):
        stored = arrays.get(f"{prefix}.{each.name}")
        if stored is not None:
            given[each.name] = stored.tobytes() if each.name == "state" else stored
    holders = arrays.get(f"{prefix}.{HOLDERS}")
    return Loader(**{**text, "sampler": kind(**given), "holders": holders})
