"""The form of a dataset's samples: shape, dtype, and whether they are bytes or arrays."""

from typing import Any, NamedTuple

import numpy as np


class Form(NamedTuple):
    """The form of a dataset's samples. A dataset has a Form only if its `read_into` reads the
    bytes that `dataset[i]` returns.

    shape : the shape of a sample; None if samples differ in size
    is_bytes : whether `dataset[i]` returns bytes; if not, it returns an array
    """

    shape: tuple[int, ...] | None
    dtype: Any
    is_bytes: bool


def form_of(dataset: Any) -> Form | None:
    """Returns the form of the samples. Returns None if `read_into` cannot be used, so that the
    caller must make batches from `dataset[i]`. If the dataset has no `sample_form`, its first
    sample is read both by `dataset[0]` and by `read_into`. The results must be equal."""
    if not _reads_what_it_gives(type(dataset)):
        return None
    known = getattr(dataset, "sample_form", None)
    if isinstance(known, Form):
        return known
    if not (hasattr(dataset, "read_into") and hasattr(dataset, "sizes") and len(dataset)):
        return None
    first, sizes = dataset[0], np.asarray(dataset.sizes)
    is_even = bool((sizes == sizes[0]).all())
    if isinstance(first, bytes):
        found = Form((len(first),) if is_even else None, np.dtype(np.uint8), True)
    elif isinstance(first, np.ndarray) and is_even:
        found = Form(first.shape, first.dtype, False)
    else:
        return None
    content = first if found.is_bytes else first.tobytes()
    if len(content) != sizes[0]:
        return None
    read = np.empty(len(content), dtype=np.uint8)
    dataset.read_into([0], read)
    return found if read.tobytes() == content else None


def _reads_what_it_gives(cls: type) -> bool:
    """Whether `read_into` reads the bytes that `dataset[i]` returns. Returns False if a derived
    class overrides only `dataset[i]`, or if a class forwards `read_into` to another dataset. In
    these cases, `dataset[i]` may change some samples, so comparing one sample would not be
    enough."""
    for each in cls.__mro__:
        if "read_into" in vars(each):
            return True
        if vars(each).keys() & {"__getitem__", "__getitems__"}:
            return False
    return False
