"""A catalog in the memory of the test's process, and the segments that belong to it. A scan of real
directories fills the catalog, so that tests can look up paths in it without a daemon."""

from __future__ import annotations

import os
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from monarch_py.native import ffi, lib

OUTSIDE, UNKNOWN = -1, -2
CAPACITY, POOL = 4096, 1 << 20


@dataclass(frozen=True)
class Place:
    """The result of monarch_resolve for a path."""

    entry: int
    source: int
    path: bytes


class Known:
    """Scans the sources `roots`, each of which may have an alias, into one catalog.

    c, control, clients : cffi pointers to the structs of csrc/shared/catalog.h
    """

    def __init__(self, *roots: Path, aliases: tuple[Path | None, ...] = ()) -> None:
        self._memory = ffi.new("char[]", int(lib.monarch_catalog_bytes(CAPACITY, POOL)))
        lib.monarch_catalog_init(self._memory, 1, CAPACITY, POOL)
        self.c: Any = ffi.cast("struct monarch_catalog *", self._memory)
        self.control: Any = ffi.new("struct monarch_control *")
        self._writer = ffi.gc(lib.monarch_writer_new(), lib.monarch_writer_free)
        generation = ffi.addressof(self.control, "generation")
        assert lib.monarch_catalog_move(self._writer, self.c, generation) == 0
        self.clients: Any = ffi.new("struct monarch_clients *")
        self.control.sources = len(roots)
        for i, root in enumerate(roots):
            self._set_source(i, root, aliases[i] if i < len(aliases) else None)
            self._scan(i, root)

    def _set_source(self, number: int, root: Path, alias: Path | None) -> None:
        slot, found = self.control.source[number], root.stat()
        slot.dev, slot.ino = found.st_dev, found.st_ino
        slot.path, slot.path_len = os.fsencode(root), len(os.fsencode(root))
        if alias is not None:
            slot.alias, slot.alias_len = os.fsencode(alias), len(os.fsencode(alias))

    def _scan(self, number: int, root: Path) -> None:
        fd = os.open(root, os.O_RDONLY | os.O_DIRECTORY)
        bell, finished = ffi.new("uint32_t *"), ffi.new("int *")
        scan = lib.monarch_scan_start(fd, number, 2, 0, bell)
        lib.monarch_scan_allow(scan, -1, -1)
        limit = time.monotonic() + 30
        while not finished[0]:
            assert time.monotonic() < limit, "the scan does not end"
            batch = lib.monarch_scan_take(scan, finished)
            if batch:
                self._add(batch)
                lib.monarch_batch_free(batch)
        error = ffi.new("int *")
        assert lib.monarch_scan_errors(scan, error) == 0, os.strerror(error[0])
        lib.monarch_scan_stop(scan, 60000)
        os.close(fd)

    def _add(self, batch: Any) -> None:
        ids, added = ffi.new("uint64_t[]", int(batch.count)), ffi.new("uint64_t *")
        taken = lib.monarch_catalog_add(
            self._writer, batch.entries, batch.count, batch.pool, ids, added
        )
        assert taken == batch.count >= added[0]  # a scan reports directories twice

    def find(self, path: bytes, source: int = 0) -> int:
        return int(lib.monarch_find(self.c, source, path, len(path)))

    def kind(self, entry: int) -> int:
        at = ffi.cast("char *", self.c) + int(self.c.entries_at)
        return int(ffi.cast("struct monarch_entry *", at)[entry].kind)

    def resolve(self, path: bytes, *, base: bytes = b"", follow: bool = True) -> Place:
        """Resolves the path. A relative path starts at `base`, the canonical working directory."""
        text = ffi.new("char[]", 4096)  # MONARCH_PATH_MAX
        out = ffi.new("struct monarch_place *", {"path": text})
        lib.monarch_resolve(self.control, self.c, self.clients, base, path, int(follow), out)
        text = ffi.string(out.path) if out.entry != OUTSIDE else b""
        return Place(int(out.entry), int(out.source), text)

    def is_outside(self, path: bytes) -> bool:
        return bool(lib.monarch_is_outside(self.control, path))

    def mark_changed(self, path: Path) -> None:
        found = path.lstat()
        lib.monarch_mark_changed(self.clients, found.st_dev, found.st_ino)

    def prefix(self, path: bytes) -> tuple[int, bytes | None]:
        rel = ffi.new("const char **")
        memory = ffi.new("char[]", path)
        source = int(lib.monarch_prefix(self.control, memory, len(path), rel))
        return source, ffi.string(rel[0]) if source >= 0 else None
