"""Runs a program that opens a dataset file whenever a test tells it to. Also injects faults into
the program and the processes that it starts."""

from __future__ import annotations

import errno
import os
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from autostart.started import Started
from support.session import wait_until


class Opens:
    """Runs opens.c until the context ends.

    prefix : a command that runs the program; the command itself is not under the library
    preload : whether the program is under the library
    """

    def __init__(
        self,
        site: Started,
        program: Path,
        file: Path,
        *,
        prefix: Sequence[str | Path] = (),
        preload: bool = True,
        **more: Any,
    ) -> None:
        given = site.session.env(True) if preload else {}
        self.process = subprocess.Popen(
            [*prefix, "env", *(f"{name}={value}" for name, value in given.items()), program, file],
            env={"PATH": os.environ["PATH"]},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            **more,
        )

    def __enter__(self) -> Opens:
        return self

    def __exit__(self, *_: object) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.communicate()

    def open(self, how: str = "open") -> str:
        """Has the program open its file. Returns the line that the program prints: descriptor,
        errno and checksum."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(how + "\n")
        self.process.stdin.flush()
        line: str = self.process.stdout.readline()
        assert line, f"the program ended ({self.process.wait()})"
        return line


class Faulter:
    """The faults that starter_faults.c injects into a program and into the processes that this
    program starts. The program is run by a command line that begins with `prefix`.

    faults : WHO:CALL:NUMBER:FAULT as in starter_faults.c; FAULT may also be the name of an errno
    """

    def __init__(self, program: Path, log: Path, faults: Sequence[str]) -> None:
        self.log = log
        numbered = []
        for fault in faults:
            place, _, what = fault.rpartition(":")
            numbered.append(f"{place}:{getattr(errno, what, what)}")
        self.prefix = [str(program), str(log), *numbered, "--"]

    def made(self) -> dict[int, int]:
        """Returns the faults made so far: index of the fault in `faults` -> ID of the process that
        got the fault."""
        lines = self.log.read_text().splitlines() if self.log.exists() else []
        return {int(number): int(process) for number, process in map(str.split, lines)}

    def wait_for(self, number: int, opens: Opens, expected: str, how: str = "open") -> int:
        """Has the program open its file again and again until the fault has been made. After each
        open the program must print `expected`. Returns the ID of the process that got the fault.

        number : index of the fault in `faults`
        """

        def is_made() -> bool:
            assert opens.open(how) == expected
            return number in self.made()

        wait_until(is_made, what=f"fault {number} of {self.prefix}", every=0.02)
        return self.made()[number]
