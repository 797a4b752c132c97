"""KeptDataset: the ranks of a node keep samples in shared memory, without a daemon."""

import hashlib
import logging
import mmap
import os
import pickle
from collections.abc import Sequence
from typing import Any

import numpy as np

from monarch_py.arrays import Bools, Ints, pointer
from monarch_py.errors import ConfigError
from monarch_py.loaders.memory.shared import SharedMemory
from monarch_py.loaders.memory.sizes import n_bytes
from monarch_py.loaders.records.form import form_of
from monarch_py.native import ffi, lib
from monarch_py.storage.memory import available_bytes
from monarch_py.util.units import format_size

log = logging.getLogger("monarch.loaders")

# Environment variables that identify a launcher's job. Two jobs do not share memory, because files
# may have changed after the first job read them. A job without a launcher is identified by the
# session (setsid(2)) of its processes.
JOBS = (
    "SLURM_JOB_ID",
    "SLURM_STEP_ID",
    "TORCHELASTIC_RUN_ID",
    "PMIX_NAMESPACE",
    "PBS_JOBID",
    "LSB_JOBID",
    "MASTER_PORT",
)
PAGE = mmap.PAGESIZE


class KeptDataset:
    """A dataset whose samples are kept in shared memory after the first read::

        dataset = KeptDataset(ImageFolder(root), sampler, quota="8GiB")
        loader = DataLoader(dataset, batch_sampler=sampler, num_workers=4)

    On each node, the processes of one user's job share the memory if they make a KeptDataset from
    the same dataset. Their workers share the memory too. The first process that reads a sample
    stores it for all. Nothing is evicted. The memory is freed when the last process that maps it
    ends.

    A stored sample never changes. So apply random augmentations after this dataset, and not in
    `dataset`.

    dataset : the dataset to read from. If it has `read_into` and `sizes`, its samples are stored as
        their bytes; otherwise they are stored pickled
    keeps : the samples that this node keeps; None for all samples. Give their numbers, a bool for
        each sample, or a sampler whose `holders` list the nodes that keep each sample
    quota : the most memory that all processes of the node use together. If less memory is available
        on the node, only that is used
    name : identifies the dataset on this node; None to identify it by its pickled form

    Raises ConfigError for arguments that cannot work, and MonarchError if memory cannot be mapped.
    """

    def __init__(
        self,
        dataset: Any,
        keeps: Any = None,
        quota: int | str = "8GiB",
        *,
        name: str | None = None,
    ) -> None:
        self.dataset = dataset
        self._places = _places(keeps, len(dataset))
        room = n_bytes("quota", quota)
        # Compute the identity before the first read, because the identity may depend on the
        # dataset's pickled form, which a read may change.
        identity = _identity(name, dataset)
        self.sample_form = form_of(dataset)
        parts = [identity, self._places.tobytes(), str(room).encode()]
        if self.sample_form is not None:
            self.sizes: Ints = np.asarray(dataset.sizes, dtype=np.int64)
            parts += [repr(self.sample_form).encode(), self.sizes.tobytes()]
        key = _key(parts)
        kept = int(self._places.max(initial=-1)) + 1
        self._layout = _Layout(kept, room)
        self._shared = SharedMemory(key, self._layout.n_bytes, self._layout.begin)

    def __len__(self) -> int:
        return len(self._places)

    @property
    def labels(self) -> Any:
        """The labels of `dataset`, if it has any."""
        return self.dataset.labels

    def __getitem__(self, index: int) -> Any:
        place = int(self._places[index])
        if place >= 0 and (found := self._find(place)) is not None:
            self._count(1, 0)
            return self._value(found)
        value = self.dataset[index]
        self._count(0, 1)
        if place >= 0:
            self._put(place, self._bytes(value))
        return value

    def __getitems__(self, indices: Sequence[int]) -> list[Any]:
        if self.sample_form is None:
            return self._values(indices)
        if not len(indices):
            return []
        ends = np.cumsum(self.sizes[np.asarray(indices, dtype=np.int64)])
        out = np.empty(int(ends[-1]), dtype=np.uint8)
        self.read_into(indices, out)
        return [self._value(memoryview(part.data)) for part in np.split(out, ends[:-1])]

    def _values(self, indices: Sequence[int]) -> list[Any]:
        if not hasattr(self.dataset, "__getitems__"):
            return [self[index] for index in indices]
        places = self._places[np.asarray(indices, dtype=np.int64)].tolist()
        found = [self._find(place) if place >= 0 else None for place in places]
        absent = [number for number, each in enumerate(found) if each is None]
        read = self.dataset.__getitems__([indices[number] for number in absent]) if absent else []
        self._count(len(indices) - len(absent), len(absent))
        values = [None if each is None else self._value(each) for each in found]
        for number, value in zip(absent, read, strict=True):
            values[number] = value
            if places[number] >= 0:
                self._put(places[number], self._bytes(value))
        return values

    def read_into(self, samples: Sequence[int], out: Any) -> None:
        """Reads the samples back to back into a writable buffer. Works only if `dataset` has
        `read_into` itself."""
        numbers = np.asarray(samples, dtype=np.int64)
        lengths, memory = self.sizes[numbers], np.frombuffer(out, dtype=np.uint8)
        places = self._places[numbers]
        starts = np.cumsum(lengths) - lengths
        if lengths.sum() > len(memory):
            raise ConfigError(
                f"out: {len(memory)} bytes, but the samples have {lengths.sum()}; give a larger out"
            )
        missing = np.zeros(len(numbers), dtype=np.uint8)
        target = ffi.from_buffer("char[]", memory, require_writable=True)
        store = self._store()
        lacking = int(
            lib.monarch_kept_take(
                store,
                pointer(places),
                len(numbers),
                target,
                pointer(starts),
                pointer(lengths),
                pointer(missing),
            )
        )
        lib.monarch_kept_count(store, len(numbers) - lacking, lacking)
        if lacking:
            self._read_missing(numbers, places, starts, memory, missing.astype(np.bool_))

    def _read_missing(
        self, numbers: Ints, places: Ints, starts: Ints, memory: Any, missing: Bools
    ) -> None:
        lengths = self.sizes[numbers[missing]]
        # Read all missing samples with one call, so that many reads are in flight at once.
        whole = (
            memory[: lengths.sum()]
            if missing.all()
            else np.empty(int(lengths.sum()), dtype=np.uint8)
        )
        self.dataset.read_into(numbers[missing].tolist(), whole)
        ends = np.cumsum(lengths).tolist()
        for place, start, length, end in zip(
            places[missing].tolist(), starts[missing].tolist(), lengths.tolist(), ends, strict=True
        ):
            part = whole[end - length : end]
            if not missing.all():
                memory[start : start + length] = part
            if place >= 0:
                self._put(place, part)

    def sources(self) -> dict[str, int]:
        """Returns how many samples all processes of the node together have read from memory, and
        how many from the source."""
        store = self._store()
        return {"memory": int(store.from_memory), "source": int(store.from_source)}

    def kept_bytes(self) -> int:
        """Returns how much of the quota is used [bytes]."""
        return int(self._store().used)

    def close(self) -> None:
        """Removes this process from the list of processes through which others can open the memory
        (see `shared.SharedMemory`). The memory is freed when the last process that maps it ends."""
        self._shared.close()

    # --- one sample -----------------------------------------------------------------------------

    def _store(self) -> Any:
        return ffi.cast("struct monarch_kept *", ffi.from_buffer(self._shared.memory))

    def _find(self, place: int) -> memoryview | None:
        length = ffi.new("uint64_t *")
        at = int(lib.monarch_kept_find(self._store(), place, length))
        return None if at < 0 else memoryview(self._shared.memory)[at : at + length[0]]

    def _put(self, place: int, value: Any) -> None:
        n_bytes = memoryview(value).nbytes
        if lib.monarch_kept_put(self._store(), place, ffi.from_buffer(value), n_bytes):
            log.warning(
                "a sample of %d bytes does not fit into what is left of %s of memory, so it will be"
                " read from the source again; give a larger quota, unless memory is the limit",
                n_bytes,
                format_size(int(self._store().room)),
            )

    def _count(self, from_memory: int, from_source: int) -> None:
        lib.monarch_kept_count(self._store(), from_memory, from_source)

    def _bytes(self, value: Any) -> Any:
        """Returns the bytes to store for a sample."""
        if self.sample_form is None:
            return pickle.dumps(value, 5)
        return value if self.sample_form.is_bytes else np.ascontiguousarray(value)

    def _value(self, stored: memoryview) -> Any:
        """Returns a copy of the sample that the stored bytes represent."""
        if self.sample_form is None:
            return pickle.loads(stored)  # noqa: S301  this user stored it
        if self.sample_form.is_bytes:
            return bytes(stored)
        array = np.frombuffer(stored, dtype=self.sample_form.dtype).reshape(self.sample_form.shape)
        return array.copy()


class _Layout:
    """The layout of the memory: a header, an entry for each kept sample, and the samples' bytes."""

    def __init__(self, samples: int, room: int) -> None:
        table = ffi.sizeof("struct monarch_kept") + samples * ffi.sizeof(
            "struct monarch_kept_sample"
        )
        self.samples, self.room = samples, room
        self.data = -(-table // PAGE) * PAGE
        self.n_bytes = self.data + -(-room // PAGE) * PAGE

    def begin(self, memory: mmap.mmap) -> None:
        store = ffi.cast("struct monarch_kept *", ffi.from_buffer(memory))
        store.samples, store.data = self.samples, self.data
        # If less memory than `room` is available, less of the mapping is used. The mapping keeps
        # its size.
        store.room = min(self.room, available_bytes())


def _places(keeps: Any, length: int) -> Ints:
    """Returns the index of each sample's entry in the shared memory, (samples,); -1 if the sample
    is not kept.

    length : the number of samples
    """
    if keeps is None:
        return np.arange(length, dtype=np.int64)
    if hasattr(keeps, "holders"):
        held = np.asarray(keeps.holders).reshape(length, -1) == keeps.ranks.node
        keeps = held.any(axis=1)
    given = np.asarray(keeps)
    if given.dtype == np.bool_ and given.shape != (length,):
        raise ConfigError(f"keeps: {given.shape} bools for {length} samples; give one per sample")
    chosen = np.flatnonzero(given) if given.dtype == np.bool_ else np.unique(given)
    if len(chosen) and (chosen[0] < 0 or chosen[-1] >= length):
        raise ConfigError(f"keeps: a number is not one of 0 to {length - 1}; give sample numbers")
    places = np.full(length, -1, dtype=np.int64)
    places[chosen.astype(np.int64)] = np.arange(len(chosen))
    return places


def _identity(name: str | None, dataset: Any) -> bytes:
    try:
        found = name.encode() if name is not None else pickle.dumps(dataset, 5)
    except (AttributeError, TypeError, pickle.PicklingError) as error:
        raise ConfigError(
            f"name: the dataset cannot be identified, because it cannot be pickled ({error}); give"
            " a name that no other dataset of the job has"
        ) from None
    return type(dataset).__qualname__.encode() + b"\0" + found


def _key(parts: Sequence[bytes]) -> str:
    """Returns the name of the shared memory. Processes share the memory if they belong to one job
    and have the same `parts`."""
    given = [os.environ.get(variable, "") for variable in JOBS]
    job = "/".join(given) if any(given) else f"session {os.getsid(0)}"
    digests = [hashlib.sha256(part).digest() for part in (job.encode(), *parts)]
    return hashlib.sha256(b"".join(digests)).hexdigest()[:32]
