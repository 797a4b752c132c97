"""`monarch advise`: loads the dataset that a user names, and converts the advice to JSON types."""

import importlib
import os
import re
import sys
from typing import Any

from monarch_py.errors import ConfigError
from monarch_py.loaders.staged.measuring import Advice
from monarch_py.util.spelling import hint

_UNITS_S = {"us": 1e-6, "ms": 1e-3, "s": 1.0}


def load_object(named: str, option: str) -> Any:
    """Imports a module and returns one of its objects. The module may be in the working directory.
    Raises ConfigError if the module or the object does not exist.

    named : the object, as MODULE:NAME
    option : the command's option that names the object, for the error's text
    """
    module, _, name = named.partition(":")
    if not module or not name:
        raise ConfigError(f"{option}: {named!r} is not MODULE:NAME, such as train:dataset")
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())
    try:
        loaded = importlib.import_module(module)
    except Exception as error:  # a module may raise anything during its import
        what = f"{type(error).__name__}: {error}"
        raise ConfigError(f"{option}: {module} cannot be imported ({what})") from error
    found: Any = loaded
    for part in name.split("."):
        if not hasattr(found, part):
            raise ConfigError(
                f"{option}: {module} has no {name}; {hint(part, dir(found), 'see its names')}"
            )
        found = getattr(found, part)
    return found


def load_dataset(named: str) -> Any:
    """Returns the dataset that `named` (MODULE:NAME) refers to. The object NAME is the dataset
    itself, or a function or class that makes the dataset when called without arguments. Raises
    ConfigError if the result is not a dataset."""
    found = load_object(named, "dataset")
    is_dataset = hasattr(found, "__getitem__") and not isinstance(found, type)
    dataset = found if is_dataset or not callable(found) else found()
    if not (hasattr(dataset, "__len__") and hasattr(dataset, "__getitem__")):
        raise ConfigError(f"dataset: {named} lacks len() or [i]; name a dataset that has both")
    return dataset


def parse_seconds(text: str) -> float:
    """Converts a text such as ``50ms``, ``1.5 s`` or ``300us`` to a number of seconds. Raises
    ValueError, with a one-sentence message, for any other text."""
    found = re.fullmatch(r"([0-9]{1,12}(?:\.[0-9]{1,12})?)\s*(us|ms|s)", text.strip())
    if found is None:
        raise ValueError(f"{text!r} is not a time; write 50ms or 0.05s")
    return float(found[1]) * _UNITS_S[found[2]]


def to_document(advice: Advice) -> dict[str, Any]:
    """Returns the advice as a dictionary that contains JSON types only."""
    most = max(key.workers for key in advice.measured)
    return {
        "workers": advice.workers,
        "is_enough": advice.is_enough,
        "batch": advice.batch,
        "step_seconds": advice.step_s,
        "samples": advice.samples,
        "measured": [
            {
                "size_class": key.size,
                "workers": key.workers,
                "samples": each.samples,
                "waiting_seconds": each.waiting / each.samples,
                "computing_seconds": each.computing / each.samples,
            }
            for key, each in sorted(advice.measured.items())
        ],
        "foretold": [
            {
                "workers": count,
                "batch_seconds": advice.model.batch_seconds(count, advice.batch),
                "epoch_seconds": advice.epoch_seconds(count),
            }
            for count in range(1, most + 1)
        ],
    }
