"""Two directories in which other projects' programs run. One is a source: a daemon serves it, and
makes copies of its files. The other lies outside every source. A program runs in the source under
the library, and in the other directory without the library. Both runs must have the same result.

The paths of the two directories are equally long, so that a limit on the length of a path or a line
affects both runs alike.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import stat
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

from support.session import MIB, Session, wait_until

Run = subprocess.CompletedProcess[str]
RUN_LIMIT_S = 900.0
# Ballast: files of BALLAST_FILE bytes whose fills keep the daemon busy. The bandwidth of the source
# is limited to BALLAST_RATE bytes per second, so the daemon fills 32 of these files per second.
BALLAST_RATE = "2MiB"
BALLAST_FILE = 64 << 10
# Environment variables that every program gets. They make its output independent of the user's
# locale and time zone, and prevent Python from writing bytecode files.
SETTINGS = {"LC_ALL": "C.UTF-8", "TZ": "UTC", "PYTHONDONTWRITEBYTECODE": "1"}


class Ground:
    """Two directories, `without` and `source`, each with the content that `plant` makes. Only
    `source` is a source of the session.

    quota : the quota of the tier [bytes]
    settings : keys of the configuration. By default, `prefetch` is `eager`: the daemon fills every
        file as soon as it has found it
    """

    def __init__(
        self,
        top: Path,
        plant: Callable[[Path], None] = lambda root: None,
        *,
        quota: int = 2048 * MIB,
        **settings: Any,
    ) -> None:
        self.without, self.source = top / "without", top / "library"
        for root in (self.without, self.source):
            for name in ("work", "tmp", "home"):
                (root / name).mkdir(parents=True)
            plant(root)
        for name in ("tier", "session"):
            (top / name).mkdir()
        tier = {"mount_point": top / "tier", "max_storage_quota": quota, "persistent": True}
        self._place, self._tiers = top / "session", [tier]
        self.session = self._session(**settings)

    def _session(self, **settings: Any) -> Session:
        return Session(
            self._place, self.source, tiers=self._tiers, **{"prefetch": "eager", **settings}
        )

    def __enter__(self) -> Ground:
        try:
            self.session.start()
            self.session.wait_scanned()
        except BaseException:
            self.session.stop()
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.session.__exit__(kind, error, traceback)

    # --- copies ---------------------------------------------------------------------------------

    def files(self) -> dict[str, Any]:
        """Returns the daemon's status of the source, with the number of files in each state."""
        found: dict[str, Any] = self.session.status()["sources"][0]
        return found

    def wait_copies(self) -> None:
        """Waits until every file of the source has a copy. Fails if a file does not get one."""
        self.session.wait_scanned()
        try:
            wait_until(lambda: self.files()["present"] == self.files()["files"], what="all copies")
        except AssertionError as error:
            raise AssertionError(f"{error}: {self.files()}") from None

    def load(self, files: int) -> None:
        """Waits until every file has a copy, then restarts the daemon with `files` additional
        files. The new daemon keeps the copies, and needs `files` / 32 seconds to fill the
        additional files."""
        if (self.source / "ballast").exists():
            self.unload()
        self.wait_copies()
        wait_until(lambda: not self.session.status()["pending"], what="recorded copies")
        self.session.stop()
        ballast = self.source / "ballast"
        ballast.mkdir(exist_ok=True)
        for number in range(files):
            with (ballast / f"{number:05d}").open("wb") as file:
                file.truncate(BALLAST_FILE)
        self.session = self._session(source_limits={"bandwidth": BALLAST_RATE})
        self.session.start()
        self.session.wait_scanned()

    def unload(self) -> None:
        """Removes the additional files, and restarts the daemon without a bandwidth limit. Waits
        until the daemon has nothing left to fill."""
        self.session.stop()
        shutil.rmtree(self.source / "ballast", ignore_errors=True)
        self.session = self._session()
        self.session.start()
        self.wait_copies()

    def restage(self) -> None:
        """Restarts the daemon, and waits until it has made copies of all files. A restart is
        necessary, because a daemon makes no copies of files that were written while it ran."""
        self.session.stop()
        self.session.start()
        self.wait_copies()

    def is_filling(self) -> bool:
        return bool(self.files()["wanted"] + self.files()["filling"] + self.files()["absent"])

    def hits(self) -> int:
        """Returns how many opens have been served from a copy so far."""
        return int(self.session.totals()["hits"])

    # --- programs -------------------------------------------------------------------------------

    def root(self, library: bool) -> Path:
        return self.source if library else self.without

    def python(self, library: bool) -> list[str]:
        """Returns the beginning of the command line that starts an interpreter. Whether the
        interpreter runs under the library depends only on its environment (see `env`)."""
        return [sys.executable]

    def env(self, library: bool, root: Path, **more: str) -> dict[str, str]:
        own = {
            "ROOT": str(root),
            "PYTHON": sys.executable,
            "TMPDIR": str(root / "tmp"),
            "HOME": str(root / "home"),
        }
        return self.session.env(library, **{**SETTINGS, **own, **more})

    def run(
        self,
        argv: Sequence[str | Path],
        *,
        library: bool,
        root: Path | None = None,
        timeout: float = RUN_LIMIT_S,
        **more: str,
    ) -> Run:
        """Runs a program in the directory `work` of `root`, under the library if `library` is true.
        By default, `root` is what `self.root(library)` returns. The program finds the path of
        `root` in the environment variable ROOT. `more` holds further environment variables."""
        root = root or self.root(library)
        return subprocess.run(
            [str(word) for word in argv],
            env=self.env(library, root, **more),
            cwd=root / "work",
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="backslashreplace",
            timeout=timeout,
            check=False,
        )

    def shell(self, script: str, *, library: bool, **more: Any) -> Run:
        return self.run(["bash", "-e", "-o", "pipefail", "-c", script], library=library, **more)

    def sweep(self, library: bool) -> None:
        """Empties the directories in which programs may have left files."""
        for name in ("work", "tmp", "home"):
            place = self.root(library) / name
            shutil.rmtree(place)
            place.mkdir()


def said(run: Run, root: Path) -> str:
    """Returns the output, the errors and the exit status of a program, with ROOT in place of the
    path of its directory."""
    text = f"{run.stdout}--- errors\n{run.stderr}--- status {run.returncode}\n"
    return text.replace(str(root), "ROOT")


def look(root: Path, below: str = "work", leave_out: Sequence[str] = ()) -> dict[str, str]:
    """Describes every file and directory in the directory `below` of `root`: relative path -> kind,
    mode, number of links, size and digest. The test process reads the files without the library.

    leave_out : suffixes of paths. Files whose paths end with one of them contain inode numbers or
        times, so they are described without size and digest
    """
    found, place = {}, str(root).encode()
    for folder, folders, names in os.walk(root / below):
        for name in sorted([*folders, *names]):
            path = Path(folder, name)
            st = path.lstat()
            line = f"{stat.filemode(st.st_mode)} links {st.st_nlink}"
            if path.is_symlink():
                line += f" -> {os.readlink(path)}".replace(str(root), "ROOT")
            elif path.is_file() and not str(path).endswith(tuple(leave_out)):
                digest = hashlib.sha256(path.read_bytes().replace(place, b"ROOT")).hexdigest()
                line += f" size {st.st_size} sha256 {digest[:16]}"
            found[str(path.relative_to(root))] = line
    return found
