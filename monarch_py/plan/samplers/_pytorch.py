"""The samplers of torch.utils.data without torch: the same indices as torch 2.13 on the CPU.

A torch.Generator on the CPU is an MT19937 that uses only the low 32 bits of its seed. randperm is a
Fisher-Yates shuffle, which draws one number per item. For 2**32 / 20 items or more, torch uses a
variant of this shuffle that draws two numbers per item.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import count
from typing import ClassVar

import numpy as np
import numpy.typing as npt

from monarch_py.arrays import Array, Floats, Uints, pointer
from monarch_py.errors import ConfigError
from monarch_py.native import ffi, lib
from monarch_py.plan.samplers._base import Buffers, Order, Sampler, check_choice, check_length

# For at least this many items, randperm draws two numbers per item (see torch's
# TensorFactories.cpp).
LARGE_RANDPERM = ((1 << 32) - 1) // 20
# If the result may have at least this many different values, randint draws two numbers per result
# (see torch's DistributionTemplates.h).
WIDE_RANDINT = 1 << 28

# A DataLoader may use the sampler's generator to draw the seed of its workers. This takes two
# numbers of the generator. The value of `loader_draws` states when the DataLoader draws the seed:
# none : never, because the program has not passed this generator to the DataLoader
# every_epoch : before each epoch
# first_epoch : only before the first epoch, because the DataLoader has persistent_workers
LOADER_DRAWS = ("none", "every_epoch", "first_epoch")


class Mersenne:
    """The MT19937 generator in C, seeded as torch's generator and NumPy's RandomState are. Its
    numbers have 32 bits.

    seed : any integer; only its low 32 bits are used, as in torch.Generator.manual_seed
    """

    def __init__(self, seed: int) -> None:
        self.handle = ffi.new("struct monarch_mersenne *")
        lib.monarch_mersenne_seed(self.handle, seed & 0xFFFFFFFF)

    def skip(self, draws: int) -> None:
        """Skips `draws` numbers."""
        lib.monarch_mersenne_skip(self.handle, draws)

    def draw(self, n: int) -> npt.NDArray[np.uint32]:
        """Returns the next n numbers."""
        drawn = np.empty(n, dtype=np.uint32)
        lib.monarch_mersenne_fill(self.handle, pointer(drawn), n)
        return drawn

    def draw64(self, n: int) -> Uints:
        """Returns n numbers of 64 bits. Each consists of the next two numbers of 32 bits; the first
        of these is its upper half."""
        halves = self.draw(2 * n).astype(np.uint64)
        numbers: Uints = halves[::2] << np.uint64(32) | halves[1::2]
        return numbers


def randperm(generator: Mersenne, order: Order) -> Order:
    """Writes torch.randperm(n, generator=generator) into `order` (n,), and returns `order`."""
    n = len(order)
    numbers = pointer(order)
    lib.monarch_torch_randperm(generator.handle, n >= LARGE_RANDPERM, numbers, n)
    return order


def randperm_draws(n: int) -> int:
    """Returns how many numbers randperm(n) takes from its generator."""
    return 2 * n if n >= LARGE_RANDPERM else max(0, n - 1)


def loader_skips(loader_draws: str, run: int) -> int:
    """Returns how many numbers a DataLoader has drawn from the generator before the sampler draws
    the order of epoch `run`. The numbers that the DataLoader draws at the beginning of this epoch
    are included."""
    return {"none": 0, "every_epoch": 2 * (run + 1), "first_epoch": 2}[loader_draws]


class _Generated(Sampler):
    """A sampler with its own random generator, which is seeded once. Only the sampler and the
    DataLoader (see `loader_draws`) draw numbers from this generator."""

    seed: int
    loader_draws: str

    def __post_init__(self) -> None:
        super().__post_init__()
        check_choice("loader_draws", self.loader_draws, LOADER_DRAWS)

    def generators(self, start: int, draws: int) -> Iterator[Mersenne]:
        """Yields the generator once for each epoch from `start` on. The generator is then in the
        state in which the sampler begins to draw the epoch's order.

        draws : how many numbers the sampler draws in an epoch
        """
        generator = Mersenne(self.seed)
        generator.skip(start * draws + loader_skips(self.loader_draws, start))
        while True:
            yield generator
            if self.loader_draws == "every_epoch":
                generator.skip(2)


@dataclass(frozen=True)
class DistributedSampler(Sampler):
    """torch.utils.data.DistributedSampler. Its order is the order of all ranks together: rank r
    takes the samples r, r + replicas, ... of this order.

    seed : the same on all ranks;  set_epoch : whether the training program calls set_epoch
    drop_last : what happens if the samples cannot be divided evenly among the ranks. True: the last
        samples of the order are dropped. False: the first samples of the order are used again
    """

    length: int
    replicas: int
    seed: int = 0
    shuffle: bool = True
    drop_last: bool = False
    set_epoch: bool = True
    by_epoch: ClassVar[bool] = True
    ranks_field: ClassVar[str | None] = "replicas"
    own_split: ClassVar[str | None] = "strided"

    def __post_init__(self) -> None:
        super().__post_init__()
        check_length("replicas", self.replicas)
        if self.count == 0:
            raise ConfigError(
                f"length: {self.length} samples leave nothing for {self.replicas} ranks; write"
                " 'drop_last: false'"
            )

    @property
    def count(self) -> int:
        rest = self.length % self.replicas
        whole = self.length - rest
        return whole if rest == 0 or self.drop_last else whole + self.replicas

    def epochs(self, start: int = 0) -> Iterator[Order]:
        buffers = Buffers()
        for number in count(start):
            yield self._one(number, buffers)

    def _one(self, number: int, buffers: Buffers) -> Order:
        order = buffers.take(max(self.count, self.length))
        head = order[: self.length]
        if self.shuffle:
            randperm(Mersenne(self.seed + (number if self.set_epoch else 0)), head)
        else:
            head[:] = np.arange(self.length)
        # np.resize repeats the head as often as needed.
        order[self.length :] = np.resize(head, max(0, self.count - self.length))
        return order[: self.count]


@dataclass(frozen=True)
class RandomSampler(_Generated):
    """torch.utils.data.RandomSampler(generator=g). Assumptions: g is seeded once, only the sampler
    and the DataLoader (`loader_draws`) draw from g, and the program reads every epoch to its end.

    seed : the argument of g.manual_seed
    num_samples : the number of samples of an epoch; None for `length`
    """

    length: int
    seed: int
    replacement: bool = False
    num_samples: int | None = None
    loader_draws: str = "none"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.num_samples is not None:
            check_length("num_samples", self.num_samples)

    @property
    def count(self) -> int:
        return self.length if self.num_samples is None else self.num_samples

    def epochs(self, start: int = 0) -> Iterator[Order]:
        buffers = Buffers()
        for generator in self.generators(start, self._draws()):
            yield self._one(generator, buffers)

    def _draws(self) -> int:
        """Returns how many numbers the sampler draws in one epoch. Without replacement, torch draws
        a last permutation for the `count` % `length` remaining samples of an epoch, even if no
        samples remain."""
        if self.replacement:
            return self.count * (2 if self.length >= WIDE_RANDINT else 1)
        return (self.count // self.length + 1) * randperm_draws(self.length)

    def _one(self, generator: Mersenne, buffers: Buffers) -> Order:
        if self.replacement:
            order = buffers.take(self.count)
            wide = self.length >= WIDE_RANDINT
            numbers = pointer(order)
            lib.monarch_torch_randint(generator.handle, self.length, wide, numbers, self.count)
            return order
        whole, rest = divmod(self.count, self.length)
        order = buffers.take((whole + (rest > 0)) * self.length)
        for low in range(0, len(order), self.length):
            randperm(generator, order[low : low + self.length])
        if not rest:
            generator.skip(randperm_draws(self.length))
        return order[: self.count]


@dataclass(frozen=True)
class GlobalRandomSampler(Sampler):
    """torch.utils.data.RandomSampler without a generator (shuffle=True), for one epoch.

    At the start of each epoch, torch draws a new seed for the order from its global generator.
    Between two epochs, dropout, augmentation and initialisation draw an unknown number of times
    from the same generator. So the order is known only for the epoch that begins with the recorded
    state.

    state : the global generator's state right before iter(DataLoader), as the bytes of
        torch.get_rng_state()
    loader : whether a DataLoader iterates over the sampler. A DataLoader draws the seed of its
        workers from the global generator before the sampler draws its seed
    """

    length: int
    state: bytes
    loader: bool = True
    replacement: bool = False
    num_samples: int | None = None
    reach: ClassVar[int | None] = 1

    def __post_init__(self) -> None:
        super().__post_init__()
        self._drawn()

    @property
    def count(self) -> int:
        return self._drawn().count

    def seed(self) -> int:
        """Returns the seed that the sampler will draw from the global generator."""
        words, used = _words_of(self.state)
        generator = Mersenne(0)
        generator.handle.state[0 : len(words)] = words
        generator.handle.used = used
        return int(generator.draw64(2 if self.loader else 1)[-1]) & ((1 << 63) - 1)

    def epochs(self, start: int = 0) -> Iterator[Order]:
        self.check_epoch(start)
        yield self._drawn().epoch(0)

    def _drawn(self) -> RandomSampler:
        """Returns a RandomSampler whose generator is seeded with the result of `seed`."""
        return RandomSampler(self.length, self.seed(), self.replacement, self.num_samples)


def _words_of(state: bytes) -> tuple[list[int], int]:
    """Returns the words of a CPU generator's state, and how many of these words have been used.

    torch saves the following fields, with their sizes in bytes: the seed (8), how many words are
    unused (4), whether the generator is seeded (4), the index of the next word (8), and 624 words
    (8 each). After them come data for normally distributed numbers, which are ignored here.
    """
    if len(state) != 5056:
        raise ConfigError(
            f"state: {len(state)} bytes, but a state of torch's generator has 5056; write"
            " torch.get_rng_state().numpy().tobytes()"
        )
    left = int(np.frombuffer(state, dtype=np.int32, count=1, offset=8)[0])
    following = int(np.frombuffer(state, dtype=np.uint64, count=1, offset=16)[0])
    words = np.frombuffer(state, dtype=np.uint64, count=624, offset=24)
    # `left` is 1 if all words are used. It is also 1 in a generator that was just seeded, because
    # such a generator has not computed its first words yet.
    used = 624 if left <= 1 else following
    return [int(word) for word in words], used


@dataclass(frozen=True, eq=False)
class SubsetRandomSampler(_Generated):
    """torch.utils.data.SubsetRandomSampler(indices, generator=g), with g as in RandomSampler.

    indices : (m,) integers, the samples that may be drawn
    """

    length: int
    indices: Array
    seed: int
    loader_draws: str = "none"

    def __post_init__(self) -> None:
        super().__post_init__()
        object.__setattr__(self, "indices", as_order("indices", self.indices, self.length))

    @property
    def count(self) -> int:
        return len(self.indices)

    def epochs(self, start: int = 0) -> Iterator[Order]:
        permutation = np.empty(self.count, dtype=np.int32)
        for generator in self.generators(start, randperm_draws(self.count)):
            yield self.indices[randperm(generator, permutation)]


@dataclass(frozen=True, eq=False)
class WeightedRandomSampler(_Generated):
    """torch.utils.data.WeightedRandomSampler(weights, num_samples, generator=g), with g as in
    RandomSampler.

    Without replacement, or for a single sample, torch draws exponentially distributed numbers.
    Their values depend on the math library with which torch was built. So in these cases torch
    itself draws the order. If torch is not installed, `epochs` raises ConfigError.

    weights : (length,) float64, 0 or more
    """

    length: int
    weights: Floats
    num_samples: int
    seed: int
    replacement: bool = True
    loader_draws: str = "none"

    def __post_init__(self) -> None:
        super().__post_init__()
        check_length("num_samples", self.num_samples)
        weights = np.asarray(self.weights, dtype=np.float64)
        if weights.shape != (self.length,) or not (weights >= 0).all() or not weights.any():
            raise ConfigError(
                f"weights: needs {self.length} numbers, each 0 or more and at least one above 0;"
                " write one weight for each sample"
            )
        drawable = np.count_nonzero(weights)
        if not self.replacement and self.num_samples > drawable:
            raise ConfigError(
                f"num_samples: without replacement, {self.num_samples} samples cannot be drawn from"
                f" {drawable} with a weight above 0; write {drawable} or less, or set"
                " 'replacement: true'"
            )
        object.__setattr__(self, "weights", weights)

    @property
    def count(self) -> int:
        return self.num_samples

    def epochs(self, start: int = 0) -> Iterator[Order]:
        if self.replacement and self.num_samples > 1:
            return self._with_replacement(start)
        return self._by_torch(start)

    def _with_replacement(self, start: int) -> Iterator[Order]:
        """Yields orders as torch.multinomial draws them. For each sample, a uniform random number
        is looked up in the cumulative weights; the sample is the index that it falls on."""
        sums = np.cumsum(self.weights)
        sums /= sums[-1]
        for generator in self.generators(start, 2 * self.count):
            # The low 53 bits of each number are converted to a number in [0, 1), as in torch's
            # uniform_real_distribution.
            bits = generator.draw64(self.count) & np.uint64((1 << 53) - 1)
            drawn = np.searchsorted(sums, bits.astype(np.float64) * 2.0**-53, side="left")
            yield drawn.astype(np.int32)

    def _by_torch(self, start: int) -> Iterator[Order]:
        try:
            import torch
        except ImportError:
            raise ConfigError(
                "replacement: without replacement, or for one sample, only torch itself can draw"
                " the order; install torch here, or use 'kind: Recorded'"
            ) from None
        generator = torch.Generator()
        generator.manual_seed(self.seed)
        weights = torch.from_numpy(self.weights)
        for number in count():
            if self.loader_draws == "every_epoch" or (
                self.loader_draws == "first_epoch" and number == 0
            ):
                torch.empty((), dtype=torch.int64).random_(generator=generator)
            drawn = torch.multinomial(
                weights, self.num_samples, self.replacement, generator=generator
            )
            if number >= start:
                yield drawn.numpy().astype(np.int32)


def as_order(key: str, numbers: Array, length: int) -> Order:
    """Returns `numbers` as an Order. Raises ConfigError unless `numbers` is a list of sample
    numbers below `length`; the message names `key`."""
    numbers = np.asarray(numbers)
    if numbers.ndim != 1 or len(numbers) == 0 or not np.issubdtype(numbers.dtype, np.integer):
        raise ConfigError(f"{key}: must be a list of whole numbers; write sample numbers")
    if int(numbers.min()) < 0 or int(numbers.max()) >= length:
        outside = numbers[(numbers < 0) | (numbers >= length)][0]
        raise ConfigError(
            f"{key}: {outside} is not the number of a sample in a dataset of {length}; write"
            f" numbers from 0 to {length - 1}"
        )
    return numbers.astype(np.int32)
