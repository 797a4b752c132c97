"""Where a training is in its epochs, as a checkpoint stores it."""

from dataclasses import asdict, dataclass, fields
from typing import Any

from monarch_py.errors import ConfigError

# Marks a state of this version.
VERSION = 1
# The least values of a state's numbers.
LEAST = {"epoch": 0, "done": 0, "per_step": 1, "ranks": 1, "length": 1, "epochs": 0, "capacity": 0}


@dataclass(frozen=True)
class State:
    """Which global batches come next. It does not depend on the ranks that run.

    epoch : the one that is running;  done : steps of it whose batches were delivered
    per_step : samples of a step on all ranks;  ranks : to whose number an epoch is padded
    length, seed, shuffle, drop_last : what determines the orders, as in DistributedSampler
    epochs, capacity : of SolarSampler's `epoch_order`: how many epochs are put in order (0: none),
        and how many samples all nodes held when the training began
    """

    epoch: int
    done: int
    per_step: int
    ranks: int
    length: int
    seed: int
    shuffle: bool
    drop_last: bool
    epochs: int = 0
    capacity: int = 0

    def to_dict(self) -> dict[str, Any]:
        """The state in JSON's types."""
        return {"monarch": VERSION, **asdict(self)}

    @classmethod
    def from_dict(cls, text: Any, length: int) -> "State":
        """The state that `to_dict` gave. Raises ConfigError for anything else, and for the state
        of a dataset of another length."""
        names = {each.name for each in fields(cls)}
        if not isinstance(text, dict) or text.get("monarch") != VERSION or names - text.keys():
            raise ConfigError("state: this is no state of Monarch's samplers; give state_dict()'s")
        for each in fields(cls):
            value, least = text[each.name], LEAST.get(each.name)
            if type(value) is not each.type or (least is not None and value < least):
                raise ConfigError(
                    f"state: {each.name} is {value!r}, which no sampler has; give what state_dict()"
                    " returned"
                )
        state = cls(**{name: text[name] for name in names})
        if state.length != length:
            raise ConfigError(
                f"state: it is of a dataset of {state.length} samples, and this one has {length};"
                " load it with the same dataset"
            )
        return state
