"""A command's view of a running daemon: the daemon's shared segments and its newest catalog."""

import os
from contextlib import suppress
from typing import Any

import numpy as np

from monarch_py.arrays import Uints
from monarch_py.errors import SessionError
from monarch_py.ipc.catalog import CatalogReader
from monarch_py.ipc.connection import DaemonConnection
from monarch_py.ipc.session import Segment
from monarch_py.native import ffi, lib


class DaemonView:
    """The shared segments of a daemon, and its catalog. `refresh` opens the newest catalog.

    first_copy : the number of the first copy that this daemon makes. Copies are numbered in the
        order in which they are made, so copies of earlier daemons have smaller numbers
    """

    def __init__(self, connection: DaemonConnection) -> None:
        self._connection = connection
        self.pid = self.first_copy = 0
        self.scanned = self.switched_off = False
        self._generation = 0
        self.refresh()
        session = connection.session
        paths = (session.control, session.fills)
        self._segments = [Segment.open(path, writable=False) for path in paths]
        self._control: Any = self._segments[0].as_struct("struct monarch_control")
        self._fills: Any = self._segments[1].as_struct("struct monarch_fills")

    def refresh(self) -> None:
        """Asks the daemon for its state, and opens its newest catalog. Raises SessionError if the
        daemon is gone or another daemon has taken its place."""
        known = -1
        while known != self._generation:
            told = self._connection.ask("where")
            if self.pid not in (0, told["pid"]):
                raise SessionError("the daemon was replaced by another one; run the command again")
            self.pid, known = told["pid"], told["generation"]
            # Daemons of older versions do not send `first_copy`.
            self.first_copy = told.get("first_copy", 0)
            self.scanned, self.switched_off = told["scanned"], told["switched_off"]
            if known != self._generation:
                # The daemon may have published a newer catalog after its answer. Then the file of
                # the catalog with generation `known` no longer exists, and the loop asks again.
                with suppress(FileNotFoundError):
                    self.catalog = CatalogReader.open(self._connection.session, known)
                    self._generation = known

    def roots(self) -> list[list[str]]:
        """Returns, for each source, a list of paths that lead to the source's directory, as
        PathSelection expects them. The first is the real path. If the configuration contains
        another path, this path is the second."""
        found = []
        for number in range(self._control.sources):
            slot = self._control.source[number]
            texts = [ffi.buffer(slot.path, slot.path_len)[:]]
            if slot.alias_len:
                texts.append(ffi.buffer(slot.alias, slot.alias_len)[:])
            found.append([os.fsdecode(text) for text in texts])
        return found

    def partial_bytes(self, words: Uints, sizes: Uints) -> int:
        """Returns how many bytes of the given files the unfinished fills have copied so far.

        words : (n,) the field `word` of each file's catalog entry
        sizes : (n,) the sizes of the files [bytes]
        """
        if not len(words):
            return 0
        done = 0
        of = dict(zip(words.tolist(), sizes.tolist(), strict=True))
        for slot in range(lib.MONARCH_FILL_SLOTS):
            size = of.get(int(self._fills.word[slot]), 0)
            if size:
                fill = self._fills.fill[slot]
                units = np.frombuffer(ffi.buffer(fill.done), dtype=np.uint8)
                done += min(size, int(np.unpackbits(units).sum()) * int(fill.unit_bytes))
        return done
