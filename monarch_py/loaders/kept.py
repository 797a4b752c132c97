"""Keeps the samples that this node holds in memory, where no daemons keep files.

The memory belongs to no name: the kernel frees it when the last process of the job has ended,
however it ends.
"""

import fcntl
import mmap
import os
import pickle
import sys
from collections.abc import Sequence
from threading import Lock
from typing import Any

import numpy as np

from monarch_py.errors import ConfigError
from monarch_py.loaders.ranks import Ranks
from monarch_py.native import Ints

# Of a place in memory: where a sample begins, counted from 1, and twice its length plus its form.
_PLACE_BYTES = 16
# The memory begins with the number of bytes that are taken.
_HEAD_BYTES = 8
# What pickling adds to a sample at most, for which there is room [bytes].
_PICKLED_BYTES = 512
# How a sample is stored: its bytes as they were read, or the pickled object.
_RAW, _PICKLED = 0, 1


class _Memory:
    """Memory for samples, shared by the processes of a node. A sample is written once.

    own : (n,) int64, the samples that have a place, rising;  room : for their contents [bytes]
    path : of the memory that another process has made; None to make it
    """

    def __init__(self, own: Ints, room: int, path: str | None = None) -> None:
        self.own, self.room = own, room
        self._lock = Lock()
        self.fd = os.memfd_create("monarch-samples") if path is None else os.open(path, os.O_RDWR)
        self._data_at = _HEAD_BYTES + _PLACE_BYTES * len(own)
        if path is None:
            os.ftruncate(self.fd, self._data_at + room)
        self._map = mmap.mmap(self.fd, self._data_at + room)
        places = np.frombuffer(self._map, dtype=np.int64, count=1 + 2 * len(own))
        self._taken, self._places = places[:1], places[1:].reshape(-1, 2)

    @property
    def path(self) -> str:
        """How another process of this node opens the memory, while this process lives."""
        return f"/proc/{os.getpid()}/fd/{self.fd}"

    def __reduce__(self) -> Any:
        return _Memory, (self.own, self.room, self.path)

    def close(self) -> None:
        # The arrays hold the mapping.
        del self._taken, self._places
        self._map.close()
        os.close(self.fd)

    def place(self, sample: int) -> int:
        """The number of a sample's place; -1 if it has none."""
        at = int(np.searchsorted(self.own, sample))
        return at if at < len(self.own) and self.own[at] == sample else -1

    def find(self, place: int, form: int) -> memoryview | None:
        """The content at a place; None if it is not there in this form."""
        begin, tagged = self._places[place].tolist() if place >= 0 else (0, 0)
        if not begin or tagged & 1 != form:
            return None
        at = self._data_at + begin - 1
        return memoryview(self._map)[at : at + (tagged >> 1)]

    def store(self, place: int, content: Any, form: int) -> None:
        """Writes a content, if nothing is there yet and there is room."""
        size = len(content)
        with self._lock:
            fcntl.lockf(self.fd, fcntl.LOCK_EX)
            try:
                begin = int(self._taken[0])
                if self._places[place, 0] or begin + size > self.room:
                    return
                self._taken[0] = begin + size
            finally:
                fcntl.lockf(self.fd, fcntl.LOCK_UN)
        at = self._data_at + begin
        self._map[at : at + size] = content
        self._places[place, 1] = size << 1 | form
        # By a system call, after which no other processor sees the place without its content.
        os.pwrite(
            self.fd, (begin + 1).to_bytes(8, sys.byteorder), _HEAD_BYTES + _PLACE_BYTES * place
        )


class KeptDataset:
    """A dataset whose samples are read once by the node that holds them, and then are in memory.

    It has the methods of the dataset that it wraps. What `dataset[i]` returns is pickled; what
    `read_into` reads is kept as it is.
    """

    def __init__(self, dataset: Any, memory: _Memory) -> None:
        self.dataset, self.memory = dataset, memory
        self.sizes = getattr(dataset, "sizes", None)
        if hasattr(dataset, "read_into"):
            self.read_into = self._read_into

    def __len__(self) -> int:
        return len(self.dataset)

    def __getitem__(self, at: int) -> Any:
        return self.__getitems__([at])[0]

    def __getitems__(self, samples: Sequence[int]) -> list[Any]:
        places = [self.memory.place(sample) for sample in samples]
        found = [self.memory.find(place, _PICKLED) for place in places]
        missing = [i for i, content in enumerate(found) if content is None]
        read = self._read([samples[i] for i in missing])
        # The memory is this job's own: no other process has written what is unpickled.
        answer = [None if each is None else pickle.loads(each) for each in found]  # noqa: S301
        for i, sample in zip(missing, read, strict=True):
            answer[i] = sample
            if places[i] >= 0:
                self.memory.store(
                    places[i], pickle.dumps(sample, pickle.HIGHEST_PROTOCOL), _PICKLED
                )
        return answer

    def _read(self, samples: list[int]) -> list[Any]:
        if samples and hasattr(self.dataset, "__getitems__"):
            return list(self.dataset.__getitems__(samples))
        return [self.dataset[sample] for sample in samples]

    def _read_into(self, samples: Sequence[int], out: Any) -> None:
        """Reads the samples back to back into `out`; all that are not here, at once."""
        view, sizes = memoryview(out).cast("B"), np.asarray(self.dataset.sizes)
        ends = np.cumsum([int(sizes[sample]) for sample in samples]).tolist()
        spots = [slice(a, b) for a, b in zip([0, *ends[:-1]], ends, strict=True)]
        places = [self.memory.place(sample) for sample in samples]
        missing = []
        for i, place in enumerate(places):
            content = self.memory.find(place, _RAW)
            if content is None:
                missing.append(i)
            else:
                view[spots[i]] = content
        if not missing:
            return
        read = bytearray(sum(spots[i].stop - spots[i].start for i in missing))
        self.dataset.read_into([samples[i] for i in missing], read)
        begin = 0
        for i in missing:
            end = begin + spots[i].stop - spots[i].start
            content = memoryview(read)[begin:end]
            view[spots[i]] = content
            if places[i] >= 0:
                self.memory.store(places[i], content, _RAW)
            begin = end

    def close(self) -> None:
        """Lets go of this process's memory."""
        self.memory.close()


def keep(dataset: Any, own: Ints, sizes: Ints, ranks: Ranks) -> KeptDataset:
    """The dataset with memory for the samples that this node holds. The ranks of a node share it:
    where there are several, all of them call this.

    own : (n,) the samples that this node holds, rising;  sizes : (n,) [bytes]
    """
    room = int(sizes.sum()) + _PICKLED_BYTES * len(own)
    if ranks.per_node == 1:
        return KeptDataset(dataset, _Memory(own, room))
    torch = sys.modules.get("torch")
    if torch is None or not torch.distributed.is_initialized():
        raise ConfigError(
            "quota: ranks share a node's memory by torch.distributed; call init_process_group first"
        )
    first = ranks.rank % ranks.per_node == 0
    memory = _Memory(own, room) if first else None
    paths: list[Any] = [None] * ranks.world_size
    torch.distributed.all_gather_object(paths, None if memory is None else memory.path)
    if memory is None:
        memory = _Memory(own, room, paths[ranks.rank - ranks.rank % ranks.per_node])
    # The first rank may end once the others have opened its memory.
    torch.distributed.barrier()
    return KeptDataset(dataset, memory)
