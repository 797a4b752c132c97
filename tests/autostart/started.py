"""A session whose daemon a program under the library starts; the test ends what it finds of it."""

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

# In the command lines of a starter and of its daemon.
STARTER, DAEMON = "commands.autostart", "daemon.lifecycle"
# A program that opens the file, and nothing else outside the system's directories.
CAT = "/bin/cat"
# The library waits a few milliseconds for what it starts; this leaves time for others [us].
HELD_UP_US = 1_000_000
# Two starts are at least 5 s apart (csrc/preload/autostart/claim.c).
APART_S = 6
# One reads the file at each step.
READER = """
open(sys.argv[1], "rb").read()
while step() != "end":
    open(sys.argv[1], "rb").read()
"""
# One waits first.
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
        """Those whose command line has one of these words and the session's configuration. Tests
        ask again and again, and psutil would take several times as long."""
        config, found = os.fsencode(self.session.config), []
        for number in filter(str.isdecimal, os.listdir("/proc")):
            with suppress(OSError, psutil.Error):  # it has ended
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
        """The one daemon, once it serves and its starter has ended."""
        wait_until(self._is_up, timeout=60, what="the daemon that the library starts")
        (daemon,) = self.daemons()
        return daemon

    def _is_up(self) -> bool:
        return self.session.connection.serves() and not self.is_starting()

    def is_starting(self) -> bool:
        """Whether the claim is held. A starter is not seen at once: its command line comes a moment
        after the program goes on."""
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
        """How many starts the library has counted, without those that were not needed."""
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
        """Ends everything, as a test that has failed leaves it as well."""
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
        """Runs a program under the library, behind what is not under it."""
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
        """Writes down what the configuration says, as a starter does, and starts nothing."""
        with (
            patch.dict(os.environ, {"MONARCH_SHM": str(self.session.shm), **variables}),
            # It would look through the descriptors of all processes.
            patch.object(autostart, "_is_open_below", return_value=False),
        ):
            assert not autostart.start(self.session.config, "/elsewhere")


def started(make: Callable[[], Session]) -> Iterator[Started]:
    """For a fixture."""
    found = Started(make())
    try:
        yield found
    finally:
        found.end()


def stop(process: psutil.Process) -> None:
    """In order, as the end of a job's step does."""
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
    """How many starts the library has counted, those that were not needed as well."""
    data = times(site)
    return sum(any(data[at : at + 8]) for at in range(0, len(data), 8))


def times(site: Started) -> bytes:
    return site.session.paths.starts.read_bytes() if site.session.paths.starts.exists() else b""


def age(site: Started, seconds: int = APART_S) -> None:
    """Makes the starts so much older, by default so old that another one may follow at once."""
    with site.session.paths.starts.open("r+b") as file:
        times = struct.unpack("3Q", file.read())
        file.seek(0)
        file.write(struct.pack("3Q", *(max(0, when - seconds * 10**9) for when in times)))


# A Python that writes down its arguments, and says something.
FAKE = '#!/bin/sh\nprintf "%s\\n" "$@" >"$(dirname "$0")/arguments"\necho it is broken >&2\n'


def installed(site: Started, directory: Path, line: str, python: str) -> Path:
    """An installation of the library alone, whose bin/monarch has this first line. Returns the
    interpreter, a fake."""
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
