"""What a scan finds, a batch at a time."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

import numpy.typing as npt

__all__ = ["ALL_NAMES", "END_LIMIT_S", "Batch", "Root", "Scan"]

# No limit to the names that a scan looks at (`Scan.allow`).
ALL_NAMES = (-1, -1)
# A thread that has not ended within this time is in a call of a source that does not answer [s].
END_LIMIT_S = 5.0


@dataclass(frozen=True, slots=True)
class Batch:
    """entries : (n,) of dtype ENTRY, without their hashes;  pool : where their paths and links'
    targets lie, a C pointer, used_bytes of it. Both only until the next batch is taken."""

    entries: npt.NDArray[Any]
    pool: Any
    used_bytes: int


@dataclass(frozen=True, slots=True)
class Root:
    """What listing a source's root tells besides its names.

    up_ino : the inode of its "..", 0 if unknown
    """

    up_ino: int


class Scan(Protocol):
    def take(self) -> Batch | None:
        """The next batch; None when there is none yet, or none any more (`is_finished`)."""
        ...

    @property
    def is_finished(self) -> bool: ...

    def want(self, directory: str, *, is_deep: bool) -> None:
        """Has a directory, relative to the root, listed before all others that are not yet;
        is_deep: with those below it."""
        ...

    def allow(self, wanted: int, more_others: int) -> None:
        """How many names may be looked at until the next call: in directories that come before
        others, and, more than may be now, in the others; below 0: all."""
        ...

    @property
    def seconds(self) -> float:
        """How long it took, once it is finished [s]."""
        ...

    def errors(self) -> tuple[int, int]:
        """How many names could not be read, and the first errno."""
        ...

    def close(self, limit_s: float = END_LIMIT_S) -> int:
        """Ends it; a second call does nothing. Returns how many threads have not ended within
        limit_s, as the source does not answer."""
        ...
