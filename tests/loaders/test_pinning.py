"""Pinned slots are registered with CUDA once. A slot is reused only when the copy from the slot to
the GPU has ended."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from loaders.staged_data import Records, Rows

from monarch_py.errors import MonarchError
from monarch_py.loaders.staged import pinning
from monarch_py.loaders.staged.loader import StagedLoader


class FakeCuda:
    """A stand-in for CUDA, with the functions that Pinned calls.

    waits : how many queries of an event answer "not yet" before one answers "done"
    """

    def __init__(self) -> None:
        self.registered: dict[int, int] = {}
        self.calls = 0
        self.status = 0
        self.waits = 0
        self.events: list[list[int]] = []  # for each event: how many queries say "not yet"
        self.cuda = SimpleNamespace(
            cudart=lambda: self, Event=self._event, synchronize=lambda: None
        )

    def _event(self) -> Any:
        left = [self.waits]
        self.events.append(left)

        def query() -> bool:
            left[0] -= 1
            return left[0] < 0

        return SimpleNamespace(record=lambda: None, query=query)

    def cudaHostRegister(self, address: int, size: int, flags: int) -> int:
        assert address not in self.registered and flags == 0
        self.registered[address] = size
        self.calls += 1
        return self.status

    def cudaHostUnregister(self, address: int) -> int:
        del self.registered[address]
        return 0


@pytest.fixture
def cuda(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeCuda]:
    fake = FakeCuda()
    monkeypatch.setattr(pinning, "_torch_with_cuda", lambda: fake)
    yield fake
    assert fake.registered == {}


def loader_of(dataset: Any, order: list[list[int]], **settings: Any) -> StagedLoader:
    return StagedLoader(
        dataset, batch_sampler=order, pin_memory=True, tensors=False, **{"workers": 0, **settings}
    )


def test_each_slot_is_registered_once(tmp_path: Path, cuda: FakeCuda) -> None:
    dataset = Rows(tmp_path / "rows", [8192] * 16)
    loader = loader_of(dataset, np.arange(16).reshape(8, 2).tolist(), workers=1)
    for _ in range(3):
        for number, batch in enumerate(loader):
            assert np.array_equal(batch[1], dataset[2 * number + 1])
            assert cuda.registered[batch.ctypes.data] == 2 * 8192
    assert cuda.calls <= 3
    loader.close()
    del loader, batch


def test_a_larger_batch_is_registered_anew(tmp_path: Path, cuda: FakeCuda) -> None:
    dataset = Records(tmp_path / "records", [100, 5000, 9000, 200])
    loader = loader_of(dataset, [[0], [1], [2], [3]] * 3)
    for batch in loader:
        assert cuda.registered[batch[0].ctypes.data] >= len(batch[0])
    assert cuda.calls <= 9
    loader.close()
    del loader, batch


def test_a_slot_waits_for_its_copy(tmp_path: Path, cuda: FakeCuda) -> None:
    cuda.waits = 5
    dataset = Rows(tmp_path / "rows", [8192] * 12)
    loader = loader_of(dataset, [[i] for i in range(12)], workers=1)
    places = [batch.ctypes.data for batch in loader]
    assert len(places) == 12 and len(set(places)) == 3
    # The 12 batches used 3 slots. So for at least 9 batches, the loader had to wait until the copy
    # of an earlier batch to the GPU had ended.
    assert sum(left < 0 for (left,) in cuda.events) >= 9
    loader.close()
    del loader


def test_a_slot_waits_for_its_copy_after_an_epoch_that_was_left_early(
    tmp_path: Path, cuda: FakeCuda
) -> None:
    dataset = Rows(tmp_path / "rows", [8192] * 4)
    loader = loader_of(dataset, [[i] for i in range(4)])
    cuda.waits = 5
    next(iter(loader))
    assert not cuda.events
    iter(loader)
    assert len(cuda.events) == 1
    loader.close()
    del loader


def test_memory_that_cuda_refuses_is_one_sentence(tmp_path: Path, cuda: FakeCuda) -> None:
    cuda.status = 2
    loader = loader_of(Rows(tmp_path / "rows", [8192] * 2), [[0], [1]])
    with pytest.raises(MonarchError, match="pin_memory"):
        list(loader)
    cuda.registered = {}


def test_without_cuda_it_warns_and_goes_on(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    if torch.cuda.is_available():
        pytest.skip("this machine has CUDA, and the test is for machines without it")
    with pytest.warns(UserWarning, match="no CUDA"):
        loader = loader_of(Rows(tmp_path / "rows", [8192] * 2), [[0], [1]])
    assert len(list(loader)) == 2
