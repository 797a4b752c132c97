"""Samples that a node holds stay in its memory, for all its processes; nothing is left behind."""

from __future__ import annotations

import multiprocessing
import os
import signal
import time
from fcntl import LOCK_EX, lockf
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from monarch_py.errors import ConfigError
from monarch_py.loaders.kept import KeptDataset
from monarch_py.loaders.local_first import LocalFirstSampler
from monarch_py.loaders.sampler import ScheduledSampler
from monarch_py.loaders.solar import SolarSampler

LENGTH = 1200


class Counted:
    """A dataset of bytes that notes in a file what it reads, also in other processes."""

    def __init__(self, log: Path) -> None:
        self.log = log
        self.sizes = np.random.default_rng(5).integers(50, 150, LENGTH)

    def __len__(self) -> int:
        return LENGTH

    def __getitem__(self, at: int) -> bytes:
        with self.log.open("a") as stream:
            stream.write(f"{at}\n")
        return content(at, int(self.sizes[at]))

    def taken(self) -> list[int]:
        """What was read since the last call."""
        read = [int(line) for line in self.log.read_text().split()] if self.log.exists() else []
        self.log.unlink(missing_ok=True)
        return read


class Recorded(Counted):
    """The same with reads into a buffer."""

    def read_into(self, samples: list[int], out: Any) -> None:
        view, begin = memoryview(out), 0
        for at in samples:
            end = begin + int(self.sizes[at])
            view[begin:end] = self[at]
            begin = end


def content(at: int, size: int) -> bytes:
    return np.random.default_rng(at).bytes(size)


def solar(dataset: Counted, share: float) -> list[ScheduledSampler]:
    quota = int(dataset.sizes.sum() * share / 4)
    return [
        SolarSampler(dataset, 8, rank=rank, world_size=4, ranks_per_node=1, quota=quota)
        for rank in range(4)
    ]


@pytest.mark.parametrize("share", [0.25, 0.5, 0.8])
def test_from_epoch_2_on_the_source_gives_what_nobody_holds(share: float, tmp_path: Path) -> None:
    dataset = Counted(tmp_path / "log")
    ranks = [(sampler, sampler.keep(dataset)) for sampler in solar(dataset, share)]
    held = sum(int(dataset.sizes[kept.memory.own].sum()) for _, kept in ranks)
    assert held >= 0.97 * share * dataset.sizes.sum()
    for epoch in range(3):
        for sampler, kept in ranks:
            sampler.set_epoch(epoch)
            for batch in sampler:
                assert kept.__getitems__(batch) == [content(i, dataset.sizes[i]) for i in batch]
        read = int(dataset.sizes[dataset.taken()].sum())
        if epoch:
            moved = read - (dataset.sizes.sum() - held)
            # What a holder has beyond the cap, of small batches, is read again.
            assert 0 <= moved <= 0.02 * (dataset.sizes.sum() - held)
    for _, kept in ranks:
        kept.close()


def kept_of(dataset: Counted) -> KeptDataset:
    sampler = LocalFirstSampler(dataset, 8, quota="1MiB")
    return sampler.keep(dataset)


def read_all(kept: KeptDataset, low: int, high: int) -> None:
    for at in range(low, high):
        assert kept[at] == content(at, kept.dataset.sizes[at])


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_processes_share_what_is_kept(method: str, tmp_path: Path) -> None:
    context: Any = multiprocessing.get_context(method)
    kept = kept_of(Counted(tmp_path / "log"))
    children = [context.Process(target=read_all, args=(kept, low, low + 300)) for low in (0, 300)]
    for child in children:
        child.start()
    for child in children:
        child.join()
        assert child.exitcode == 0
    assert sorted(kept.dataset.taken()) == list(range(600))
    read_all(kept, 0, 600)
    assert kept.dataset.taken() == []
    assert os.readlink(kept.memory.path).startswith("/memfd:"), "the memory has a name"
    kept.close()


def test_a_killed_process_that_was_writing_stops_nobody(tmp_path: Path) -> None:
    kept = kept_of(Counted(tmp_path / "log"))
    ready = tmp_path / "ready"

    def hold() -> None:
        lockf(kept.memory.fd, LOCK_EX)
        ready.touch()
        time.sleep(60)

    child = multiprocessing.get_context("fork").Process(target=hold)
    child.start()
    while not ready.exists():
        time.sleep(0.001)
    assert child.pid is not None
    os.kill(child.pid, signal.SIGKILL)
    child.join()
    read_all(kept, 0, 10)
    read_all(kept, 0, 10)
    assert kept.dataset.taken() == list(range(10))
    kept.close()


def test_reads_into_a_buffer_are_kept_as_they_are(tmp_path: Path) -> None:
    dataset = Recorded(tmp_path / "log")
    quota = int(dataset.sizes.sum() // 2)
    sampler = LocalFirstSampler(dataset, 8, rank=0, world_size=2, ranks_per_node=1, quota=quota)
    kept = sampler.keep(dataset)
    own = set(kept.memory.own.tolist())
    samples = list(range(0, 100, 3))
    want = b"".join(content(at, dataset.sizes[at]) for at in samples)
    for already in (set(), own):
        out = bytearray(len(want))
        kept.read_into(samples, out)
        assert out == want
        assert dataset.taken() == [at for at in samples if at not in already]
    # What `dataset[i]` returns may be something else.
    assert kept[samples[0]] == content(samples[0], dataset.sizes[samples[0]])
    assert not hasattr(kept_of(Counted(tmp_path / "log")), "read_into")
    kept.close()


def test_what_does_not_fit_is_read_again(tmp_path: Path) -> None:
    dataset = Counted(tmp_path / "log")
    kept = kept_of(dataset)
    kept.memory.room = 1000
    for _ in range(2):
        read_all(kept, 0, 30)
    read = dataset.taken()
    assert 0 < len(set(read[30:])) == len(read[30:]) < 30
    kept.close()


def test_ranks_that_cannot_share_are_told(tmp_path: Path) -> None:
    dataset = Counted(tmp_path / "log")
    sampler = LocalFirstSampler(dataset, 8, rank=0, world_size=2, ranks_per_node=2, quota="1MiB")
    with pytest.raises(ConfigError, match="call init_process_group first"):
        sampler.keep(dataset)
