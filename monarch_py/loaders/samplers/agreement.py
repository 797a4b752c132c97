"""Exchanges data between ranks through the store of torch's process group.

Each rank computes the schedule of its batches itself. `Agreement` checks that all ranks use the
same inputs. `once` lets one rank do some work for all ranks, for example look up the sizes of
files.
"""

import hashlib
import itertools
import os
import sys
from collections import Counter
from collections.abc import Callable, Iterable
from typing import Any

from monarch_py.errors import ConfigError

_numbers = itertools.count()
_turns: Counter[str] = Counter()  # how often `once` was called with each name
# In a forked child: the parent's store, which the child must not use. Otherwise None.
_inherited: Any = None


def process_group() -> Any:
    """Returns torch.distributed if it has a process group; otherwise None."""
    # If torch has not been imported, there is no process group.
    group: Any = getattr(sys.modules.get("torch"), "distributed", None)
    if group is None or not group.is_available():
        return None
    return group if group.is_initialized() else None


def _default_store() -> Any:
    group = process_group()
    return None if group is None else group.distributed_c10d._get_default_store()


def _inherit() -> None:
    global _inherited  # noqa: PLW0603
    _inherited = _default_store()


os.register_at_fork(after_in_child=_inherit)


def _store() -> Any:
    """Returns the store of the process group. Returns None if there is no process group, or if
    only the parent process may use the store."""
    store = _default_store()
    return None if store is _inherited else store


def once(name: str, work: Callable[[], bytes]) -> bytes:
    """Returns the result of `work`. The first rank that calls this function does the work, and the
    other ranks wait for the result. If the first rank fails, or takes longer than the store's
    timeout, the other ranks do the work themselves. Without a process group, each rank does the
    work itself."""
    if (store := _store()) is None:
        return work()
    key = f"monarch/{name}/{_turns[name]}"
    _turns[name] += 1
    own = str(process_group().get_rank()).encode()
    if store.compare_set(f"{key}/rank", "", own.decode()) != own:
        try:
            found = bytes(store.get(key))
        except RuntimeError:  # the store has stopped waiting for the first rank's result
            found = b""
        return found or work()
    found = b""
    try:
        found = work()
    finally:
        store.set(key, found)
    return found


class Agreement:
    """Checks that all ranks of the process group compute their schedules from the same inputs. The
    first rank that checks puts a digest of its inputs into the group's store. Every other rank
    compares the digest of its own inputs with the stored digest. No rank waits for another.

    Each process numbers its samplers in the order in which it makes them. Samplers with the same
    number are compared, so all ranks must make their samplers in the same order.
    """

    def __init__(self) -> None:
        self._number = next(_numbers)

    def check(self, parts: Iterable[Any]) -> None:
        """Compares this rank's inputs, `parts`, with the inputs of the rank that called this method
        first. Raises ConfigError if the inputs differ. Arrays must be given as memoryviews; other
        objects are compared by their repr."""
        if (store := _store()) is None:
            return
        digest = hashlib.sha256()
        for part in parts:
            digest.update(part if isinstance(part, memoryview) else repr(part).encode())
        own = digest.hexdigest()
        if store.compare_set(f"monarch/{self._number}", "", own).decode() != own:
            raise ConfigError(
                "sampler: this rank and another rank compute their batches from different inputs;"
                " make the samplers in the same order on all ranks, with equal arguments, files,"
                " state and MONARCH_CONFIG"
            )
