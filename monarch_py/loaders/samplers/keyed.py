"""Random numbers for augmentations, independent of the rank or worker that reads a sample."""

import numpy as np

from monarch_py.errors import ConfigError

_WORD = (1 << 64) - 1


def keyed(seed: int, epoch: int, sample: int) -> np.random.Generator:
    """Returns a random generator for one sample in one epoch. It depends only on the three
    arguments. So augmentations stay the same if samples are assigned to other ranks, or to another
    number of ranks.

    epoch : less than 2**32;  sample : less than 2**32
    """
    seed, epoch, sample = int(seed), int(epoch), int(sample)  # NumPy's integers may overflow
    for name, number in (("epoch", epoch), ("sample", sample)):
        if not 0 <= number < 1 << 32:
            raise ConfigError(f"{name}: {number} is out of range; give 0 or more, below 2**32")
    key = np.array([seed & _WORD, epoch << 32 | sample], dtype=np.uint64)
    return np.random.Generator(np.random.Philox(key=key))
