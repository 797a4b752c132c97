"""Opens the sources' packs: tar files from which the engine reads many small files at a time."""

import errno
import logging
import os
from pathlib import Path
from typing import Any

import numpy as np

from monarch_py.arrays import MEMBER, Ids, pointer
from monarch_py.config.schema import SourceConfig
from monarch_py.errors import ConfigError
from monarch_py.ipc.catalog import CatalogReader
from monarch_py.native import lib
from monarch_py.packs.index import PackIndex

log = logging.getLogger("monarch.packs")


def _open(pack: Path) -> int:
    """Opens a pack without changing its access time (O_NOATIME), unless the kernel refuses this."""
    flags = os.O_RDONLY | os.O_CLOEXEC
    try:
        return os.open(pack, flags | os.O_NOATIME)
    except PermissionError:
        return os.open(pack, flags)


class Packs:
    """The packs that the configuration names. A pack is a tar file with many small files of a
    source, which the engine's threads read from the pack. If a pack cannot be used, the reason is
    logged, and the files are read one by one.

    engine : struct monarch_engine *
    """

    def __init__(self, engine: Any) -> None:
        self._engine = engine
        self._logged: dict[int, int] = {}  # the last error of each source's pack
        self._used: dict[int, Path] = {}

    def add(self, number: int, source: SourceConfig) -> None:
        """Opens the pack of a source, if it has one. Must be called before the first order for a
        file of the source."""
        if source.pack is not None and self._give(number, source.pack):
            self._used[number] = source.pack

    def _give(self, number: int, pack: Path) -> bool:
        """Passes a pack to the engine. Returns whether the engine can use the pack."""
        try:
            index = PackIndex.load(pack)
            members = np.zeros(len(index), dtype=MEMBER)
            members["hash"], members["offset"] = index.hashes, index.offsets
            members["size"], members["mtime_ns"] = index.sizes, index.mtimes_ns
            fd = _open(pack)
            try:
                told = index.pack_bytes, index.pack_mtime_ns, len(members), pointer(members)
                failed = lib.monarch_engine_pack(self._engine, number, fd, *told)
            finally:
                os.close(fd)
            if failed == -errno.ESTALE:
                raise ConfigError(f"{pack}: has changed since its index was made")
            if failed:
                raise OSError(-failed, os.strerror(-failed), str(pack))
        except (ConfigError, OSError) as error:
            log.warning("the pack is not used, and files are read one by one: %s", error)
            return False
        return True

    def arranged(self, ids: Ids, catalog: CatalogReader) -> Ids:
        """Returns the files as an array (n,), in the order in which they can be read fastest. Files
        in packs are sorted by source and by position in the pack. All other files keep their places
        in `ids`."""
        if not self._used or len(ids) < 2:
            return ids
        places = np.empty(len(ids), dtype=np.int64)
        entries, out = pointer(ids, np.uint64), pointer(places)
        lib.monarch_engine_pack_order(self._engine, catalog.c, len(ids), entries, out)
        packed = np.flatnonzero(places >= 0)
        sources = catalog.entries["source"][ids[packed]]
        order = np.lexsort((places[packed], sources))
        arranged: Ids = ids.copy()
        arranged[packed] = ids[packed[order]]
        return arranged

    def look(self) -> None:
        """Writes to the log which packs have changed or cannot be read. Does not repeat a pack's
        last error."""
        for number, pack in list(self._used.items()):
            error = int(lib.monarch_engine_pack_error(self._engine, number))
            if error and error != self._logged.get(number):
                self._logged[number] = error
                is_changed = error == errno.ESTALE
                why = "it has changed" if is_changed else os.strerror(error)
                log.warning("%s: files are read one by one: %s", pack, why)
            if error == errno.ESTALE:
                del self._used[number]
