"""Periodically compares the names and attributes in the catalog with the source.

After the scan, the catalog contains a listing of each directory. From it, clients answer stat() and
readdir() without the source. While they do so, the directories are compared with the source at
least every `revalidate` seconds. If a directory has changed, the source answers all further
requests about it until the session ends. The same holds for a file that is gone or was replaced.
"""

import logging
import threading
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import numpy as np

from monarch_py.config.schema import Config
from monarch_py.daemon.scan.scanner import Scanner
from monarch_py.daemon.segments import Shared
from monarch_py.native import Kind, ffi, lib

log = logging.getLogger("monarch.metadata")

# File systems may round timestamps to multiples of this time [s]. If a directory was listed less
# than this time after a change, it is called young. It may have changed again after the listing,
# and still have the same timestamp.
YOUNG_S = 2.0
# How many directories and files one call of the C code compares. After each call, the thread
# applies the configured rate limit, and checks whether it should stop.
SLICE = 256


class Metadata:
    """Compares directories with the source. `step` runs in the daemon's loop. It never accesses the
    source, which may hang, but starts a thread for each such task."""

    def __init__(self, config: Config, shared: Shared, scanner: Scanner) -> None:
        self.config, self.shared, self.scanner = config, shared, scanner
        self._thread: threading.Thread | None = None
        self._stopping = threading.Event()
        self._is_ready = False
        self._listed = 0  # how many of the scanner's sources `_list` has handled
        self._young: list[int] = []  # young directories (YOUNG_S), to be compared again
        self._young_at = 0.0
        # Directories that were in `_young` until a comparison found them unchanged. `step` allows
        # clients to use the listings of these directories.
        self._held: deque[int] = deque()
        self._hits = 0
        self._caught_up = 0.0

    def step(self) -> None:
        """Runs one iteration: processes the thread's result, and starts a comparison if one is
        due."""
        if self.config.metadata != "cached" or not self.config.revalidate_s:
            return
        if not self._is_ready:
            if not self.scanner.scanned:
                return
            self._begin()
        if self._held:
            held = [self._held.popleft() for _ in range(len(self._held))]
            entries = self.shared.catalog.entries
            entries["copy_ino"][held] = entries["sum"][held]
        if self._thread is not None:
            if self._thread.is_alive():
                return
            self._thread = None
        if self._listed < len(self.scanner.sources) and self.scanner.is_whole:
            self._list()
        if self._is_due():
            self._start(self._look)

    def close(self) -> None:
        """Ends the thread, but waits for at most a second, because the thread may hang in a call to
        the source."""
        self._stopping.set()
        if self._thread is not None:
            self._thread.join(timeout=1)

    # --- listings -----------------------------------------------------------------------------

    def _list(self) -> None:
        first, self._listed = self._listed, len(self.scanner.sources)
        catalog = self.shared.catalog
        # The scan does not record when it reads a listing. So each listing is assumed to date from
        # the scan's start. A directory is young if it was changed after that start, or less than
        # YOUNG_S before it.
        began = self.scanner.began
        young_ns = int((time.time() - (time.monotonic() - began) - YOUNG_S) * 1e9)
        lib.monarch_catalog_list(catalog.c, young_ns, first)
        entries = catalog.entries
        young = (entries["kind"] == Kind.DIR) & (entries["sum"] != 0) & (entries["copy_ino"] == 0)
        young &= entries["source"] >= first
        self._young += np.flatnonzero(young).tolist()
        self._young_at = time.monotonic() + YOUNG_S
        for source in self.scanner.sources[first:]:
            self.shared.control.source[source.number].up_ino = source.up_ino

    def _begin(self) -> None:
        """Begins the comparisons. The scan has examined everything after the scanner's start, so
        this start counts as the time of the last comparison."""
        self._is_ready = True
        self._start(self._read_masks)
        self._caught_up = self.scanner.began
        self.shared.control.compared_ns = int(self.scanner.began * 1e9)

    # --- the thread ---------------------------------------------------------------------------

    def _start(self, work: Callable[[], None]) -> None:
        """Starts a thread for `work`. If no thread can be started, the work is skipped. A later
        iteration starts a comparison, which includes the skipped work."""
        thread = threading.Thread(target=work, name="metadata", daemon=True)
        with suppress(RuntimeError):
            thread.start()
            self._thread = thread

    def _read_masks(self) -> None:
        """Reads the properties of the sources' file systems that the library needs to answer statx.
        The first comparison later reads the properties for statfs, because reading them costs an
        operation at the source."""
        for source in list(self.scanner.sources):
            slot = self.shared.control.source[source.number]
            lib.monarch_read_masks(source.fd, ffi.addressof(slot, "filesystem"))

    def _is_due(self) -> bool:
        if self._young and time.monotonic() >= self._young_at:
            return True
        if self.shared.clients.stale:
            return True
        if time.monotonic() - self._caught_up < self.config.revalidate_s / 2:
            return False
        return self._uses() != self._hits

    def _uses(self) -> int:
        """Returns how many requests were answered without the source so far: requests for names or
        attributes, and opens of copies. These answers are correct only because the directories are
        compared with the source. Opens of files without a copy are not counted, because the source
        itself answers them."""
        totals = self.shared.totals()
        return totals["metadata_hits"] + totals["hits"]

    def _look(self) -> None:
        catalog = self.shared.catalog.reader()
        self._look_at_young(catalog)
        self.shared.clients.stale = 0
        self._hits = self._uses()
        began = time.monotonic()
        for source in self.scanner.sources:
            at = ffi.new("uint64_t *")
            slot = ffi.addressof(self.shared.control.source[source.number])
            whose = self.shared.clients, slot, source.number, source.fd
            while at[0] < len(catalog) and not self._stopping.is_set():
                is_listed = source.number < self._listed
                lib.monarch_compare_directories(catalog.c, *whose, is_listed, at, SLICE)
                if self.config.scan_ops_per_s:
                    self._stopping.wait(SLICE / self.config.scan_ops_per_s)
        if self._stopping.is_set():
            return
        for source in list(self.scanner.sources):
            slot = self.shared.control.source[source.number]
            lib.monarch_read_filesystem(source.fd, ffi.addressof(slot, "filesystem"))
        self._caught_up = began
        self.shared.control.compared_ns = int(began * 1e9)

    def _look_at_young(self, catalog: Any) -> None:
        if time.monotonic() < self._young_at:
            return
        young, self._young = self._young, []
        for entry in young:
            if self._stopping.is_set():
                return
            source = self.scanner.sources[int(catalog.entries["source"][entry])]
            if lib.monarch_listing_holds(catalog.c, source.fd, entry):
                self._held.append(entry)
