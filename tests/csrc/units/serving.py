"""A session in this process's memory, whose catalog a scan of a real directory has filled."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from csrc.known import Known
from csrc.units.place import Place

from monarch_py.native import SessionState, State, ffi, lib

SECOND = 10**9


class Served:
    """A session that remains the library's current one until `end` is called. Its catalog contains
    all files that are below `root` at the beginning. They have no copies.

    s : the session, as the library's functions take it
    """

    def __init__(self, units: Any, place: Place, root: Path, tier: Path) -> None:
        self.units, self.root, self.tier = units, root, tier
        self.known = Known(root)
        self.control, self.clients = self.known.control, self.known.clients
        control = self.control
        control.magic, control.version = lib.MONARCH_MAGIC, lib.MONARCH_VERSION
        control.state, control.owner, control.pid = SessionState.SERVING, os.geteuid(), os.getpid()
        control.metadata_cached = control.scanned = control.fill_on_open = 1
        control.revalidate_ns, control.tiers = 1000 * SECOND, 1
        slot, found, path = control.tier[0], tier.stat(), os.fsencode(tier) + b"/"
        slot.dev, slot.ino, slot.usable = found.st_dev, found.st_ino, 1
        slot.path, slot.path_len = path, len(path)
        lib.monarch_catalog_list(self.known.c, 2**62, 0)  # no directory is too young
        self.segment = place.put("control", control).stat()
        self.s = units.served_session(
            self._address(control), self._address(self.clients), self._address(self.known.c),
            self.segment.st_dev, self.segment.st_ino,
        )  # fmt: skip
        self._copies = 0

    def end(self) -> None:
        assert not self.units.served_is_off(self.s), "the session was switched off meanwhile"
        self.units.served_end(self.s)

    @staticmethod
    def _address(pointer: Any) -> int:
        return int(ffi.cast("uintptr_t", pointer))

    def id(self, path: str) -> int:
        return self.known.find(path.encode())

    def entry(self, path: str) -> Any:
        at = ffi.cast("char *", self.known.c) + int(self.known.c.entries_at)
        found = self.id(path)
        assert found >= 0
        return ffi.cast("struct monarch_entry *", at)[found]

    def copy(self, path: str, content: bytes, state: State = State.PRESENT) -> Path:
        """Makes a copy of the file. The content may differ from that of the source's file."""
        self._copies += 1
        made = self.tier / f"{self._copies:013x}"
        made.write_bytes(content)
        made.chmod(0o400)
        entry = self.entry(path)
        entry.word = state | self._copies << 12
        entry.copy_ino = made.stat().st_ino
        return made

    def publish(self, path: str, content: bytes) -> Path:
        """Makes a copy of the file and publishes it in the catalog, so that the library recognizes
        the copy by its descriptor."""
        made, entry, number = self.copy(path, content), self.entry(path), self.id(path)
        done = lib.monarch_publish(
            self.known._writer, 1, [number], [int(entry.word)], [made.stat().st_ino], [0], ffi.NULL
        )
        assert done == 0
        return made
