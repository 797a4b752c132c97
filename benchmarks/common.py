"""Shared parts of the benchmarks: a scratch directory, a daemon, programs that take turns."""

from __future__ import annotations

import json
import mmap
import os
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import psutil
import yaml

from monarch_py.ipc import word
from monarch_py.ipc.catalog import CatalogReader
from monarch_py.ipc.connection import DaemonConnection
from monarch_py.ipc.session import SessionDir
from monarch_py.native import LIBRARY, Kind, State
from monarch_py.storage.tiers import copy_name

__all__ = [
    "SEED",
    "Child",
    "Daemon",
    "build",
    "lockstep",
    "scratch",
    "touch_memory",
    "wait_until",
    "write_list",
]

# The seed of all random orders, so that runs with and without the library read files in the same
# order.
SEED = 20221


def wait_until(condition: Callable[[], bool], what: str, limit_s: float) -> None:
    """Polls until the condition is true. Raises TimeoutError after `limit_s` [s].

    With many files, each poll costs the daemon much time, and the wait is long. So the pauses
    between polls grow: each pause is a twentieth of the time waited so far. When the condition
    becomes true, the function returns after at most one such pause.

    what : the awaited event, for the error's message
    """
    started = time.monotonic()
    while not condition():
        passed = time.monotonic() - started
        if passed > limit_s:
            raise TimeoutError(f"{what} did not happen within {limit_s:.0f} s")
        time.sleep(max(0.02, passed / 20))


@contextmanager
def scratch(parent: Path | None) -> Iterator[Path]:
    """Yields a new, empty directory below `parent`; None means the directory for temporary files.
    Removes the new directory at the end, even if SIGTERM ends this process."""
    signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))
    place = Path(tempfile.mkdtemp(prefix="monarch-bench-", dir=parent)).resolve()
    try:
        yield place
    finally:
        shutil.rmtree(place, ignore_errors=True)


def metadata_operations(counts: Mapping[str, int]) -> int:
    """Returns the number of metadata operations, without opens.

    counts : the number of operations of each kind, as SlowSource.counts returns them
    """
    data = ("open", "read", "write", "bytes_read", "bytes_written", "release", "flush")
    return sum(number for kind, number in counts.items() if kind not in data)


def build(source: Path, directory: Path, *flags: str) -> Path:
    """Compiles one C file, and returns the path of the program. Raises CalledProcessError if the
    compiler fails.

    flags : more arguments for the compiler
    """
    binary = directory / source.stem
    compiler = shlex.split(os.environ.get("CC", "cc"))
    subprocess.run([*compiler, "-O2", "-o", str(binary), str(source), *flags], check=True)
    return binary


def touch_memory(size: int) -> None:
    """Allocates and frees `size` bytes of memory, but at most half of the available memory.

    A virtual machine may get a page of memory from its host only when the page is first used. This
    first use of a page of 4 KiB takes about 8 us, several times longer than copying the page. So
    call this function before a measurement. Linux allocates the most recently freed pages first, so
    the measured run gets pages that were used before.
    """
    size = min(size, psutil.virtual_memory().available // 2)
    flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | mmap.MAP_POPULATE
    mmap.mmap(-1, size, flags=flags).close()


# --- the daemon ---------------------------------------------------------------------------------


class Daemon:
    """A `monarch serve` process that runs inside a `with` block. It has its own directory for
    shared memory, so that it does not interfere with other sessions of this user.

    place : the directory for the configuration and the log
    source : the dataset's directory
    tier : an existing directory for the copies
    quota_bytes : the quota of this tier
    settings : more keys of the configuration
    """

    def __init__(
        self, place: Path, source: Path, tier: Path, quota_bytes: int, **settings: Any
    ) -> None:
        self.source, self.tier = source, tier
        self.config = place / "tiers.yaml"
        self.log = place / "daemon.log"
        self._process: subprocess.Popen[bytes] | None = None
        self._shm: Path | None = None
        document = {
            "sources": [str(source)],
            "hierarchy": [{"mount_point": str(tier), "max_storage_quota": quota_bytes}],
            **settings,
        }
        self.config.write_text(yaml.safe_dump(document))

    def __enter__(self) -> Daemon:
        self._shm = Path(tempfile.mkdtemp(prefix="monarch-bench-", dir="/dev/shm"))
        os.environ["MONARCH_SHM"] = str(self._shm)
        try:
            with self.log.open("wb") as log:
                self._process = subprocess.Popen(
                    [sys.executable, "-m", "monarch_py", "serve", "-c", str(self.config)],
                    env=plain_environment(),
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                )
            wait_until(self._is_up, "the daemon's start", 30)
        except BaseException:
            self._end()
            raise
        return self

    def __exit__(self, *exception: object) -> None:
        self._end()

    def _end(self) -> None:
        if self._process is not None:
            self._process.terminate()
            try:
                # The time limit is long, because the daemon removes its copies one by one before it
                # ends.
                self._process.wait(300)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()
            self._process = None
        if self._shm is not None:
            shutil.rmtree(self._shm, ignore_errors=True)
            self._shm = None

    def _is_up(self) -> bool:
        assert self._process is not None
        if self._process.poll() is not None:
            raise RuntimeError(f"the daemon ended: {self.log.read_text(errors='replace')}")
        return self.connection.serves() and self.connection.runs()

    @property
    def process(self) -> psutil.Process:
        assert self._process is not None
        return psutil.Process(self._process.pid)

    @property
    def connection(self) -> DaemonConnection:
        return DaemonConnection(SessionDir.of(self.config))

    def status(self) -> dict[str, Any]:
        answer: dict[str, Any] = self.connection.ask("status")
        return answer

    def wait_scanned(self, limit_s: float) -> dict[str, Any]:
        """Waits until the daemon has scanned the source. Then returns the daemon's status."""
        wait_until(lambda: bool(self.status()["scanned"]), "the scan", limit_s)
        return self.status()

    def wait_present(self, files: int, limit_s: float) -> None:
        """Waits until each file has a copy, or a recorded reason why the file gets no copy.
        Raises TimeoutError, with the daemon's status, after `limit_s` [s]. Raises RuntimeError if
        more than one in 1000 files gets no copy.

        A few files may get no copy, because the Bloom filter of changed files has false positives:
        it may report a file as changed although only another file on the same device was written.

        files : the number of files in the source
        """

        def settled() -> bool:
            source = self.status()["sources"][0]
            return bool(source["present"] + sum(source["bypass"].values()) == files)

        try:
            wait_until(settled, f"the copying of {files} files", limit_s)
        except TimeoutError as error:
            raise TimeoutError(f"{error}: {json.dumps(self.status())}") from None
        bypass = self.status()["sources"][0]["bypass"]
        if sum(bypass.values()) > files // 1000:
            raise RuntimeError(f"files stay at the source: {bypass}")

    def environment(self) -> dict[str, str]:
        """Returns the environment of a program that loads the library."""
        ours = {"LD_PRELOAD": str(LIBRARY), "MONARCH_CONFIG": str(self.config)}
        return plain_environment() | ours

    def files(self) -> tuple[list[str], list[str]]:
        """Returns two lists, in the order of the catalog: the source paths of all files that have a
        copy, and the paths of their copies."""
        generation = int(self.connection.ask("where")["generation"])
        catalog = CatalogReader.open(SessionDir.of(self.config), generation)
        words = catalog.words
        chosen = (word.state(words) == State.PRESENT) & (catalog.entries["kind"] == Kind.FILE)
        if word.tier(words[chosen]).any():
            raise RuntimeError("a copy lies in a tier that is not configured")
        copies = Path(self.status()["tiers"][0]["copies"])
        logical = [f"{self.source}/{catalog.path(int(i))}" for i in np.flatnonzero(chosen)]
        return logical, [f"{copies}/{copy_name(n)}" for n in word.copy(words[chosen]).tolist()]

    def memory(self) -> dict[str, int]:
        """Returns three sizes of the daemon's memory [bytes]: the resident set size, the
        proportional set size, and the largest resident set size so far."""
        text = Path(f"/proc/{self.process.pid}/smaps_rollup").read_text()
        fields = (line.split() for line in text.splitlines()[1:])
        found = {words[0].rstrip(":"): int(words[1]) * 1024 for words in fields}
        status = Path(f"/proc/{self.process.pid}/status").read_text().splitlines()
        peak = next(int(line.split()[1]) * 1024 for line in status if line.startswith("VmHWM:"))
        return {"rss_bytes": found["Rss"], "pss_bytes": found["Pss"], "peak_rss_bytes": peak}


def plain_environment() -> dict[str, str]:
    """Returns this process's environment without the variables that load or control the library."""
    left_out = ("LD_PRELOAD", "MONARCH_CONFIG", "MONARCH_DISABLE")
    return {k: v for k, v in os.environ.items() if k not in left_out}


# --- programs in lockstep -----------------------------------------------------------------------


class Child:
    """A program that answers each line on its standard input with one line of integers."""

    def __init__(self, argv: Sequence[str | Path | int], environment: Mapping[str, str]) -> None:
        self._line = ""
        self._process = subprocess.Popen(
            [str(word) for word in argv],
            env=dict(environment),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    @property
    def pid(self) -> int:
        return self._process.pid

    def ask(self, line: str) -> list[int]:
        """Sends a line and returns the answer. Raises RuntimeError if the program ends instead of
        answering."""
        self.tell(line)
        return self.hear()

    def tell(self, line: str) -> None:
        """Sends a line. This is the first half of `ask`, for callers that send lines to several
        programs before they read the answers."""
        assert self._process.stdin is not None
        self._line = line
        self._process.stdin.write(line + "\n")
        self._process.stdin.flush()

    def hear(self) -> list[int]:
        """Returns the answer to the line that `tell` has sent. This is the second half of `ask`."""
        assert self._process.stdout is not None
        answer = self._process.stdout.readline()
        if not answer:
            raise RuntimeError(
                f"{self._process.args!r} ended before it answered {self._line!r};"
                " see its message above"
            )
        return [int(word) for word in answer.split()]

    def finish(self, limit_s: float) -> None:
        """Closes the program's standard input, and waits for its end. Raises TimeoutExpired after
        `limit_s` [s]."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait(limit_s)

    def __enter__(self) -> Child:
        return self

    def __exit__(self, *exception: object) -> None:
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.kill()
        self._process.wait()
        self._process.stdin.close()
        self._process.stdout.close()


def write_list(file: Path, paths: Sequence[str]) -> Path:
    """Writes paths to a file, each with a NUL byte at its end, for the C programs. Returns
    `file`."""
    file.write_bytes(b"".join(os.fsencode(path) + b"\0" for path in paths))
    return file


class Asked(Protocol):
    """An object that answers a line of text with integers, such as a Child."""

    def ask(self, line: str) -> list[int]: ...


def lockstep(ours: Asked, plain: Asked, lines: Iterable[str]) -> list[tuple[list[int], list[int]]]:
    """Sends each line to both programs. Returns a pair of answers (of `ours`, of `plain`) for each
    line except the first, which only warms up the programs. The program that answers a line first
    changes the contents of the caches for the other program. So the programs take turns in
    answering first.

    ours : the program with the library
    plain : the program without the library
    """
    rest = iter(lines)
    first = next(rest)
    ours.ask(first)
    plain.ask(first)
    answers = []
    for number, line in enumerate(rest):
        if number % 2:
            theirs = plain.ask(line)
            answers.append((ours.ask(line), theirs))
        else:
            mine = ours.ask(line)
            answers.append((mine, plain.ask(line)))
    return answers
