"""A copy engine with a catalog and tiers, but without the daemon's loop: the test itself collects
the engine's results."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from support.session import wait_until

from monarch_py.arrays import ENTRY, PLACED, RESULT, ROOM, pointer
from monarch_py.daemon.copies.copies import one
from monarch_py.ipc import word
from monarch_py.ipc.catalog import Catalog
from monarch_py.ipc.session import SessionDir
from monarch_py.native import JobKind, JobStatus, State, ffi, lib
from monarch_py.policies.placement import TierRoom

BLOCK, SIZE, FILES = 1 << 20, 5000, 4
Results = npt.NDArray[Any]


class Engine:
    """A running copy engine over a source whose files have random content.

    sizes : the sizes of the source's files [bytes]; file number n is entry n of the catalog
    tiers : how many tiers there are
    peer_threads : how many threads fetch from peers
    """

    def __init__(
        self,
        place: Path,
        sizes: Sequence[int] = (SIZE,) * FILES,
        tiers: int = 1,
        peer_threads: int = 0,
    ) -> None:
        self.source = source = place / "source"
        shm = place / "shm"
        self.tiers = [place / f"tier{number}" for number in range(tiers)]
        for path in (source, shm, *self.tiers):
            path.mkdir()
        self.control: Any = ffi.new("struct monarch_control *")
        self.clients: Any = ffi.new("struct monarch_clients *")
        self.fills: Any = ffi.new("struct monarch_fills *")
        self.control.sources, self.control.source[0].dev = 1, source.stat().st_dev
        self.catalog = Catalog(SessionDir(shm), ffi.addressof(self.control, "generation"))
        self._descriptors = [os.open(path, os.O_RDONLY) for path in (source, *self.tiers)]
        self._copy, self._tag = 0, 1
        entries = np.zeros(1, dtype=ENTRY)
        for number, size in enumerate(sizes):
            name = f"f{number}".encode()
            (source / name.decode()).write_bytes(os.urandom(size))
            target = ffi.new("char[]", 4096)
            where = pointer(entries)
            root = self._descriptors[0]
            assert lib.monarch_stat_entry(root, 0, name, where, target, 4096) == 0
            entries["path_len"] = len(name)
            self.catalog.add(entries, ffi.new("char[]", name))
        self.c: Any = lib.monarch_engine_start(1, 1, peer_threads, BLOCK, self.clients, self.fills)
        lib.monarch_engine_publish(self.c, self.catalog.writer, self.control)
        lib.monarch_engine_source(self.c, 0, self._descriptors[0])
        for number, descriptor in enumerate(self._descriptors[1:]):
            lib.monarch_engine_tier(self.c, number, descriptor)

    def order(self, entry: int, set_to: int | None = None, asked: int = -1) -> int:
        """Orders a fill of the file. Returns the number of the copy that the fill makes.

        set_to : the state word that the entry gets; by default, FILLING with this copy's number
        asked : the number of the peer that the fill asks; -1 for none
        """
        self._copy += 1
        filling = word.make(State.FILLING, 0, 0, self._copy)
        self.catalog.set_words(one(entry), np.uint64(filling if set_to is None else set_to))
        ids, tiers = one(entry), np.zeros(1, dtype=np.uint32)
        copies = np.array([self._copy], dtype=np.uint64)
        peers = np.full(lib.MONARCH_ASKED, -1, dtype=np.int32)
        peers[0] = asked
        lib.monarch_engine_submit(
            self.c,
            self.catalog.c,
            JobKind.FILL,
            0,
            1,
            pointer(ids),
            pointer(tiers),
            pointer(copies),
            ffi.NULL,
            pointer(peers),
        )
        return self._copy

    def drop(self, entry: int, copy: int) -> None:
        """Orders the removal of a copy."""
        numbers = [np.array([number], dtype=np.uint64) for number in (entry, copy, SIZE)]
        ids, copies, sizes = (pointer(each) for each in numbers)
        tiers = np.zeros(1, dtype=np.uint32)
        lib.monarch_engine_drop(self.c, 1, ids, pointer(tiers), copies, sizes)

    def result(self) -> Results:
        """Returns the next result as an array (1,) of RESULT. Its status must be DONE. The caller
        settles the result."""
        out = np.zeros(1, dtype=RESULT)
        where = pointer(out)
        wait_until(lambda: lib.monarch_engine_results(self.c, where, 1), what="a result")
        assert out["status"] == JobStatus.DONE
        return out

    def settle(self) -> None:
        lib.monarch_engine_settle(self.c)

    def word(self, entry: int) -> int:
        return int(self.catalog.words[entry])

    def slots(self) -> int:
        """Returns how many fills have a slot. A slot is a place in shared memory where readers see
        which units the fill has finished."""
        return int(np.count_nonzero(np.array(list(self.fills.word))))

    def ask(self, entry: int, place: int | None = None) -> None:
        """Marks the file as wanted and demands its first unit. A reader that has opened the file
        does the same, and so does a thread that answers a peer's request.

        place : index in the table of demands; by default, the entry's number"""
        lib.monarch_want_file(self.clients, entry)
        self.demand(entry, entry if place is None else place)

    def demand(self, entry: int, place: int, unit: int = 0) -> None:
        """Demands a unit of the file without marking the file as wanted."""
        self._tag = (self._tag + 2) % 4096
        self.clients.demand[place] = (entry + 1) << 32 | unit << 12 | self._tag
        lib.monarch_ring_engine(self.clients)

    def take_handovers(self) -> socket.socket:
        """Makes the engine accept handovers. Returns the socket to which a test sends the
        descriptors."""
        here, there = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._descriptors.append(there.detach())
        assert lib.monarch_engine_handovers(self.c, self._descriptors[-1:], 1) == 0
        return here

    def claim(self, number: int, flags: int = 0) -> None:
        """Claims a file, as a program that reads the file itself does. With the flag
        MONARCH_CLAIM_HANDED, the program has also handed over its descriptor of the file."""
        ticks = time.monotonic_ns() >> lib.MONARCH_CLAIM_TICK & (lib.MONARCH_CLAIM_RECALLED - 1)
        self.clients.claim[number % lib.MONARCH_CLAIMS] = (number + 1) << 32 | flags | ticks

    def is_claimed(self, number: int) -> bool:
        return bool(self.clients.claim[number % lib.MONARCH_CLAIMS] >> 32 == number + 1)

    def grant(
        self,
        *rooms: TierRoom,
        first_copy: int = 1000,
        is_part: bool = False,
        meets: int = 0,
        staged_bytes: int = 0,
    ) -> None:
        """Grants the engine these rooms, one for each tier.

        is_part : whether the tiers have more room than is granted
        meets : bit mask of the sources whose files the engine may add to the catalog
        staged_bytes : if positive, the last of `rooms` is in the staging area, and is for files of
            at most this size
        """
        granted = np.zeros(len(rooms), dtype=ROOM)
        for given, room in zip(granted, rooms, strict=True):
            given["bytes"], given["inodes"] = room.free_bytes, room.free_inodes
            given["block_bytes"], given["entry_bytes"] = room.block_bytes, room.entry_bytes
            given["is_part"] = is_part
        if staged_bytes:
            granted[-1]["is_staging"], granted[-1]["largest"] = 1, staged_bytes
        where = pointer(granted)
        lib.monarch_engine_grant(self.c, len(rooms), where, first_copy, meets)

    def end_grant(self) -> npt.NDArray[Any]:
        """Ends the grant. Returns the fills that the engine has ordered since the grant began, as
        an array (n,) of PLACED."""
        placed = np.zeros(lib.MONARCH_PLACED, dtype=PLACED)
        n = lib.monarch_engine_end_grant(self.c, pointer(placed))
        return placed[:n]

    def is_left(self) -> bool:
        """Returns whether the engine has left work to the daemon's loop since the last grant."""
        return bool(lib.monarch_engine_rest(self.c, 0))

    def change(self, entry: int) -> None:
        """Marks the file as changed, as a client that writes to it does."""
        ino = int(self.catalog.entries["ino"][entry])
        lib.monarch_mark_changed(self.clients, self.control.source[0].dev, ino)

    def close(self) -> None:
        lib.monarch_engine_stop(self.c, 60000)
        for descriptor in self._descriptors:
            os.close(descriptor)
