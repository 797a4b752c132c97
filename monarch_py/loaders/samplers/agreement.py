"""What ranks tell each other through the store of torch's process group: digests of what they deal
by, because each works out its schedule alone, and what one of them has found out for all.
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
_turns: Counter[str] = Counter()  # of each name in `once`
_inherited: Any = None  # the store of a parent process, which alone may use the connection


def process_group() -> Any:
    """torch.distributed, if it has a process group; else None."""
    # If nothing has imported torch, no process group was made.
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
    """The store of the process group; None where there is none that this process may use."""
    store = _default_store()
    return None if store is _inherited else store


def once(name: str, work: Callable[[], bytes]) -> bytes:
    """What `work` returns. The first rank that comes does it, and the others wait for its result.
    Each rank does it itself if there is no process group, or if the first one has failed."""
    if (store := _store()) is None:
        return work()
    key = f"monarch/{name}/{_turns[name]}"
    _turns[name] += 1
    own = str(process_group().get_rank()).encode()
    if store.compare_set(f"{key}/rank", "", own.decode()) != own:
        try:
            found = bytes(store.get(key))
        except RuntimeError:  # it takes longer than the store waits
            found = b""
        return found or work()
    found = b""
    try:
        found = work()
    finally:
        store.set(key, found)
    return found


class Agreement:
    """Compares, once, what the ranks of the process group deal by. The first rank that comes leaves
    its digest in the group's store, and the others compare theirs with it. No rank waits for
    another one.

    A sampler is known by its number among those of its process, so all ranks must make their
    samplers in the same order.
    """

    def __init__(self) -> None:
        self._number = next(_numbers)

    def check(self, parts: Iterable[Any]) -> None:
        """Raises ConfigError if another rank deals by other `parts`. Arrays are given as
        memoryviews; anything else is compared by its repr."""
        if (store := _store()) is None:
            return
        digest = hashlib.sha256()
        for part in parts:
            digest.update(part if isinstance(part, memoryview) else repr(part).encode())
        own = digest.hexdigest()
        if store.compare_set(f"monarch/{self._number}", "", own).decode() != own:
            raise ConfigError(
                "sampler: this rank deals samples otherwise than another rank; make the samplers in"
                " the same order on all ranks, with the same arguments, files, MONARCH_CONFIG and"
                " state"
            )
