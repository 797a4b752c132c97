"""`monarch ls` lists where named files are read from, and `monarch evict` drops their copies."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from monarch_py.arrays import Ids
from monarch_py.commands.daemon_view import DaemonView
from monarch_py.commands.selection import PathSelection
from monarch_py.ipc import word
from monarch_py.ipc.connection import DaemonConnection
from monarch_py.ipc.session import SessionDir
from monarch_py.native import Reason, State

# The largest number of catalog entries in one request. The daemon accepts requests of at most
# 1 MiB.
PORTION = 65536
STAGING = "staging area"
SOURCE = "source"


@dataclass(frozen=True, slots=True)
class FilePlace:
    """A file, and the place from which programs read it now.

    path : the file's path in the source
    size : the file's size [bytes]; -1 if the daemon does not know the file
    where : the mount point of the tier that has the file's copy; STAGING if the staging area has
        it; SOURCE if the file has no copy
    why : why the file has no copy: "filling", "wanted", "unknown", or one of the reasons that
        docs/status.md lists for `bypass`. "" if the file has a copy, or if no reason is recorded
    """

    path: str
    size: int
    where: str
    why: str


class NamedFiles:
    """The files that a user names, and what the daemon's catalog says about them now.

    texts : paths as the user wrote them; None for all files

    The constructor raises SessionError if no daemon runs.
    """

    def __init__(self, session: SessionDir, texts: Sequence[str] | None) -> None:
        self._connection = DaemonConnection(session)
        self._view = DaemonView(self._connection)
        catalog = self._view.catalog
        self._chosen = PathSelection(self._view.roots(), texts, catalog)
        self._tiers = [tier["mount_point"] for tier in self._connection.ask("status")["tiers"]]
        self._chosen.meet(catalog)
        if self.scanned:
            self._chosen.finish(catalog)

    @property
    def scanned(self) -> bool:
        """Whether the daemon knows all files of its sources."""
        return self._view.scanned

    @property
    def names(self) -> list[str]:
        """All values that `FilePlace.where` can have."""
        return [*self._tiers, STAGING, SOURCE]

    @property
    def problems(self) -> list[tuple[str, str]]:
        """The user's paths that select no file. Each item is a pair: the path, and a sentence that
        says what is wrong and what to do."""
        return self._chosen.problems

    def places(self) -> Iterator[FilePlace]:
        """Yields a FilePlace for each file, sorted by path. Files that the daemon does not know yet
        come last."""
        catalog = self._view.catalog
        tops = [spellings[-1] for spellings in self._view.roots()]
        paths = {
            entry: f"{tops[int(catalog.entries['source'][entry])]}/{catalog.path(entry)}"
            for entry in self._chosen.ids.tolist()
        }
        for entry in sorted(paths, key=paths.__getitem__):
            row = catalog.entries[entry]
            where, why = _place(row["word"], self._tiers)
            yield FilePlace(paths[entry], int(row["size"]), where, why)
        for number, path in sorted(self._chosen.unknown):
            yield FilePlace(f"{tops[number]}/{path}", -1, SOURCE, "unknown")

    def evict(self) -> tuple[int, int]:
        """Drops the copies of the files. Returns how many copies were dropped, and the total size
        of the files that had copies. Raises SessionError if a new daemon has started since the
        constructor ran, because the new daemon's catalog has other entries."""
        catalog = self._view.catalog
        ids = self._chosen.ids
        present = ids[word.state(catalog.words[ids]) == State.PRESENT]
        size, dropped = int(catalog.entries["size"][present].sum()), 0
        for at in range(0, len(present), PORTION):
            self._view.refresh()  # raises SessionError if a new daemon has started
            entries = present[at : at + PORTION].tolist()
            dropped += self._connection.ask("drop", entries=entries)["dropped"]
        return dropped, size


def _place(packed: np.uint64, tiers: Sequence[str]) -> tuple[str, str]:
    """Returns the fields `where` and `why` of a FilePlace.

    packed : the field `word` of the file's catalog entry
    """
    words: Ids = np.array([packed], dtype=np.uint64)
    state, why = State(int(word.state(words)[0])), Reason(int(word.reason(words)[0]))
    if state == State.PRESENT:
        number = int(word.tier(words)[0])
        return (tiers[number] if number < len(tiers) else STAGING), ""
    if state in (State.FILLING, State.WANTED):
        return SOURCE, state.name.lower()
    return SOURCE, "" if why == Reason.NONE else why.name.lower()
