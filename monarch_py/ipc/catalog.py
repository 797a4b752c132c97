"""The catalog of files: `CatalogReader` for every process, `Catalog` for the daemon, which writes
it."""

import errno
import os
from collections import defaultdict
from typing import Any

import numpy as np

from monarch_py.arrays import ENTRY, Array, Bools, Ids, Uints, pointer
from monarch_py.ipc import word
from monarch_py.ipc.session import Segment, SessionDir
from monarch_py.native import Kind, State, ffi, lib

# The first segment of a catalog has room for this many entries, enough for a dataset of a few large
# files.
FIRST_CAPACITY = 4096
# The factor by which a full catalog grows. With a larger factor, the entries are moved less often.
# But more memory is unused, until `fit` releases it at the end of the scan.
GROWTH = 1.5
POOL_BYTES_PER_FILE = 64
# Alignment of paths in the pool [bytes].
TEXT_UNIT: int = lib.MONARCH_TEXT_UNIT


def distinct(ids: Ids) -> Ids:
    """Returns these entries without duplicates, in the order of their first occurrences."""
    return ids[np.sort(np.unique(ids, return_index=True)[1])]


class CatalogReader:
    """Reads the entries, words and paths of one catalog segment.

    entries : structured array (count,) over the shared memory; its fields are those of
        `struct monarch_entry` in csrc/shared/catalog.h
    """

    def __init__(self, segment: Segment) -> None:
        self.segment = segment
        self.c: Any = segment.as_struct("struct monarch_catalog")
        self._table = np.frombuffer(
            segment.memory, dtype=ENTRY, count=self.c.capacity, offset=self.c.entries_at
        )

    @classmethod
    def open(cls, session: SessionDir, generation: int) -> "CatalogReader":
        return cls(Segment.open(session.catalog(generation), writable=False))

    def __len__(self) -> int:
        return int(self.c.count)

    @property
    def entries(self) -> Array:
        return self._table[: len(self)]

    @property
    def words(self) -> Uints:
        return self.entries["word"]

    def states(self, ids: Ids) -> Uints:
        """Returns the states of these entries."""
        return word.state(self.words[ids])

    def path(self, entry: int) -> str:
        """Returns the entry's path, relative to its source, decoded by os.fsdecode."""
        row = self._table[entry]
        at = int(self.c.pool_at + row["path"])
        return os.fsdecode(self.segment.memory[at : at + int(row["path_len"])])

    def by_directory(self, ids: Ids) -> dict[tuple[int, str], list[bytes]]:
        """Groups the names of these entries by directory. Returns a dictionary from directories to
        lists of names. A directory is a pair: the number of its source, and its path relative to
        the source, decoded by os.fsdecode ("" for the root)."""
        rows, memory = self._table[ids], self.segment.memory
        begins = (rows["path"] + np.uint64(self.c.pool_at)).tolist()
        names: defaultdict[tuple[int, bytes], list[bytes]] = defaultdict(list)
        ends = zip(rows["source"].tolist(), begins, rows["path_len"].tolist(), strict=True)
        for source, at, n in ends:
            above, _, name = memory[at : at + n].rpartition(b"/")
            names[source, above].append(name)
        return {(source, os.fsdecode(above)): name for (source, above), name in names.items()}

    def beginnings(self, ids: Ids, length: int) -> Array:
        """Returns the first `length` bytes of each entry's path. `length` must be at least 1, and
        none of the paths may be shorter than `length` bytes."""
        pool = np.frombuffer(self.segment.memory, dtype=np.uint8, offset=int(self.c.pool_at))
        at = self._table["path"][ids].astype(np.intp)
        return np.asarray(pool[at[:, None] + np.arange(length)].view(f"S{length}")[:, 0])

    def find(self, source: int, path: str) -> int:
        """Returns the number of the entry with this path; -1 if the path is not in the catalog."""
        raw = os.fsencode(path)
        return int(lib.monarch_find(self.c, source, raw, len(raw)))

    def find_copy(self, tier: int, inode: int) -> int:
        return int(lib.monarch_find_copy(self.c, tier, inode))

    def find_inode(self, source: int, inode: int) -> int:
        return int(lib.monarch_find_inode(self.c, source, inode))

    def counts(self) -> list[dict[tuple[int, int], tuple[int, int]]]:
        """Returns a list of MONARCH_MAX_SOURCES dictionaries. Dictionary n is for source n, and is
        empty if source n does not exist. It maps (state, reason) to (files, bytes): how many files
        of the source have this state and reason, and the total size of these files."""
        files, sizes = (np.zeros((lib.MONARCH_MAX_SOURCES, 256), dtype=np.uint64) for _ in range(2))
        lib.monarch_catalog_count(self.c, pointer(files), pointer(sizes))
        return [
            {(int(i) & 15, int(i) >> 4): (int(row[i]), int(size[i])) for i in np.flatnonzero(row)}
            for row, size in zip(files, sizes, strict=True)
        ]


class Catalog(CatalogReader):
    """The catalog as the daemon uses it: adds entries, and changes their words. The word of an
    entry contains the entry's state, and the tier and number of the entry's copy. A full catalog is
    copied into a larger segment, which is then published as the next generation.

    generation : a `uint64_t *` in shared memory, from which clients read the number of the newest
        generation. The number is set only after clients can open that generation's segment
    writer : the C writer through which all threads of this process write (csrc/native.h)
    """

    def __init__(self, session: SessionDir, generation: Any) -> None:
        """Publishes the first generation, which is empty. Raises MemoryError if there is no memory
        for the writer."""
        self.session, self._generation = session, generation
        self.writer: Any = ffi.gc(lib.monarch_writer_new(), lib.monarch_writer_free)
        if self.writer == ffi.NULL:
            raise MemoryError("no memory for the writer of a catalog")
        self._open_generation(1, FIRST_CAPACITY, FIRST_CAPACITY * POOL_BYTES_PER_FILE)

    def _open_generation(self, generation: int, capacity: int, pool_bytes: int) -> None:
        size = int(lib.monarch_catalog_bytes(capacity, pool_bytes))
        segment = Segment.create(self.session.catalog(generation), size)
        lib.monarch_catalog_init(ffi.from_buffer(segment.memory), generation, capacity, pool_bytes)
        new = segment.as_struct("struct monarch_catalog")
        segment.publish()
        if lib.monarch_catalog_move(self.writer, new, self._generation) != 0:
            raise AssertionError("the new generation is too small for the previous one's entries")
        super().__init__(segment)
        if generation > 1:
            self.session.catalog(generation - 1).unlink(missing_ok=True)

    def reader(self) -> CatalogReader:
        """Returns a reader of the current generation, also for use in other threads. After the next
        generation is published, the reader still reads this generation."""
        return CatalogReader(self.segment)

    def _resize(self, capacity: int, pool_bytes: int) -> None:
        if capacity > lib.MONARCH_MAX_ENTRIES or pool_bytes > lib.MONARCH_MAX_POOL:
            raise OSError(
                errno.E2BIG, f"a catalog holds {lib.MONARCH_MAX_ENTRIES:,} entries at most"
            )
        self._open_generation(int(self.c.generation) + 1, capacity, pool_bytes)

    def add(self, entries: Array, pool: Any) -> tuple[Ids, int]:
        """Adds entries, an array of dtype ENTRY. Their paths are in the memory to which `pool`
        points.

        Returns an array of the entries' numbers, and how many entries were new. Raises OSError if
        shared memory is full. Files without an entry are then read from the source.
        """
        ids = np.zeros(len(entries), dtype=np.uint64)
        added = ffi.new("uint64_t *")
        done = 0
        while True:
            given, numbers = pointer(entries[done:]), pointer(ids[done:])
            left = len(entries) - done
            done += int(lib.monarch_catalog_add(self.writer, given, left, pool, numbers, added))
            if done == len(entries):
                return ids, int(added[0])
            rest = entries[done:]
            text = int(rest["path_len"].sum()) + len(rest) * 2 * TEXT_UNIT
            text += 4096 * int((rest["kind"] == Kind.LINK).sum())
            self._resize(
                max(int(self.c.capacity * GROWTH), len(self) + len(rest)),
                max(int(self.c.pool_bytes * GROWTH), int(self.c.pool_used) + text),
            )

    def fit(self) -> None:
        """Shrinks the catalog to the size of its content and a small reserve. Then asks the kernel
        to use huge pages for the catalog."""
        capacity = len(self) + len(self) // 64 + 256
        pool_bytes = int(self.c.pool_used) * 65 // 64 + 16384
        if self.c.bytes > lib.monarch_catalog_bytes(capacity, pool_bytes) * 1.03:
            self._resize(capacity, pool_bytes)
        lib.monarch_collapse(os.fsencode(self.segment.path))

    def set_words(self, ids: Ids, words: Uints | np.uint64) -> None:
        given = pointer(np.broadcast_to(words, len(ids)), np.uint64)
        lib.monarch_set_words(self.writer, len(ids), pointer(ids, np.uint64), given)

    def set_state(self, ids: Ids, state: State, reason: int = 0) -> None:
        if len(ids):
            self.set_words(ids, word.make(state, reason))

    def want(self, ids: Ids) -> None:
        """Sets the state of these entries to WANTED. If an old copy of a file is being removed, the
        entry's word keeps the tier and number of that copy. By these, open descriptors of the old
        copy are recognized."""
        number_and_tier = self.words[ids] & ~np.uint64(0xFF)
        self.set_words(ids, number_and_tier | word.make(State.WANTED))

    def publish(self, ids: Ids, words: Uints, inodes: Ids, sums: Uints, made: Bools) -> None:
        """Publishes copies. From now on, clients open these copies instead of the source's files.

        ids, words, inodes, sums, made : for each copy: the file's entry, its new word, the copy's
            inode, the copy's checksum, and whether this daemon made the copy
        """
        copies = [pointer(a, np.uint64) for a in (ids, words, inodes, sums)]
        copies.append(pointer(made, np.uint8))
        if lib.monarch_publish(self.writer, len(ids), *copies) != 0:
            self._resize(max(int(self.c.capacity), len(self) + 256), int(self.c.pool_bytes))
            if lib.monarch_publish(self.writer, len(ids), *copies) != 0:
                self._resize(int(self.c.capacity * 2), int(self.c.pool_bytes))
                lib.monarch_publish(self.writer, len(ids), *copies)

    def update(self, entry: int, fresh: Array) -> None:
        """Replaces the attributes of a file by `fresh`, an array (1,) of dtype ENTRY. The file must
        have no copy. Raises OSError if shared memory is full."""
        if lib.monarch_catalog_update(self.writer, entry, pointer(fresh)) != 0:
            # The index by inode is full: it also contains the old inodes of replaced files.
            # `_resize` builds a new index with the current inodes only.
            self._resize(int(self.c.capacity), int(self.c.pool_bytes))
            lib.monarch_catalog_update(self.writer, entry, pointer(fresh))
