"""The order in which the readers of NVIDIA DALI 2.4 read and deliver samples, found without DALI.

With random_shuffle, a reader reads samples into a buffer ahead of time, and delivers samples from
the buffer at random. So there are two orders: the order of reading, which the storage system sees,
and the order of delivery. The file reader reads in the order of its list, which is shuffled once
with a fixed seed. Readers of records read in the order of the records in the file.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import count
from typing import ClassVar

import numpy as np

from monarch_py.arrays import pointer
from monarch_py.errors import ConfigError, MonarchError
from monarch_py.native import ffi, lib
from monarch_py.plan.samplers._base import NONE, Order, Sampler, check_choice, check_length
from monarch_py.plan.samplers._pytorch import Mersenne

# The kinds of DALI's readers. `file` reads the files of a list. `records` is for `tfrecord` and all
# other readers that need an index.
READERS = ("file", "records")

# The seed with which every shard shuffles the list of files.
_LIST_SEED = 524287
_MINSTD_MODULUS = (1 << 31) - 1
_WORD = 0xFFFFFFFF


@dataclass(frozen=True)
class DALIReader(Sampler):
    """The readers of all ranks, one per rank. In each epoch, a reader reads one shard of the
    dataset. With `stick_to_shard` this is always the same shard, otherwise the next shard in each
    epoch. If a shard has one sample fewer than other shards, its order ends with NONE.

    random_shuffle, stick_to_shard, initial_fill : DALI's arguments of these names
    delivered : True for the order in which samples are delivered, which depends on `seed`; False
        for the order in which they are read
    seed_step : difference between the seeds of consecutive ranks
    """

    length: int
    shards: int
    reader: str = "file"
    random_shuffle: bool = True
    stick_to_shard: bool = False
    delivered: bool = False
    seed: int = 0
    seed_step: int = 0
    initial_fill: int = 1024
    ranks_field: ClassVar[str | None] = "shards"
    own_split: ClassVar[str | None] = "chunks"

    def __post_init__(self) -> None:
        super().__post_init__()
        check_length("shards", self.shards)
        check_length("initial_fill", self.initial_fill)
        check_choice("reader", self.reader, READERS)
        if self.shards > self.length:
            raise ConfigError(
                f"length: {self.length} samples are fewer than the {self.shards} shards; use"
                f" at most {self.length} shards"
            )

    @property
    def count(self) -> int:
        return self.shards * -(-self.length // self.shards)

    def epochs(self, start: int = 0) -> Iterator[Order]:
        listed = self._listed()
        buffered = self.random_shuffle and self.delivered
        seeds = (self.seed + rank * self.seed_step for rank in range(self.shards))
        states = [ffi.new("uint32_t *", _minstd_state(seed)) for seed in seeds]
        for number in count(0 if buffered else start):
            order = np.full((self.shards, self.count // self.shards), NONE, dtype=np.int32)
            for rank in range(self.shards):
                shard = (rank + (0 if self.stick_to_shard else number)) % self.shards
                low, high = (self.length * (shard + i) // self.shards for i in (0, 1))
                part = np.ascontiguousarray(listed[low:high])
                order[rank, : len(part)] = self._drawn(part, states[rank]) if buffered else part
            if number >= start:
                yield order.reshape(-1)

    def _listed(self) -> Order:
        listed = np.arange(self.length, dtype=np.int32)
        if self.random_shuffle and self.reader == "file":
            numbers = pointer(listed)
            lib.monarch_mersenne_shuffle(Mersenne(_LIST_SEED).handle, 0, numbers, self.length)
        return listed

    def _drawn(self, part: Order, state: ffi.CData) -> Order:
        drawn = np.empty_like(part)
        buffer = min(self.initial_fill, len(part))
        numbers, out = pointer(part), pointer(drawn)
        if lib.monarch_minstd_buffer(state, buffer, numbers, out, len(part)) != 0:
            raise MonarchError(f"no memory for a buffer of {buffer} samples")
        return drawn


def _minstd_state(seed: int) -> int:
    """Returns the initial state of a std::minstd_rand0 that was seeded with std::seed_seq{seed}.
    This is the last of the four words that the standard's formula ([rand.util.seedseq]) yields,
    modulo _MINSTD_MODULUS, with 0 replaced by 1."""
    words, n = [0x8B8B8B8B] * 4, 4

    def mixed(value: int) -> int:
        return value ^ (value >> 27)

    for k in range(n):
        before = words[k] ^ words[(k + 1) % n] ^ words[(k - 1) % n]
        r = 1664525 * mixed(before) & _WORD
        words[(k + 1) % n] = (words[(k + 1) % n] + r) & _WORD
        r = (r + (1 if k == 0 else k + (seed if k == 1 else 0))) & _WORD
        words[(k + 2) % n] = (words[(k + 2) % n] + r) & _WORD
        words[k] = r
    for k in range(n, 2 * n):
        before = (words[k % n] + words[(k + 1) % n] + words[(k - 1) % n]) & _WORD
        r = 1566083941 * mixed(before) & _WORD
        words[(k + 1) % n] ^= r
        r = (r - k % n) & _WORD
        words[(k + 2) % n] ^= r
        words[k % n] = r
    return words[3] % _MINSTD_MODULUS or 1
