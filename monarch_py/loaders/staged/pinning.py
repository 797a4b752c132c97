"""Registers a ring's memory with CUDA, so that copies from it to a GPU are asynchronous."""

import warnings
from typing import Any

from monarch_py.errors import MonarchError
from monarch_py.loaders.memory.ring import PAGE, Ring


class Pinned:
    """Registers the slots of a ring with CUDA. Only the part of a slot that batches have filled so
    far is registered. Without CUDA, the constructor warns, and nothing is registered.
    """

    def __init__(self, ring: Ring) -> None:
        self._ring = ring
        self._torch = _torch_with_cuda()
        self._registered = [0] * ring.slots  # how much of each slot is registered [bytes]
        self._used: dict[int, Any] = {}  # slot -> the CUDA event after which it may be reused
        self._given: int | None = None

    def register(self, slot: int, n_bytes: int) -> None:
        """Registers the first `n_bytes` of a slot, unless they are registered already. Also
        remembers that the training now uses the slot. Raises MonarchError if CUDA refuses."""
        self._given = slot
        if self._torch is None or n_bytes <= self._registered[slot]:
            return
        cudart, address = self._torch.cuda.cudart(), self._ring.slot(slot).ctypes.data
        if self._registered[slot]:
            self._torch.cuda.synchronize()
            cudart.cudaHostUnregister(address)
        size = -(-n_bytes // PAGE) * PAGE
        status = int(cudart.cudaHostRegister(address, size, 0))
        if status:
            raise MonarchError(
                f"pin_memory: CUDA cannot register {size} bytes (error {status}); give"
                " pin_memory=False, or more locked memory (ulimit -l)"
            )
        self._registered[slot] = size

    def passed_on(self) -> None:
        """Call this method when the training asks for the next batch. Copies of the previous batch
        to the GPU may still be queued on the current CUDA stream. So this method records an event
        that occurs when these copies have ended, for `may_reuse`."""
        if self._torch is not None and self._given is not None:
            event = self._torch.cuda.Event()
            event.record()
            self._used[self._given] = event
        self._given = None

    def may_reuse(self, slot: int) -> bool:
        event = self._used.get(slot)
        if event is not None and not event.query():
            return False
        self._used.pop(slot, None)
        return True

    def __del__(self) -> None:
        if getattr(self, "_torch", None) is None:
            return
        for slot, size in enumerate(self._registered):
            if size:
                self._torch.cuda.cudart().cudaHostUnregister(self._ring.slot(slot).ctypes.data)


def _torch_with_cuda() -> Any:
    try:
        import torch
    except ImportError:
        torch = None  # type: ignore[assignment]
    if torch is not None and torch.cuda.is_available():
        return torch
    warnings.warn(
        "pin_memory: there is no CUDA here, so memory is not pinned; leave pin_memory out",
        stacklevel=4,
    )
    return None
