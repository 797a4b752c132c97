"""Shared memory that is divided into slots: workers write batches into slots for the training.

The memory is a memfd. A memfd has no name, so it is freed when the last process that maps it ends,
even if that process is killed. The size of /dev/shm (64 MiB in many containers) does not limit a
memfd. A slot has room for the largest allowed batch, but uses only as much memory as the largest
batch that was written into it.
"""

import mmap
import os
import pickle
from collections.abc import Sequence
from dataclasses import dataclass
from multiprocessing import reduction
from typing import Any

import numpy as np
import numpy.typing as npt

from monarch_py.errors import MonarchError
from monarch_py.util.units import format_size

Bytes = npt.NDArray[np.uint8]
PAGE = mmap.PAGESIZE


def check_owner(owner: int) -> None:
    """Raises MonarchError unless this process made the loader. A forked child must not use a loader
    that its parent made.

    owner : the process that made the loader
    """
    if owner != os.getpid():
        raise MonarchError("loader: it was made in another process; make one in each process")


@dataclass(frozen=True)
class Pickled:
    """A request for samples: the beginning of a slot contains the samples' keys, pickled into
    `n_bytes` bytes."""

    n_bytes: int


class Ring:
    """Slots of shared memory. Another process receives the ring by fork, or as an argument of its
    Process.

    slots : the number of slots
    slot_bytes : the size of the largest batch [bytes]; the attribute `slot_bytes` is rounded up to
        whole pages
    """

    def __init__(self, slots: int, slot_bytes: int) -> None:
        self.slots = slots
        self.slot_bytes = -(-slot_bytes // PAGE) * PAGE
        fd = os.memfd_create("monarch-ring")
        try:
            os.ftruncate(fd, slots * self.slot_bytes)
            self._map(fd)
        except (OSError, ValueError, OverflowError) as error:
            os.close(fd)
            size = format_size(slots * self.slot_bytes)
            raise MonarchError(
                f"max_batch: {slots} slots of {format_size(slot_bytes)} need {size} of address"
                f" space, which this process cannot get ({error}); give a smaller max_batch"
            ) from None

    def _map(self, fd: int) -> None:
        self.memory = mmap.mmap(fd, self.slots * self.slot_bytes)
        # Set `_fd` only after mmap: if mmap fails, the caller closes fd, and __del__ must not close
        # fd again.
        self._fd = fd
        if hasattr(mmap, "MADV_DONTDUMP"):
            self.memory.madvise(mmap.MADV_DONTDUMP)  # keeps the memory out of core dumps
        whole = np.frombuffer(self.memory, dtype=np.uint8)
        self._slots = list(whole.reshape(self.slots, self.slot_bytes))

    def slot(self, number: int) -> Bytes:
        """Returns the memory of a slot: (slot_bytes,) uint8, writable."""
        return self._slots[number]

    def write_numbers(self, slot: int, numbers: Sequence[Any]) -> int | Pickled | Sequence[Any]:
        """Writes the numbers of samples, or other keys, to the beginning of a slot. The worker
        reads them there before it fills the slot. Sending them through the worker's pipe might
        cause a deadlock: the training would block on many numbers while the worker blocks on a
        large answer.

        Returns the argument `written` for `read_numbers`: how many numbers were written, or a
        Pickled for other keys. If the slot is too small, returns `numbers` itself.
        """
        count = len(numbers)
        if not all(issubclass(kind, (int, np.integer)) for kind in set(map(type, numbers))):
            pickled = pickle.dumps(list(numbers), 5)
            if len(pickled) > self.slot_bytes:
                return numbers
            self._slots[slot][: len(pickled)] = np.frombuffer(pickled, dtype=np.uint8)
            return Pickled(len(pickled))
        if 8 * count > self.slot_bytes:
            return numbers
        self._slots[slot][: 8 * count].view(np.int64)[:] = numbers
        return count

    def read_numbers(self, slot: int, written: int | Pickled | Sequence[Any]) -> Sequence[Any]:
        if isinstance(written, Pickled):
            keys: list[Any] = pickle.loads(self._slots[slot][: written.n_bytes].data)  # noqa: S301
            return keys
        if not isinstance(written, int):
            return written
        numbers: list[int] = self._slots[slot][: 8 * written].view(np.int64).tolist()
        return numbers

    def close_descriptor(self) -> None:
        """Closes the descriptor. The memory exists as long as a process maps it."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def __del__(self) -> None:
        if getattr(self, "_fd", -1) >= 0:
            self.close_descriptor()

    def __getstate__(self) -> dict[str, Any]:
        # DupFd gives a child process a descriptor of its own. DupFd works only while a Process is
        # being started.
        return {
            "slots": self.slots,
            "slot_bytes": self.slot_bytes,
            "descriptor": reduction.DupFd(self._fd),  # type: ignore[attr-defined,unused-ignore]
        }

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.slots, self.slot_bytes = state["slots"], state["slot_bytes"]
        self._map(state["descriptor"].detach())
