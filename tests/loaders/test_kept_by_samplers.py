"""The samples that a sampler's node holds stay in the node's memory, and only the other samples are
read from the source."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.draws import cases

from monarch_py.loaders.samplers.held import HeldSampler
from monarch_py.loaders.samplers.local_first import LocalFirstSampler
from monarch_py.loaders.samplers.solar import SolarSampler

LENGTH = 1200


class Counted:
    """A dataset that logs its reads: whichever process reads a sample adds the sample's number to
    the file `log`."""

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
        """Returns the numbers of the samples that were read since the last call."""
        read = [int(line) for line in self.log.read_text().split()] if self.log.exists() else []
        self.log.unlink(missing_ok=True)
        return read


class Recorded(Counted):
    """A Counted with a `read_into`."""

    def read_into(self, samples: list[int], out: Any) -> None:
        view, begin = memoryview(out), 0
        for at in samples:
            end = begin + int(self.sizes[at])
            view[begin:end] = self[at]
            begin = end


class Decoded(Counted):
    """A dataset like Counted, but its samples are larger than `sizes` says, as if files were
    decoded."""

    def __getitem__(self, at: int) -> bytes:
        return super().__getitem__(at) * 20


def content(at: int, size: int) -> bytes:
    return np.random.default_rng(at).bytes(size)


def solar(dataset: Counted, share: float) -> list[HeldSampler]:
    quota = int(dataset.sizes.sum() * share / 4)
    return [
        SolarSampler(dataset, 8, rank=rank, world_size=4, ranks_per_node=1, quota=quota)
        for rank in range(4)
    ]


def own_of(sampler: HeldSampler) -> Any:
    return np.flatnonzero(sampler.holders.reshape(LENGTH, -1)[:, 0] == sampler.ranks.node)


@pytest.mark.parametrize("share", cases([0.25, 0.5, 0.8], short=[0.5]))
def test_from_epoch_2_on_the_source_gives_what_nobody_holds(share: float, tmp_path: Path) -> None:
    dataset = Counted(tmp_path / "log")
    ranks = [(sampler, sampler.keep(dataset)) for sampler in solar(dataset, share)]
    held = sum(int(dataset.sizes[own_of(sampler)].sum()) for sampler, _ in ranks)
    assert held >= 0.97 * share * dataset.sizes.sum()
    for epoch in range(3):
        for sampler, kept in ranks:
            sampler.set_epoch(epoch)
            for batch in sampler:
                assert kept.__getitems__(batch) == [content(i, dataset.sizes[i]) for i in batch]
        read = int(dataset.sizes[dataset.taken()].sum())
        if epoch:
            moved = read - (dataset.sizes.sum() - held)
            # If batches are small, a node may hold more samples of a step than its rank may get
            # (`cap` of SolarSampler). Another node reads the surplus from the source.
            assert 0 <= moved <= 0.02 * (dataset.sizes.sum() - held)
    for _, kept in ranks:
        kept.close()


def test_held_samples_that_are_larger_than_their_files_are_told_of_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    dataset = Decoded(tmp_path / "log")
    sampler = LocalFirstSampler(dataset, 8, rank=0, world_size=1, quota=LENGTH * 100)
    kept = sampler.keep(dataset)
    for epoch in range(2):
        assert [kept[i] for i in range(LENGTH)] == [dataset[i] for i in range(LENGTH)], epoch
    assert caplog.text.count("does not fit") == 1
    kept.close()


def test_reads_into_a_buffer_are_kept_as_they_are(tmp_path: Path) -> None:
    dataset = Recorded(tmp_path / "log")
    quota = int(dataset.sizes.sum() // 2)
    sampler = LocalFirstSampler(dataset, 8, rank=0, world_size=2, ranks_per_node=1, quota=quota)
    kept = sampler.keep(dataset)
    dataset.taken()  # forgets the reads that `keep` has made to learn the form of a sample
    own = set(own_of(sampler).tolist())
    samples = list(range(0, 100, 3))
    want = b"".join(content(at, dataset.sizes[at]) for at in samples)
    for already in (set(), own):
        out = bytearray(len(want))
        kept.read_into(samples, out)
        assert out == want
        assert dataset.taken() == [at for at in samples if at not in already]
    # `kept[i]` must be what `dataset[i]` returns, which need not be the bytes that were stored.
    assert kept[samples[0]] == content(samples[0], dataset.sizes[samples[0]])
    kept.close()
