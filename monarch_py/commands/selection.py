"""Finds the catalog's entries of the paths that a user names, even while the catalog grows."""

import os
import stat
from collections.abc import Sequence
from typing import Any

import numpy as np

from monarch_py.arrays import Ids, Ints
from monarch_py.ipc import word
from monarch_py.ipc.catalog import CatalogReader, distinct
from monarch_py.native import Kind, Reason, State

# A file or directory of a source: the index of the source, and the path relative to the source. The
# path "" means the source's directory itself.
Place = tuple[int, str]

# The paths of this many catalog entries are compared at a time. This limits the memory: for paths
# of 100 bytes, one comparison needs about 16 MiB.
PORTION = 16384
GONE = "gone: it was removed from the source after the scan; restore it, or leave it out"
EXCLUDED = np.uint64(word.make(State.BYPASS, Reason.EXCLUDED))


def _is_excluded(words: Any) -> Any:
    return (word.state(words) == State.BYPASS) & (word.reason(words) == Reason.EXCLUDED)


def _is_file(path: str) -> bool:
    return os.path.isfile(path) and not os.path.islink(path)


class PathSelection:
    """The files that the user selects: named files, and all files below named directories.

    roots : for each source, the paths that lead to its directory: the real path, and then the path
        in the configuration if this path differs
    texts : the paths that the user wrote; None for all files
    problems : one pair for each of the user's paths that selects no file: the path, and a text that
        says what is wrong and what to do
    ids : (n,) the catalog entries of the selected files, in the order in which they were found
    unknown : selected files that exist, but are not in the catalog yet. The keys are the files'
        Places. The values are the paths that messages show
    """

    def __init__(
        self, roots: Sequence[Sequence[str]], texts: Sequence[str] | None, catalog: CatalogReader
    ) -> None:
        self.roots = roots
        self.problems: list[tuple[str, str]] = []
        self.ids: Ids = np.zeros(0, dtype=np.uint64)
        self.unknown: dict[Place, str] = {}
        self._named: list[int] = []
        # The paths of named files and directories as the user wrote them. `_texts` maps the catalog
        # entry of each named file to the user's path. `_directories` maps the Place of each named
        # directory to the user's path.
        self._texts: dict[int, str] = {}
        self._directories: dict[Place, str] = {}
        # For each named directory: how many files were found below it, and how many of these files
        # the configuration excludes.
        self._below: dict[Place, Ints] = {}
        self._is_chosen = np.zeros(0, dtype=bool)
        self._examined = 0
        if texts is None:
            self._directories = {(number, ""): "" for number in range(len(roots))}
        for text in texts or ():
            self._name(text, catalog)
        self._below = {key: np.zeros(2, dtype=np.int64) for key in self._directories}

    @property
    def needs_scanned(self) -> list[Place]:
        """The named directories. The daemon must scan them completely, because the selection
        includes all files below them."""
        return list(self._directories)

    # --- resolving paths ------------------------------------------------------------------------

    def _name(self, text: str, catalog: CatalogReader) -> None:
        plain = os.path.abspath(os.path.expanduser(text))
        # In a path, a '..' after a symbolic link leads to the parent of the link's target.
        # `abspath` does not follow links, so it would resolve such a path wrongly. Therefore,
        # `_look`, which follows links, resolves each path with '..'.
        place = self._place(plain) if ".." not in text.split("/") else None
        # Ask the catalog first, because the source may be slow.
        if place is None or not self._take(place, text, catalog):
            self._look(text, catalog)

    def _place(self, path: str) -> Place | None:
        for number, spellings in enumerate(self.roots):
            for spelling in spellings:
                if path == spelling:
                    return number, ""
                if path.startswith(spelling + "/"):
                    return number, path[len(spelling) + 1 :]
        return None

    def _take(self, place: Place, text: str, catalog: CatalogReader) -> bool:
        """Selects the file or directory `place`. Returns False if the catalog has no such file or
        directory.

        text : the path as the user wrote it
        """
        source, path = place
        if not path:
            self._directories[place] = text
            return True
        entry = catalog.find(source, path)
        if entry < 0:
            return False
        row = catalog.entries[entry]
        if row["kind"] == Kind.DIR:
            self._directories[place] = text
        elif row["kind"] != Kind.FILE:
            return False
        elif _is_excluded(row["word"]):
            self._leave_out(text)
        else:
            self._named.append(entry)
            self._texts[entry] = text
        return True

    def _look(self, text: str, catalog: CatalogReader) -> None:
        """Resolves the symbolic links of a path in the file system, and selects the file or
        directory that it finds. Call this if the catalog lacks the path as the user wrote it. Adds
        a problem if nothing can be selected."""
        path = os.path.expanduser(text)
        try:
            real = os.path.realpath(path, strict=True)
            mode = os.stat(real).st_mode
        except (OSError, ValueError) as error:
            why = (error.strerror if isinstance(error, OSError) else None) or str(error)
            missing = isinstance(error, FileNotFoundError | NotADirectoryError)
            hint = "check the spelling" if missing else "make it readable, or leave it out"
            self.problems.append((text, f"{why}; {hint}"))
            return
        place = self._place(real)
        if place is None:
            places = ", ".join(spellings[-1] for spellings in self.roots)
            hint = f"name a path below {places}, or add this path's directory to `sources`"
            self.problems.append((text, f"outside every source; {hint}"))
        elif self._take(place, text, catalog):
            pass
        elif stat.S_ISDIR(mode):
            self._directories[place] = text
        elif stat.S_ISREG(mode):
            self.unknown[place] = text
        else:
            self.problems.append((text, "neither a file nor a directory; name one of these"))

    def _leave_out(self, text: str) -> None:
        why = "left out by the configuration; change `include`, `exclude`, `min_size` or `max_size`"
        self.problems.append((text, f"{why} of the file's source, then restart the daemon"))

    # --- entries of the catalog -----------------------------------------------------------------

    def meet(self, catalog: CatalogReader) -> Ids:
        """Examines the entries that were added to the catalog since the last call. Selects the
        named files and the files below named directories. Returns the newly selected entries,
        (n,)."""
        for place in [place for place in self.unknown if catalog.find(*place) >= 0]:
            self._take(place, self.unknown.pop(place), catalog)
        # The catalog may grow at any time. Read its length after the look-ups above, so that the
        # length includes the entries that they found.
        last = len(catalog)
        self._is_chosen = np.pad(self._is_chosen, (0, last - len(self._is_chosen)))
        found = [self._new(np.array(self._named, dtype=np.uint64))]
        self._named = []
        while self._directories and self._examined < last:
            end = min(self._examined + PORTION, last)
            found.append(self._new(self._examine(catalog, self._examined, end)))
            self._examined = end
        new = np.concatenate(found)
        if len(new):
            self.ids = np.concatenate([self.ids, new])
        return new

    def _new(self, ids: Ids) -> Ids:
        """Returns `ids` without duplicates, and without entries that were selected before. Marks
        the returned entries as selected."""
        ids = distinct(ids)
        ids = ids[~self._is_chosen[ids]]
        self._is_chosen[ids] = True
        return ids

    def _examine(self, catalog: CatalogReader, first: int, end: int) -> Ids:
        """Searches the catalog entries first to end - 1 for files below named directories. Returns
        the found entries, and counts them for each directory."""
        rows = catalog.entries[first:end]
        files = np.flatnonzero(rows["kind"] == Kind.FILE)
        sources, lengths = rows["source"][files], rows["path_len"][files]
        excluded = _is_excluded(rows["word"][files])
        meant = np.zeros(len(files), dtype=bool)
        # Group the named directories by their source and by the length of their paths. One search
        # finds the files of all directories of a group.
        groups: dict[tuple[int, int], list[bytes]] = {}
        for source, path in self._directories:
            text = os.fsencode(path + "/") if path else b""
            groups.setdefault((source, len(text)), []).append(text)
        for (source, length), texts in groups.items():
            those = np.flatnonzero((sources == source) & (lengths > length))
            if not length:
                meant[those] = True
                self._count(source, b"", len(those), int(excluded[those].sum()))
                continue
            prefixes = np.array(sorted(texts))
            texts_there = catalog.beginnings((files[those] + first).astype(np.uint64), length)
            at = np.minimum(np.searchsorted(prefixes, texts_there), len(prefixes) - 1)
            hits = prefixes[at] == texts_there
            meant[those[hits]] = True
            counts = np.bincount(at[hits])
            out = np.bincount(at[hits], weights=excluded[those[hits]])
            for i in np.flatnonzero(counts).tolist():
                self._count(source, prefixes[i], int(counts[i]), int(out[i]))
        found: Ids = (files[meant] + first).astype(np.uint64)
        return found

    def _count(self, source: int, prefix: bytes, files: int, excluded: int) -> None:
        self._below[source, os.fsdecode(prefix).removesuffix("/")] += (files, excluded)

    # --- at the end of the scan -----------------------------------------------------------------

    def finish(self, catalog: CatalogReader) -> None:
        """Completes the selection. Call this when the daemon's scan of the sources is complete.
        Adds a problem for each named directory in which all files are excluded. Walks through each
        named directory that the scan has not found, and adds the directory's files to
        `unknown`."""
        for place, text in self._directories.items():
            files, excluded = self._below[place]
            if files and files == excluded and text:
                self._leave_out(text)
            elif place[1] and catalog.find(*place) < 0:
                self._walk(place, text)

    def directories(self, catalog: CatalogReader) -> Ids:
        """Returns the catalog entries, (n,), of the named directories and of all directories below
        them."""
        known = np.flatnonzero(catalog.entries["kind"] == Kind.DIR)
        sources = catalog.entries["source"][known].tolist()
        of = zip(known.tolist(), sources, strict=True)
        meant = [entry for entry, source in of if self._holds(source, catalog.path(entry))]
        return np.array(meant, dtype=np.uint64)

    def _holds(self, source: int, path: str) -> bool:
        while (source, path) not in self._directories:
            if not path:
                return False
            path = os.path.dirname(path)
        return True

    def walk_anew(self, directories: Sequence[int], catalog: CatalogReader) -> None:
        """Lists the names in directories again, and adds to `unknown` the files that the catalog
        lacks. Adds a problem for each named directory that no longer exists.

        directories : the catalog entries of the directories
        """
        for entry in directories:
            source, path = int(catalog.entries["source"][entry]), catalog.path(entry)
            top = self.roots[source][0]
            try:
                names = os.listdir(os.path.join(top, path))
            except OSError as error:
                text = self._directories.get((source, path))
                if isinstance(error, FileNotFoundError) and text is not None:
                    self.problems.append((text, GONE))
                continue
            for name in names:
                below = os.path.join(path, name)
                if catalog.find(source, below) >= 0:
                    continue
                full = os.path.join(top, below)
                if _is_file(full):
                    self.unknown[source, below] = full
                elif os.path.isdir(full) and not os.path.islink(full):
                    self._walk((source, below), full)

    def _walk(self, place: Place, text: str) -> None:
        source, path = place
        top = self.roots[source][0]
        device, start = self._device(top), os.path.join(top, path)
        if self._device(start) != device:
            hint = "make it a source of its own"
            self.problems.append((text, f"on another file system than its source; {hint}"))
            return
        for directory, names, files in os.walk(start):
            names[:] = [n for n in names if self._device(os.path.join(directory, n)) == device]
            for name in files:
                full = os.path.join(directory, name)
                if _is_file(full):
                    self.unknown[source, full[len(top) + 1 :]] = full

    @staticmethod
    def _device(path: str) -> int:
        try:
            return os.lstat(path).st_dev
        except OSError:
            return -1

    def gone(self, ids: Ids, catalog: CatalogReader) -> Ids:
        """Finds files that the user has named, but that no longer exist in the source. Adds a
        problem for each of them, and returns their catalog entries.

        ids : (n,) the catalog entries to examine
        """
        found = [entry for entry in ids.tolist() if entry in self._texts]
        found = [entry for entry in found if self._is_gone(entry, catalog)]
        for entry in found:
            root = self.roots[int(catalog.entries["source"][entry])][-1]
            self.problems.append((self._texts[entry] or root, GONE))
        return np.array(found, dtype=np.uint64)

    def _is_gone(self, entry: int, catalog: CatalogReader) -> bool:
        top = self.roots[int(catalog.entries["source"][entry])][0]
        try:
            os.lstat(os.path.join(top, catalog.path(entry)))
        except OSError as error:
            return isinstance(error, FileNotFoundError | NotADirectoryError)
        return False

    def give_up(self, places: Sequence[Place]) -> None:
        """Adds a problem for each of `places`, and removes these files from `unknown`.

        places : files that the daemon could not add to its catalog
        """
        for place in places:
            why = "the daemon cannot add this file to its catalog; check that the file can be read"
            self.problems.append((self.unknown.pop(place), why))
