"""Makes all ranks take the same number of steps, even if their shards differ in size. DDP requires
this, because every step waits for all ranks."""

from collections.abc import Iterable, Iterator
from typing import TypeVar

from monarch_py.errors import ConfigError

T = TypeVar("T")


def equal_steps(batches: Iterable[T], max_steps: int) -> Iterator[T]:
    """Yields exactly `max_steps` batches. If `batches` has fewer, iterates over `batches` again. If
    `batches` has more, yields only the first ones.

    batches : for example the DataLoader of a rank's own shard
    max_steps : the same on all ranks; otherwise DDP waits forever for a rank that has ended
    """
    if max_steps < 0:
        raise ConfigError(f"max_steps: {max_steps} is out of range; write 0 or more")
    return _repeated(batches, max_steps)


def _repeated(batches: Iterable[T], left: int) -> Iterator[T]:
    passes = 0
    while left:
        before = left
        for batch in batches:
            yield batch
            left -= 1
            if not left:
                return
        if left == before:
            raise ConfigError(
                f"batches: a second iteration over them yields none, but {left} are missing; give a"
                " loader that can be iterated over again, not an iterator"
                if passes
                else "batches: there are none; give every rank a shard with batches"
            )
        passes += 1
