"""Looks up single files at the source: files that programs open before the scan has found them,
files that were perhaps renamed after the scan had examined them, and files that have changed."""

import logging
import queue
import threading
import time
from collections.abc import Callable, Iterable
from typing import Generic, TypeVar

log = logging.getLogger("monarch.unmet")

Seen = TypeVar("Seen")
# The number of a source, and a path relative to it.
Path = tuple[int, str]

# At most this many files are looked up at the source at the same time.
THREADS = 4
# At most this many files wait to be looked up. Further files are ignored: the scan will find them,
# or programs will open them again.
WAITING = 1024
# If a running scan has not found a file within this time [s], the file is looked up at the source.
SCAN_S = 0.1
# If more files than this wait to be looked up at the source, `take_met` searches the catalog only
# for those that have waited long enough. Otherwise it searches for all of them.
FEW = 32


class UnlistedFiles(Generic[Seen]):
    """Looks up single files at the source. Separate threads do this, because the source may be
    slow, and the daemon's loop must never wait for it.

    look : a function that looks up one file at the source. Returns None if there is no file that
        belongs in the catalog
    ring : a function that wakes the daemon's loop. The threads call it when an answer is available,
        but not after `close`
    """

    def __init__(self, look: Callable[[int, str], Seen | None], ring: Callable[[], None]) -> None:
        self._look, self._ring = look, ring
        self._since: dict[Path, float] = {}  # when each file began to wait [s], oldest first
        self._asked: set[Path] = set()
        self._orders: queue.SimpleQueue[Path] = queue.SimpleQueue()
        self._answers: queue.SimpleQueue[tuple[Path, Seen | None]] = queue.SimpleQueue()
        self._threads = 0
        self._lock = threading.Lock()
        self._is_closed = False

    def __len__(self) -> int:
        return len(self._since) + len(self._asked)

    def add(self, paths: Iterable[Path]) -> list[Path]:
        """Adds files that are to be looked up. Returns the files added."""
        now, added = time.monotonic(), []
        for path in paths:
            is_new = path not in self._since and path not in self._asked
            if is_new and len(self._since) < WAITING:
                self._since[path] = now
                added.append(path)
        return added

    def take_met(self, find: Callable[[int, str], int], *, is_scanned: bool) -> list[int]:
        """Removes the files that the scan has added to the catalog meanwhile: they need not be
        looked up any more. Returns their entries.

        find : a function that returns a file's entry, or -1 if the file is not in the catalog
        """
        looked = self._since if len(self._since) <= FEW else self._due(is_scanned=is_scanned)
        met = {path: entry for path in looked if (entry := find(*path)) >= 0}
        for path in met:
            del self._since[path]
        return list(met.values())

    def ask(self, *, is_scanned: bool, most: int = THREADS) -> None:
        """Passes the files that have waited long enough to the threads that look them up. The
        threads have at most `most` files at a time."""
        for path in self._due(is_scanned=is_scanned)[: max(0, most - len(self._asked))]:
            del self._since[path]
            self._asked.add(path)
            self._orders.put(path)
        if self._asked:
            self._start_threads()

    def _due(self, *, is_scanned: bool) -> list[Path]:
        oldest = time.monotonic() - (0.0 if is_scanned else SCAN_S)
        return [path for path, since in self._since.items() if since <= oldest]

    def take_answers(self) -> list[tuple[Path, Seen]]:
        """Returns the files that were found at the source since the last call, each with the value
        that `look` returned for it."""
        answers = []
        while not self._answers.empty():
            path, seen = self._answers.get()
            self._asked.discard(path)
            if seen is not None:
                answers.append((path, seen))
        return answers

    def _start_threads(self) -> None:
        while self._threads < min(THREADS, len(self._asked)):
            try:
                threading.Thread(target=self._work, name="unmet", daemon=True).start()
            # No thread can be started. The threads that were started earlier do the work. If there
            # are none, the next call tries again.
            except RuntimeError:
                return
            self._threads += 1

    def _work(self) -> None:
        while True:
            path = self._orders.get()
            if self._is_closed:
                return
            seen = None
            try:
                seen = self._look(*path)
            except Exception:
                log.exception(
                    "a file that the scan has not reached could not be looked up at the source"
                )
            self._answers.put((path, seen))
            with self._lock:
                if not self._is_closed:
                    self._ring()

    def close(self) -> None:
        """Ends the threads, without waiting for those that hang in the source. After this call,
        `ring` is not called any more."""
        with self._lock:
            self._is_closed = True
        for _ in range(self._threads):
            self._orders.put((-1, ""))
