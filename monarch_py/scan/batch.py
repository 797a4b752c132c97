"""The interface of a scan, which yields what it finds in batches."""

from dataclasses import dataclass
from typing import Any, Protocol

import numpy.typing as npt

# Arguments of `Scan.allow` for no limit.
ALL_NAMES = (-1, -1)
# A thread that has not ended within this time hangs in a system call on a source [s].
END_LIMIT_S = 5.0


@dataclass(frozen=True, slots=True)
class Batch:
    """Entries that a scan has found. They are valid only until the next batch is taken.

    entries : (n,) of dtype ENTRY, without their hashes
    pool : C pointer to the text of their paths and links' targets, of which used_bytes are in use
    """

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
        """The next batch; None if there is none yet, or no more (`is_finished`)."""
        ...

    @property
    def is_finished(self) -> bool: ...

    def want(self, directory: str, *, is_deep: bool) -> None:
        """Lists a directory, relative to the root, before all others that are not listed yet.
        is_deep : with the directories below it"""
        ...

    def allow(self, wanted: int, more_others: int) -> None:
        """Sets how many names may be looked at until the next call; below 0: all of them.

        wanted : in directories that `want` named; 0 keeps what is still allowed there
        more_others : in the other directories, in addition to what is still allowed there
        """
        ...

    @property
    def seconds(self) -> float:
        """How long the scan took, once it is finished [s]."""
        ...

    def errors(self) -> tuple[int, int]:
        """The number of names that could not be read, and the first errno."""
        ...

    def close(self, limit_s: float = END_LIMIT_S) -> int:
        """Ends the scan; a second call does nothing. Returns how many threads have not ended within
        limit_s, because the source does not answer."""
        ...
