"""Finds and ends the daemons that programs under the library start, and the starters of these
daemons."""

from __future__ import annotations

import fcntl
import os
import shutil
import signal
import struct
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from unittest.mock import patch

import psutil
import pytest
from support.session import Session, wait_until
from support.steps import Steps

from monarch_py.commands import autostart
from monarch_py.native import LIBRARY

# Only the command line of a starter contains STARTER, and only that of a daemon contains DAEMON.
STARTER, DAEMON = "commands.autostart", "daemon.lifecycle"
# A program that opens the given file, and no other file outside the system's directories.
CAT = "/bin/cat"
# An open must take less than this time [us]. The library waits a few milliseconds for the process
# that it starts. The limit is much longer, because other processes may load the machine.
HELD_UP_US = 1_000_000
# Two starts are at least 5 s apart (csrc/preload/autostart/claim.c).
APART_S = 6
# Reads the file when the program begins, and again after each step (see support/steps.py).
READER = """
open(sys.argv[1], "rb").read()
while step() != "end":
    open(sys.argv[1], "rb").read()
"""
# Like READER, but does not read the file when the program begins.
IDLE_READER = """
while step() != "end":
    open(sys.argv[1], "rb").read()
"""


class Started:
    """The starters and daemons of a session, as /proc shows them."""

    def __init__(self, session: Session) -> None:
        self.session = session
        self._seen: set[psutil.Process] = set()

    def _processes(self, *words: str) -> list[psutil.Process]:
        """Returns the processes whose command line contains one of `words` and the path of the
        session's configuration. Reads /proc itself, because tests call this function often, and
        psutil would take several times as long."""
        config, found = os.fsencode(self.session.config), []
        for number in filter(str.isdecimal, os.listdir("/proc")):
            with suppress(OSError, psutil.Error):  # the process has ended
                line = Path("/proc", number, "cmdline").read_bytes()
                if config in line.split(b"\0") and any(word.encode() in line for word in words):
                    found.append(psutil.Process(int(number)))
        self._seen.update(found)
        return found

    def starters(self) -> list[psutil.Process]:
        return self._processes(STARTER)

    def daemons(self) -> list[psutil.Process]:
        return self._processes(DAEMON)

    def daemon(self) -> psutil.Process:
        """Waits until the daemon serves and its starter has ended. Returns the daemon; there must
        be exactly one."""
        wait_until(self._is_up, timeout=60, what="the daemon that the library starts")
        (daemon,) = self.daemons()
        return daemon

    def _is_up(self) -> bool:
        return self.session.connection.serves() and not self.is_starting()

    def is_starting(self) -> bool:
        """Returns whether a starter holds the claim, which is a lock on the file `starts`. The
        method `starters` may miss a new starter, because it searches command lines. A new starter
        gets its command line only a moment after the program has continued."""
        try:
            claim = os.open(self.session.paths.starts, os.O_RDONLY)
        except FileNotFoundError:
            return False
        try:
            fcntl.flock(claim, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        finally:
            os.close(claim)
        return False

    def wait_for_starter(self) -> None:
        wait_until(lambda: not self.is_starting(), what="the end of the starter")

    def starts(self) -> int:
        """Returns how many starts are recorded. A start that was not needed does not count; its
        recorded time is an odd number."""
        file = self.session.paths.starts
        data = file.read_bytes() if file.exists() else b""
        times = [int.from_bytes(data[at : at + 8], sys.byteorder) for at in range(0, len(data), 8)]
        return sum(time > 0 and time % 2 == 0 for time in times)

    def wait_for_starts(self, count: int) -> None:
        try:
            wait_until(lambda: self.starts() == count, what=f"{count} starts")
        except AssertionError as error:
            raise AssertionError(f"{error}, but {self.starts()}; {self.said()}") from None

    def said(self) -> str:
        logs = (self.session.paths.log_before, self.session.paths.log)
        return "".join(log.read_text() for log in logs if log.exists())

    def end(self) -> None:
        """Kills all starters and daemons of the session, including those left by a failed test."""
        while self.is_starting() or not self.is_gone():
            for process in self._processes(STARTER, DAEMON):
                process.kill()
            psutil.wait_procs(self._seen, timeout=20)

    def is_gone(self) -> bool:
        return not self._processes(STARTER, DAEMON)

    def run(
        self,
        *argv: str | Path,
        prefix: Sequence[str] = (),
        timeout: float = 60,
        env: Mapping[str, str] | None = None,
    ) -> subprocess.CompletedProcess[str]:
        """Runs a program under the library. `prefix` is a command that runs the program and is not
        itself under the library."""
        given = self.session.env(True, **(env or {}))
        library = [f"{name}={value}" for name, value in given.items()]
        return subprocess.run(
            [*prefix, "env", *library, *map(str, argv)],
            env={"PATH": os.environ["PATH"]},
            capture_output=True,
            text=True,
            errors="replace",
            timeout=timeout,
            check=False,
        )

    def learn(self, **variables: str) -> None:
        """Makes a record of the configuration, as a starter does, but does not start a daemon."""
        with (
            patch.dict(os.environ, {"MONARCH_SHM": str(self.session.shm), **variables}),
            # `start` first records the configuration. Then it starts a daemon only if
            # `_is_open_below` returns True, which means that a process under the library has a file
            # of the source open.
            patch.object(autostart, "_is_open_below", return_value=False),
        ):
            assert not autostart.start(self.session.config, "/elsewhere")


def started(make: Callable[[], Session]) -> Iterator[Started]:
    """Yields a `Started` for the session that `make` returns, and afterwards ends the session's
    processes. For fixtures."""
    found = Started(make())
    try:
        yield found
    finally:
        found.end()


def stop(process: psutil.Process) -> None:
    """Ends the process with SIGTERM, as happens at the end of a job step, and waits for its end."""
    process.send_signal(signal.SIGTERM)
    psutil.wait_procs([process], timeout=20)


def needs(*programs: str) -> None:
    for program in programs:
        if shutil.which(program) is None:
            pytest.skip(f"{program} is missing: install {program}")


def reader_is_attached(site: Started, reader: Steps) -> bool:
    reader.go()
    reader.wait()
    maps = Path(f"/proc/{reader.process.pid}/maps").read_text()
    control = site.session.paths.control
    return any(
        line.endswith(str(control)) and line.split()[4] == str(control.stat().st_ino)
        for line in maps.splitlines()
    )


def differs(site: Started, before: bytes) -> bool:
    return times(site) != before


def counted(site: Started) -> int:
    """Returns how many starts are recorded, including those that were not needed."""
    data = times(site)
    return sum(any(data[at : at + 8]) for at in range(0, len(data), 8))


def times(site: Started) -> bytes:
    return site.session.paths.starts.read_bytes() if site.session.paths.starts.exists() else b""


def age(site: Started, seconds: int = APART_S) -> None:
    """Makes the recorded starts older by `seconds` [s]. With the default value, another start is
    allowed at once."""
    with site.session.paths.starts.open("r+b") as file:
        times = struct.unpack("3Q", file.read())
        file.seek(0)
        file.write(struct.pack("3Q", *(max(0, when - seconds * 10**9) for when in times)))


# A fake Python that writes its arguments to a file, and a message to standard error.
FAKE = '#!/bin/sh\nprintf "%s\\n" "$@" >"$(dirname "$0")/arguments"\necho it is broken >&2\n'


def installed(site: Started, directory: Path, line: str, python: str) -> Path:
    """Makes an installation that has the library, a fake interpreter, and a bin/monarch that begins
    with `#!` and `line`. Returns the path of the fake interpreter."""
    packages, programs = directory / "p/lib/python3.99/site-packages", directory / "p/bin"
    (packages / "monarch_py").mkdir(parents=True)
    programs.mkdir()
    shutil.copy(LIBRARY, packages / "monarch_py")
    (programs / python).write_text(FAKE)
    (programs / python).chmod(0o755)
    (programs / "monarch").write_text(f"#!{line}\nimport monarch_py\n")
    site.session.preload = packages / "monarch_py" / LIBRARY.name
    return programs / python


def written(file: Path) -> list[str]:
    return file.read_text().splitlines() if file.exists() else []
