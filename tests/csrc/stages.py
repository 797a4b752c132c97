"""A source with one directory for each operation of change.c. The copies of its files are in one of
three states (see Stage)."""

from __future__ import annotations

import hashlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from csrc.building import HERE, build_program
from csrc.look import look_below
from support import draws
from support.segments import newest_generation
from support.session import Session, wait_until

from monarch_py.demo.slowsource import SlowSource
from monarch_py.ipc import word
from monarch_py.ipc.catalog import CatalogReader
from monarch_py.native import State
from monarch_py.storage.tiers import tier_root

LOOK = [sys.executable, "-I", "-S", str(HERE / "look.py")]
# The times of the planted files [ns]. They are older than any time that an operation sets.
OLD_NS = 1_400_000_000_123_456_789
Seen = dict[str, Any]
# One operation of each kind. With --long, these run on the slow source, where everything takes ten
# times as long.
SOME = [
    "wronly",
    "trunc",
    "rdonly_trunc",
    "openat",
    "relative",
    "through_symlink",
    "through_hard_link",
    "from_outside",
    "fopen_a",
    "fopen_w",
    "freopen",
    "copy_file_range",
    "mmap",
    "ftruncate",
    "truncate",
    "forked",
    "shell",
    "rename_away",
    "rename_over",
    "rename_in",
    "rename_directory",
    "rename_directory_out",
    "exchange",
    "exchange_directories",
    "mkstemp",
    "link",
    "unlink",
    "recreate",
    "file_becomes_link",
    "other_target",
    "chmod",
    "fchmod",
    "chown",
    "futimens",
    "utimensat",
    "fsetxattr",
    "removexattr",
    "proc_open_trunc",
]
# A selection from SOME: one operation for each way in which the library learns of a change. Every
# test run tries these operations in every state.
FEW = [
    "wronly",
    "rdonly_trunc",
    "through_hard_link",
    "fopen_w",
    "copy_file_range",
    "mmap",
    "truncate",
    "forked",
    "rename_away",
    "rename_over",
    "rename_directory",
    "exchange",
    "link",
    "unlink",
    "file_becomes_link",
    "fchmod",
    "utimensat",
    "removexattr",
]


def build_change(directory: Path) -> Path:
    """Builds change.c with its tables of operations."""
    names = ("change.c", "change_content.c", "change_names.c", "change_fds.c")
    return build_program(directory / "change", *(HERE / name for name in names))


def operations(program: Path) -> list[str]:
    done = subprocess.run([program, "--list"], capture_output=True, text=True, check=True)
    return done.stdout.split()


def plant(here: Path, outside: Path) -> None:
    """Makes the files of one operation, always with the same content and times."""
    for directory in (here, here / "d", here / "e", outside):
        directory.mkdir(parents=True)
    for i, path in enumerate((here / "f", here / "g", here / "d/x", here / "d/y", here / "e/x")):
        path.write_bytes(f"{path.name} of old {i}\n".encode() * (400 + 100 * i))
    (outside / "new").write_bytes(b"new\n" * 700)
    for name in ("f", "g"):
        os.setxattr(here / name, "user.a", b"old")
    os.link(here / "f", here / "hard")
    (here / "to_f").symlink_to("f")
    (outside / "into").symlink_to(Path("../..") / here.parent.name / here.name / "f")
    for path in (*here.rglob("*"), *outside.rglob("*")):
        if not path.is_symlink():
            path.chmod(0o755 if path.is_dir() else 0o644)
        os.utime(path, ns=(OLD_NS, OLD_NS), follow_symlinks=False)


@dataclass
class Outcome:
    """What an operation printed, and what programs saw right after it."""

    printed: str
    with_library: Seen
    without_library: Seen


class Stage:
    """A session whose files are in one state.

    state : 'present' (every file has its copy), 'filling' (the copies are being written, from old
    content) or 'unscanned' (the catalog lists no file)

    The daemon is stopped with SIGSTOP until `thaw`. So what is seen right after an operation is the
    library's own work.
    """

    def __init__(self, top: Path, state: str, program: Path, slowsource: Path) -> None:
        self.state, self.program, self.top = state, program, top
        every = operations(program)
        in_state = {
            "present": every,
            "filling": draws.sized(FEW, SOME),
            "unscanned": draws.sized(FEW, every),
        }
        self.operations = in_state[state]
        self.outcomes: dict[str, Outcome] = {}
        self.thawed = False
        self._stack = ExitStack()
        backing = top / "backing"
        for name in self.operations:
            for tree in (backing, backing / "plain"):
                plant(tree / "source" / name, tree / "outside" / name)
        self._slow: SlowSource | None = None
        # Unless the source is slow, it is on the same file system as the tier.
        self.root = backing
        if state == "filling":
            self.root = top / "mount"
            self.root.mkdir()
            self._slow = self._stack.enter_context(
                # Without keep_pages, the kernel drops a file's pages at each open. The open then
                # waits for the pages that a fill is reading.
                SlowSource(backing, self.root, binary=slowsource, attr_timeout=0.0, keep_pages=True)
            )

    def __enter__(self) -> Stage:
        try:
            self._freeze()
        except BaseException:
            self._stack.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        if self._slow is not None:
            self._slow.latency(read=0)
        self._stack.close()

    def _freeze(self) -> None:
        settings: dict[str, Any] = {"scan_rate": 1} if self.state == "unscanned" else {}
        self.session = self._stack.enter_context(
            Session(self.top, self.root / "source", shared_tpool_size=48, min_reads=48, **settings)
        )
        self.session.start()
        if self.state == "present":
            self.session.wait_all_present()
        elif self.state == "filling":
            self._fill_slowly()
        self._signal(signal.SIGSTOP)
        if self.state == "present":
            self.copies = self.read_copies()
        if self._slow is not None:
            self._slow.latency(read=0)

    def _fill_slowly(self) -> None:
        """Orders a fill of every file, and waits until 48 fills wait for bytes from the source."""
        assert self._slow is not None
        self.session.wait_scanned()
        self._slow.latency(read=3600)
        self._slow.reset()
        names = ("f", "g", "d/x", "d/y", "e/x")
        wanted = [self.root / "source" / op / name for name in names for op in self.operations]
        script = "import os,sys\nfor path in sys.argv[1:]: os.close(os.open(path, 0))"
        self.session.python(script, *wanted)
        slow = self._slow
        wait_until(lambda: slow.counts()["read"] >= 48, what="fills that have begun")
        wait_until(lambda: self.filling() == len(wanted), what="orders for all files")

    def filling(self) -> int:
        """Returns how many files are being filled, according to the catalog in shared memory."""
        reader = CatalogReader.open(self.session.paths, newest_generation(self.session))
        return int((word.state(reader.words) == State.FILLING).sum())

    def _signal(self, number: int) -> None:
        daemon = self.session.daemon
        assert daemon is not None
        daemon.send_signal(number)
        wanted = "T" if number == signal.SIGSTOP else "SR"
        stat = Path(f"/proc/{daemon.pid}/stat")
        wait_until(
            lambda: stat.read_text().rpartition(")")[2].split()[0] in wanted, what="the stop"
        )

    # --- copies ---------------------------------------------------------------------------------

    def read_copies(self) -> dict[str, tuple[str, int, int, list[str]]]:
        """Returns name -> (digest, mode, number of links, names of extended attributes) of every
        copy."""
        found = {}
        for path in (tier_root(self.session.tiers[0]) / "c").iterdir():
            try:
                data, st = path.read_bytes(), path.stat()
                names = os.listxattr(path)
            except FileNotFoundError:
                continue  # the daemon has just dropped this copy
            found[path.name] = (hashlib.sha256(data).hexdigest(), st.st_mode, st.st_nlink, names)
        return found

    # --- operations -----------------------------------------------------------------------------

    def look(self, *operations: str, preload: bool, plain: bool = False) -> dict[str, Seen]:
        """Returns operation -> what a program sees in the operation's directories. With the
        library, one program reads all directories. Without it, the test's own process reads them.
        """
        top = self.root / "plain" if plain else self.root
        places = [top / kind / op for op in operations for kind in ("source", "outside")]
        if preload:
            done = self.session.run([*LOOK, *places], check=True)
            assert not done.stderr, done.stderr
            found = json.loads(done.stdout)
        else:
            found = {str(place): look_below(str(place)) for place in places}
        return {
            op: {kind: found[str(top / kind / op)] for kind in ("source", "outside")}
            for op in operations
        }

    def _perform(self, operation: str, top: Path, *, preload: bool) -> str:
        words: list[str | Path] = [
            self.program,
            operation,
            top / "source" / operation,
            top / "outside" / operation,
        ]
        done = self.session.run(words, preload=preload)
        assert (done.returncode, done.stderr) == (0, ""), done
        return done.stdout.replace(str(top), "")

    def do(self, operation: str) -> Outcome:
        """Performs the operation if it was not performed before, and looks at the result while the
        daemon is stopped. Returns the outcome."""
        if operation not in self.outcomes:
            assert not self.thawed
            printed = self._perform(operation, self.root, preload=True)
            seen = [self.look(operation, preload=preload)[operation] for preload in (True, False)]
            self.outcomes[operation] = Outcome(printed, *seen)
        return self.outcomes[operation]

    @cached_property
    def expected(self) -> dict[str, Outcome]:
        """The outcomes of all operations when they are performed without the library, on an
        identical tree outside the source."""
        plain = self.root / "plain"
        printed = {op: self._perform(op, plain, preload=False) for op in self.operations}
        seen = self.look(*self.operations, preload=False, plain=True)
        return {op: Outcome(printed[op], seen[op], seen[op]) for op in self.operations}

    @cached_property
    def copies_after_operations(self) -> dict[str, tuple[str, int, int, list[str]]]:
        """Performs all operations while the daemon is stopped, and returns what `read_copies` then
        returns. `thaw` calls this before the daemon goes on, because pytest-xdist may run `thaw`
        before a test that needs this result."""
        for operation in self.operations:
            self.do(operation)
        return self.read_copies()

    def thaw(self) -> None:
        """Performs all operations, then lets the daemon go on until it has nothing left to do, and
        looks at the files with and without the library."""
        if self.thawed:
            return
        assert self.copies_after_operations is not None
        self.thawed = True
        self._signal(signal.SIGCONT)
        self._wait_quiet()
        # All files are requested several times, because the daemon may lose a client's hint about
        # an unlisted file.
        for _ in range(3):
            self.session.want_all()
            self._wait_quiet()
        self.later = self.look(*self.operations, preload=True)
        self.truth = self.look(*self.operations, preload=False)

    def _wait_quiet(self) -> None:
        wait_until(lambda: not self.session.status()["pending"], timeout=60, what="the last fill")


def normalised(seen: Seen) -> Seen:
    """Returns the part of `seen` that must be equal in two trees. Inode numbers, devices and change
    times are left out, because they differ between trees."""

    def attributes(found: Any) -> Any:
        if not isinstance(found, list) or len(found) < 9:
            return found if not isinstance(found, list) else found[:1] + found[2:4]
        mode, nlink, uid, gid, size, _, _, mtime, _ = found
        return [mode, nlink, uid, gid, size, mtime if mtime < OLD_NS + 2 * 10**17 else "now"]

    def one(found: Any) -> Any:
        content = found["content"]
        return {
            **found,
            "lstat": attributes(found["lstat"]),
            "stat": attributes(found["stat"]),
            "content": content[:2] if isinstance(content, list) else content,
        }

    return {where: {n: one(f) for n, f in files.items()} for where, files in seen.items()}


def stages(top: Path, state: str, program: Path, slowsource: Path) -> Iterator[Stage]:
    with Stage(top, state, program, slowsource) as stage:
        yield stage
