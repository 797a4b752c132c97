"""Where foreign programs run: a directory that a daemon serves, with fills going on in it, and its
twin that nobody serves. A run without the library in the twin says what the other has to give.

The two have names of one length, so that no limit of a path or a line tells them apart.
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
# The source gives so much a second: 32 files, of which each takes its turn quickly.
BALLAST_RATE = "2MiB"
BALLAST_FILE = 64 << 10
# Of a program's own, so that neither the user's set-up nor a locale decides what it says.
SETTINGS = {"LC_ALL": "C.UTF-8", "TZ": "UTC", "PYTHONDONTWRITEBYTECODE": "1"}


class Ground:
    """Two directories, each as `plant` makes it; one is a source.

    settings : of the configuration. Every file is filled as soon as the daemon finds it, unless
    they say otherwise.
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
        """What the daemon says of the source."""
        found: dict[str, Any] = self.session.status()["sources"][0]
        return found

    def wait_copies(self) -> None:
        """Until every file of the source has its copy; none is left to the source."""
        self.session.wait_scanned()
        try:
            wait_until(lambda: self.files()["present"] == self.files()["files"], what="all copies")
        except AssertionError as error:
            raise AssertionError(f"{error}: {self.files()}") from None

    def load(self, files: int) -> None:
        """Makes a copy of everything, and then gives a new daemon, which keeps these copies, so
        many files more to be at work with: for `files` / 32 seconds."""
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
        """A daemon without limits again, which has nothing left to do."""
        self.session.stop()
        shutil.rmtree(self.source / "ballast", ignore_errors=True)
        self.session = self._session()
        self.session.start()
        self.wait_copies()

    def restage(self) -> None:
        """A new daemon, for which what was written so far is what it finds: it makes copies of it
        all. (A file that is written under a daemon is left to the source while that one lives.)"""
        self.session.stop()
        self.session.start()
        self.wait_copies()

    def is_filling(self) -> bool:
        return bool(self.files()["wanted"] + self.files()["filling"] + self.files()["absent"])

    def hits(self) -> int:
        """Opens that were answered by a copy so far."""
        return int(self.session.totals()["hits"])

    # --- programs -------------------------------------------------------------------------------

    def root(self, library: bool) -> Path:
        return self.source if library else self.without

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
        """Runs a program in the twin, or under the library in the source; `root` chooses either for
        both. `more` is added to its environment, which has the directory as ROOT."""
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
        """Takes away what programs left in their working directory."""
        for name in ("work", "tmp", "home"):
            place = self.root(library) / name
            shutil.rmtree(place)
            place.mkdir()


def said(run: Run, root: Path) -> str:
    """What a program said and how it ended, with its directory called ROOT."""
    text = f"{run.stdout}--- errors\n{run.stderr}--- status {run.returncode}\n"
    return text.replace(str(root), "ROOT")


def look(root: Path, below: str = "work", leave_out: Sequence[str] = ()) -> dict[str, str]:
    """Every name `below` root: its kind, mode, links, size and bytes, seen without the library.

    leave_out : ends of paths of files whose bytes hold inode numbers or times.
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
