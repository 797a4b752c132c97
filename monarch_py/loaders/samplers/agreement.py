"""All ranks must deal alike, though each works out its schedule alone: they compare digests."""

import hashlib
import itertools
import os
import sys
from collections.abc import Iterable
from typing import Any

from monarch_py.errors import ConfigError

_numbers = itertools.count()


def process_group() -> Any:
    """torch.distributed, if it has a process group; else None."""
    # If nothing has imported torch, no process group was made.
    torch = sys.modules.get("torch")
    if torch is None or not torch.distributed.is_available():
        return None
    return torch.distributed if torch.distributed.is_initialized() else None


class Agreement:
    """Compares, once, what the ranks of the process group deal by. The first rank that comes leaves
    its digest in the group's store, and the others compare theirs with it. No rank waits for
    another one.

    A sampler is known by its number among those of its process, so all ranks must make their
    samplers in the same order.
    """

    def __init__(self) -> None:
        self._number, self._pid = next(_numbers), os.getpid()

    def check(self, parts: Iterable[Any]) -> None:
        """Raises ConfigError if another rank deals by other `parts`: arrays, and what has a repr.
        A worker process compares nothing, because its parent has the connection to the store."""
        group = process_group()
        if group is None or self._pid != os.getpid():
            return
        store = group.distributed_c10d._get_default_store()
        if store is None:
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
