"""The state of a sampler that a checkpoint stores: the position of a training run in its epochs."""

from dataclasses import asdict, dataclass, fields
from typing import Any

from monarch_py.errors import ConfigError

# The version of the states that `to_dict` writes and `from_dict` reads.
VERSION = 1
# The smallest valid value of each number in a state.
LEAST = {"epoch": 0, "done": 0, "per_step": 1, "ranks": 1, "length": 1, "epochs": 0, "capacity": 0}


@dataclass(frozen=True)
class State:
    """The position of a training run, counted in global batches. So the run can continue from it on
    any number of ranks.

    epoch : the current epoch;  done : how many batches of this epoch were delivered
    per_step : the number of samples in a step, on all ranks together
    ranks : the number of ranks with which the training began. The length of an epoch is padded or
        cut to a multiple of this number, even if the training continues on another number of ranks
    length, seed, shuffle, drop_last : determine the order of the samples in each epoch, as in
        DistributedSampler
    epochs : with `epoch_order`, the number of epochs that SolarSampler puts in order; otherwise 0
    capacity : with `epoch_order`, how many samples all nodes together held when the training began
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
        """Returns the state as a dict of types that JSON supports."""
        return {"monarch": VERSION, **asdict(self)}

    @classmethod
    def from_dict(cls, text: Any, length: int) -> "State":
        """Returns the state that `to_dict` has written. Raises ConfigError for any other object,
        and for the state of a dataset of another length.

        text : the result of `to_dict`;  length : the number of samples in the present dataset
        """
        names = {each.name for each in fields(cls)}
        if not isinstance(text, dict) or text.get("monarch") != VERSION or names - text.keys():
            raise ConfigError(
                "state: it is not a state of Monarch's samplers; give state_dict()'s result"
            )
        for each in fields(cls):
            value, least = text[each.name], LEAST.get(each.name)
            if type(value) is not each.type or (least is not None and value < least):
                raise ConfigError(
                    f"state: {each.name} is {value!r}, an impossible value; give what state_dict()"
                    " returned"
                )
        state = cls(**{name: text[name] for name in names})
        if state.length != length:
            raise ConfigError(
                f"state: it belongs to a dataset with {state.length} samples, but this dataset has"
                f" {length}; load the state with the same dataset"
            )
        return state
