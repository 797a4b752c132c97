"""`monarch warm`: asks the daemon to copy the named files, and waits until the copies exist."""

import os
import time
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from monarch_py.arrays import Bools, Ids, Uints
from monarch_py.commands.daemon_view import DaemonView
from monarch_py.commands.selection import PathSelection
from monarch_py.errors import SessionError, SilentError
from monarch_py.ipc import word
from monarch_py.ipc.connection import DaemonConnection
from monarch_py.ipc.session import SessionDir
from monarch_py.native import Reason, State
from monarch_py.util.hanging import LIMIT_S, hanging

# The largest number of catalog entries in one request for copies. The daemon accepts requests of at
# most 1 MiB. In JSON, the number of an entry takes 10 bytes: 8 digits, a comma and a space.
ORDER = 65536
# The largest number of directories in one request. The longest possible path has 4 KiB, and takes
# 24 KiB in JSON if it is not valid UTF-8. With this limit, a request stays below 1 MiB even if all
# its paths are so long.
DIRECTORIES = 32
# The largest number of files that the daemon examines at the source for one request. The limit is
# small because the daemon answers no other command during the request.
LOOKS = 64
# The shortest pause between two steps of the command [s]. If a step uses much processor time, the
# pause is nine times this processor time. So the command uses at most a tenth of a processor. Time
# in which the step waits for the daemon does not lengthen the pause, so that the command ends soon
# after the last copy is complete.
LOOK_S = 0.1


@dataclass(slots=True)
class Progress:
    """The progress of the command. `files` is the number of the chosen files that are known so far.
    Each field `..._bytes` is the total size of the files that the field `..._files` counts.

    there_files : files that had a copy before the command began
    filled_files : files whose copy was completed after the command began. `filled_bytes` also
        includes the bytes that unfinished fills have copied
    replaced_files : how many of the filled files had a copy before, but of an older version of the
        file
    at_source : the number of files that get no copy, for each reason that docs/status.md lists for
        `bypass`. Programs read these files from the source
    complete : whether all chosen files are known
    """

    files: int = 0
    bytes: int = 0
    there_files: int = 0
    there_bytes: int = 0
    filled_files: int = 0
    filled_bytes: int = 0
    replaced_files: int = 0
    at_source: dict[str, int] = field(default_factory=dict)
    at_source_bytes: int = 0
    complete: bool = False

    @property
    def left_files(self) -> int:
        return self.files - self.there_files - self.filled_files - sum(self.at_source.values())

    @property
    def is_done(self) -> bool:
        return self.complete and not self.left_files


def _is_left(words: Uints) -> Bools:
    """Returns, as (n,) booleans, which files get no copy from this command. Some of these files get
    a copy later, when a program reads them.

    words : (n,) the field `word` of each file's catalog entry
    """
    states = word.state(words)
    when_read = (states == State.ABSENT) & (word.reason(words) != Reason.NONE)
    return np.asarray((states == State.BYPASS) | when_read)


def _has_changed(words: Uints) -> Bools:
    """Returns, as (n,) booleans, which files get no copy because they have changed in the source.

    words : (n,) the field `word` of each file's catalog entry
    """
    is_left = (word.state(words) == State.BYPASS) & (word.reason(words) == Reason.CHANGED)
    return np.asarray(is_left)


class Warm:
    """One run of the command. The constructor raises SessionError if no daemon runs, or if Monarch
    is switched off.

    texts : paths as the user wrote them; None for all files
    is_dry : if true, the command only counts the files. It requests no copies, and compares no
        copies with the source
    """

    def __init__(
        self, session: SessionDir, texts: Sequence[str] | None, *, is_dry: bool = False
    ) -> None:
        self._is_dry = is_dry
        self._connection = DaemonConnection(session)
        self._view = DaemonView(self._connection)
        self._refuse_off()
        self.chosen = PathSelection(self._view.roots(), texts, self._view.catalog)
        self._ask_for_directories()
        self._ticket = f"{os.getpid()}.{time.time_ns()}"
        self._was_there = np.zeros(0, dtype=bool)
        self._was_outdated = np.zeros(0, dtype=bool)
        # Catalog entries that the daemon must compare with the source: files that have copies,
        # files that have changed in the source, and directories.
        self._to_compare = np.zeros(0, dtype=np.uint64)
        self._finished = False
        self.progress = Progress()

    def no_room(self) -> tuple[int, int]:
        """The number and the total size [bytes] of the chosen files that fit into no tier."""
        ids, catalog = self.chosen.ids, self._view.catalog
        words = catalog.words[ids]
        left = ids[_is_left(words) & (word.reason(words) == Reason.NO_ROOM)]
        return len(left), int(catalog.entries["size"][left].sum())

    def _refuse_off(self) -> None:
        if self._view.switched_off:
            raise SessionError(
                "Monarch is switched off: no file is copied while /etc/monarch/disabled or the "
                "configuration's switch_file exists; remove that file"
            )

    def _ask_for_directories(self) -> None:
        """Asks the daemon to scan the chosen directories before other directories, because the
        daemon may not know the files of the chosen directories yet."""
        directories = self.chosen.needs_scanned
        for at in range(0, len(directories), DIRECTORIES):
            self._connection.ask("scan", directories=directories[at : at + DIRECTORIES])
        self._view.refresh()

    # --- ordering -------------------------------------------------------------------------------

    def run(self, show: Callable[[Progress], None], *, wait: bool) -> None:
        """Requests copies of the chosen files. With `wait`, returns when all possible copies exist.
        Without `wait`, returns when all files are known and their copies are requested. After an
        exception, such as SystemExit on a signal, cancels the fills that have not begun.

        show : a function that this method calls with the progress several times a second
        """
        try:
            while not (self.progress.is_done if wait else self.progress.complete):
                start = time.process_time()
                self._step()
                show(self.progress)
                is_asking = self.chosen.unknown or len(self._to_compare)
                if self.progress.left_files and not is_asking:
                    time.sleep(max(LOOK_S, 9 * (time.process_time() - start)))
            self._leave_out_gone()
        except BaseException:
            with suppress(SessionError):
                self._connection.ask("take_back", ticket=self._ticket)
                # An exception may interrupt `_step` before `_was_there` has a value for each of
                # the chosen files. Then the files cannot be counted.
                if len(self._was_there) == len(self.chosen.ids):
                    self._count(complete=self.progress.complete)
            raise

    def _step(self) -> None:
        self._view.refresh()
        self._refuse_off()
        view, catalog = self._view, self._view.catalog
        is_scanned = view.scanned or not self.chosen.needs_scanned
        new = self.chosen.meet(catalog)
        words = catalog.words[new]
        is_there = word.state(words) == State.PRESENT
        self._was_there = np.append(self._was_there, is_there)
        self._was_outdated = np.append(self._was_outdated, np.zeros(len(new), dtype=bool))
        self._to_compare = np.append(self._to_compare, new[is_there | _has_changed(words)])
        self._order(new[~is_there])
        if is_scanned and not self._finished:
            self.chosen.finish(catalog)
            self._to_compare = np.append(self._to_compare, self.chosen.directories(catalog))
            self._finished = True
        self._compare()
        self._look_at_unknown()
        is_asking = self.chosen.unknown or len(self._to_compare)
        absent = self._count(complete=is_scanned and not is_asking)
        # Request the missing copies again, because another command may have cancelled fills, or the
        # daemon may have dropped copies.
        self._order(absent)

    def _order(self, ids: Ids) -> None:
        if self._is_dry:
            return
        for at in range(0, len(ids), ORDER):
            entries = ids[at : at + ORDER].tolist()
            self._connection.ask("warm", ticket=self._ticket, entries=entries)

    def _compare(self) -> None:
        """Asks the daemon to compare the next entries of `_to_compare` with the source. The
        comparison finds copies of earlier versions of files. It also finds changed directories,
        which may contain files that the scan has not seen."""
        if self._is_dry:
            self._to_compare = self._to_compare[:0]
        if not len(self._to_compare):
            return
        told = self._ask_source("compare", entries=self._to_compare[:ORDER].tolist())
        self._to_compare = self._to_compare[told["compared"] :]
        self._was_outdated |= np.isin(self.chosen.ids, told["outdated"])
        self._was_there &= ~self._was_outdated
        self.chosen.walk_anew(told["directories"], self._view.catalog)

    def _look_at_unknown(self) -> None:
        """Asks the daemon to examine at most LOOKS of the files that are not in its catalog. The
        scan may find the other files before the next request."""
        places = list(self.chosen.unknown)[:LOOKS]
        if not places:
            return
        entries = self._ask_source("look", paths=places)["entries"]
        self.chosen.give_up([p for p, e in zip(places, entries, strict=True) if e < 0])

    def _ask_source(self, command: str, **arguments: Any) -> Any:
        """Sends a command to the daemon, and returns the answer. The daemon must access the source
        to answer. Raises SessionError if the source's file system hangs."""
        try:
            return self._connection.ask(command, **arguments)
        except SilentError:
            for path in hanging([Path(spellings[0]) for spellings in self._view.roots()]):
                raise SessionError(
                    f"{str(path)!r} does not answer within {LIMIT_S:.0f} s; its file system hangs"
                ) from None
            raise

    def _leave_out_gone(self) -> None:
        """Finds named files that no longer exist in the source. Adds a problem for each of them,
        and removes them from all counts."""
        ids, catalog = self.chosen.ids, self._view.catalog
        gone = self.chosen.gone(ids[_has_changed(catalog.words[ids])], catalog)
        kept = ~np.isin(ids, gone)
        self.chosen.ids = ids[kept]
        self._was_there, self._was_outdated = self._was_there[kept], self._was_outdated[kept]
        self._count(complete=self.progress.complete)

    # --- counting -------------------------------------------------------------------------------

    def _count(self, *, complete: bool) -> Ids:
        """Updates `progress`. Returns the catalog entries, (n,), of the files that need a copy, but
        that the daemon is not going to copy at present."""
        ids, catalog = self.chosen.ids, self._view.catalog
        words, sizes = catalog.words[ids], catalog.entries["size"][ids]
        states = word.state(words)
        present, bypass = states == State.PRESENT, _is_left(words)
        # A copy that existed before the command began must not be counted as filled. `_was_there`
        # lacks some of these copies: earlier daemons made them, and this daemon finds them only
        # while the command runs. Their copy numbers are smaller than `first_copy`.
        was_there = self._was_there | (word.copy(words) < self._view.first_copy)
        there, filled = present & was_there, present & ~was_there
        running = states == State.FILLING
        reasons = Counter(word.reason(words[bypass]).tolist())
        self.progress = Progress(
            files=len(ids),
            bytes=int(sizes.sum()),
            there_files=int(there.sum()),
            there_bytes=int(sizes[there].sum()),
            filled_files=int(filled.sum()),
            filled_bytes=int(sizes[filled].sum())
            + self._view.partial_bytes(words[running], sizes[running]),
            replaced_files=int((filled & self._was_outdated).sum()),
            at_source={Reason(r).name.lower(): n for r, n in sorted(reasons.items())},
            at_source_bytes=int(sizes[bypass].sum()),
            complete=complete,
        )
        return np.asarray(ids[(states == State.ABSENT) & ~bypass])
