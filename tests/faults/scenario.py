"""The processes that run while one of them gets a fault, and what must hold afterwards."""

from __future__ import annotations

import os
import platform
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from csrc.building import build_program
from support.manifests import copies_in
from support.session import MIB, Session, wait_until
from trials.reading import CALL_LIMIT_S, Reading, make_known

from faults.calls import CALLS
from faults.classes import CallClass, read_trace

__all__ = [
    "END_LIMIT_S",
    "LAPS_LIMIT_S",
    "SIZES",
    "Outcome",
    "Site",
    "build_faulter",
    "end",
    "is_ours",
    "look_at_shared_memory",
    "noted_in",
]

FAULTER = Path(__file__).with_name("faulter.c")
SIZES = {
    seed: size
    for seed, size in enumerate([0, 1, 4095, 4096, 70_001, *[9000 + 37 * i for i in range(8)]], 1)
} | {101: 600_017, 102: 600_017, 103: 3 * MIB + 5}
# The tier in memory is too small for all files, so the larger files go to the tier on the disk.
RAM_BYTES, DISK_BYTES = MIB, 64 * MIB
LAPS_LIMIT_S, END_LIMIT_S = 40.0, 20.0
OLD_S = 2.5
# If a trace has fewer classes of calls (CallClass) than this, the traced process did not work.
LEAST_CLASSES = 50
# The exit status of faulter.c if it cannot trace.
TRACER = 125
# If the target of a call begins with one of these words, the library makes the call for its own
# work, and not on behalf of the program.
MONARCHS = ("/shm", "/tier", "/dev", "/proc", "/sys", "socket")
# Calls that the library passes on unchanged, even for the descriptor of a copy.
PASSED_ON = ("clone", "fcntl", "mmap", "newfstatat")
# Files that a session may leave in shared memory besides its logs. `stopped` marks an orderly end;
# the other two are locks of runs that share a daemon.
LEFT = {"stopped", "turn", "users"}
# Calls by which the interpreter and libc get memory.
MEMORY = ("mmap", "mprotect", "mremap", "munmap", "madvise")
# The first components of the paths of the system's files, of the Python installation and of this
# repository.
ELSEWHERE = {
    f"/{Path(place).parts[1]}"
    for place in ("/bin", "/etc", "/lib", "/opt", "/usr", sys.prefix, sys.base_prefix, __file__)
}


def build_faulter(directory: Path) -> Path:
    if platform.machine() != "x86_64":
        pytest.skip("calls.py identifies system calls by their numbers on x86-64")
    found = subprocess.run(
        ["pkg-config", "--libs", "libunwind-ptrace", "libunwind-generic"],
        capture_output=True,
        text=True,
        check=False,
    )
    if found.returncode != 0:
        pytest.skip("libunwind-ptrace is missing: install libunwind-dev")
    libraries = found.stdout.split()
    return build_program(
        directory / "faulter", FAULTER, flags=["-O2", "-Wl,--no-as-needed", *libraries]
    )


def is_ours(role: str, call: CallClass) -> bool:
    """Returns whether Monarch must tolerate a fault in this call. In two cases, it need not. First,
    a program must get the errors of its own calls. The same holds for a call that the library makes
    in the program's place, unless it is a call on one of Monarch's own files. Second, a Python
    process cannot go on if its interpreter gets no memory or cannot load a module."""
    if role == "reader":
        is_passed_on = len(call.frames) == 1 and call.call in PASSED_ON
        is_passed_on &= call.call != "newfstatat" or not call.target
        is_monarchs = not call.target or call.target.startswith(MONARCHS)
        return bool(call.frames) and is_monarchs and not is_passed_on
    is_memory = call.call in MEMORY and not call.frames and not call.target
    return call.target not in ELSEWHERE and not is_memory


@dataclass(slots=True)
class Outcome:
    """The outcome of a run.

    hit : whether a call got the fault
    ended : how the traced process ended
    broken : the promises that were broken
    """

    hit: bool = False
    ended: str = "not at all"
    broken: list[str] = field(default_factory=list)


class Site:
    """A dataset, a tier in memory, a tier on the disk, and the processes that use them. All files
    are in directories that only this site uses, and that are removed when the context ends."""

    disk_bytes = DISK_BYTES

    def __init__(self, faulter: Path, reader: Path) -> None:
        self._faulter, self._reader = faulter, reader
        self.directory = Path(tempfile.mkdtemp(prefix="monarch-faults-"))
        self.memory = Path(tempfile.mkdtemp(prefix="monarch-faults-", dir="/dev/shm"))
        self.source = self.directory / "source"
        self.source.mkdir()
        make_known(self.source, SIZES)
        self.log = self.directory / "faults.log"
        # Let the files grow older. When a session ends, it drops the copies of files that had
        # changed shortly before they were copied.
        time.sleep(OLD_S)

    def __enter__(self) -> Site:
        return self

    def __exit__(self, *_: object) -> None:
        shutil.rmtree(self.directory, ignore_errors=True)
        shutil.rmtree(self.memory, ignore_errors=True)

    # --- tracing --------------------------------------------------------------------------------

    def classes(self, role: str) -> list[CallClass]:
        """Traces a process of this role without a fault. Returns its classes of calls."""
        outcome = self._run(role, ["trace"])
        found = read_trace(self.log)
        assert not outcome.broken and len(found) >= LEAST_CLASSES, outcome
        return found

    def fault(self, role: str, call: CallClass, action: str) -> Outcome:
        """Runs the scenario with a fault in call number `call.middle` of the class. If the class
        has fewer calls in this run, because threads run in another order, runs the scenario again
        with a fault in the first call of the class."""
        outcome = Outcome()
        for number in (call.middle, 1):
            self._clear()
            outcome = self._run(role, [action, str(number), call.key])
            outcome.hit = self.log.exists() and "hit" in self.log.read_text()
            if outcome.hit or outcome.broken:
                break
        return outcome

    def _clear(self) -> None:
        places = (self.directory / name for name in ("tier", "shm", "area"))
        for place in (self.memory / "tier", *places):
            shutil.rmtree(place, ignore_errors=True)
        for file in (self.log, self.directory / "daemon.log"):
            file.unlink(missing_ok=True)

    def _prefix(self, words: Sequence[str]) -> list[str]:
        looked_at = ",".join(f"{call.number}:{call.target}" for call in CALLS.values())
        places = ":".join(map(str, self._places()))
        return [str(self._faulter), looked_at, places, str(self.log), *words, "--"]

    def _places(self) -> list[Path]:
        """Returns the directories that faulter.c leaves out of the paths in a call's class. A
        directory comes before the directories that contain it."""
        return [self.directory, self.memory]

    # --- what runs ------------------------------------------------------------------------------

    def _session(self) -> Session:
        (self.memory / "tier").mkdir(exist_ok=True)
        (self.directory / "tier").mkdir(exist_ok=True)
        tiers = [
            {"mount_point": self.memory / "tier", "max_storage_quota": RAM_BYTES},
            {
                "mount_point": self.directory / "tier",
                "max_storage_quota": self.disk_bytes,
                "persistent": True,
            },
        ]
        return Session(self.directory, self.source, tiers=tiers, **self._settings())

    def _settings(self) -> dict[str, Any]:
        return {"prefetch": "auto"}

    @contextmanager
    def _reading(self, session: Session, prefix: Sequence[str] = ()) -> Iterator[Reading]:
        state = self.directory / "state"
        with Reading(
            self._reader, session, self.source, SIZES, state, seed=7, threads=2, prefix=prefix
        ) as reading:
            yield reading

    def _run(self, role: str, words: Sequence[str]) -> Outcome:
        outcome = Outcome()
        prefix = self._prefix(words)
        session = self._session()
        with ExitStack() as stack:
            stack.callback(end, session, outcome, () if role == "reader" else words)
            self._start(session, prefix if role != "reader" else [], outcome)
            with noted_in(outcome, "the reader"):
                faulty = (prefix, words) if role == "reader" else ((), ())
                self._use(session, *faulty)
        self._look_at_what_is_left(outcome)
        return outcome

    def _start(self, session: Session, prefix: Sequence[str], outcome: Outcome) -> None:
        """Starts the daemon, and waits until it serves or has ended. A daemon with a fault may end;
        programs then read the source."""
        session.start(wait=False, prefix=prefix)
        daemon = session.daemon
        assert daemon is not None

        def is_settled() -> bool:
            if daemon.poll() is not None:
                return True
            with suppress(Exception):
                return bool(session.connection.serves() and session.connection.runs())
            return False

        with noted_in(outcome, "the daemon's start"):
            wait_until(is_settled, timeout=END_LIMIT_S, what="the daemon's start, or its end")

    def _use(self, session: Session, prefix: Sequence[str], words: Sequence[str]) -> None:
        """Reads all files twice. Then touches one file, replaces another by an identical one, and
        reads all files once more. Only a reader whose fault is a kill may end early."""
        with self._reading(session, prefix) as reading:
            try:
                reading.wait_laps(2, LAPS_LIMIT_S)
                self._change()
                reading.wait_laps(1, LAPS_LIMIT_S)
                reading.end(END_LIMIT_S)
            except AssertionError:
                if words[:1] != ["kill"] or reading.process.poll() != -signal.SIGKILL:
                    raise

    def _change(self) -> None:
        os.utime(self.source / "5")
        fresh = self.directory / "fresh"
        shutil.copyfile(self.source / "7", fresh)
        fresh.rename(self.source / "7")

    # --- what must hold -------------------------------------------------------------------------

    def _look_at_what_is_left(self, outcome: Outcome) -> None:
        """Checks that another daemon can start and leaves nothing behind. Also checks that all
        copies are right, including those that the earlier daemon has made."""
        session = self._session()
        session.log.unlink(missing_ok=True)
        with noted_in(outcome, "the next session"), session:
            session.start()
            with self._reading(session) as reading:
                reading.wait_laps(1, LAPS_LIMIT_S)
                reading.end(END_LIMIT_S)
            session.wait_idle(END_LIMIT_S)
            verified = session.monarch("verify")
            assert verified.returncode == 0, verified.stdout + verified.stderr
        for tier, is_kept in ((0, False), (1, True)):
            known = set(copies_in(session, tier).values()) if is_kept else set()
            lying = {p for p in session.tiers[tier].rglob("c/*") if p.is_file()}
            if lying - known:
                outcome.broken.append(
                    f"tier {tier} has {len(lying - known)} copies that no manifest records"
                )
        if left := list(self.directory.glob("area/**/c/*")):
            outcome.broken.append(f"the staging area has {len(left)} copies")
        look_at_shared_memory(session, outcome)


@contextmanager
def noted_in(outcome: Outcome, what: str) -> Iterator[None]:
    try:
        yield
    except Exception as error:
        outcome.broken.append(f"{what}: {type(error).__name__}: {str(error)[:400]}")


def end(session: Session, outcome: Outcome, words: Sequence[str] = ()) -> None:
    """Ends the daemon, and checks that it ends in time and with status 0. A daemon that gets a
    fault may have been killed by the fault instead, or have ended with a message that gives the
    reason.

    words : the arguments of the daemon's tracer; empty if the daemon gets no fault
    """
    daemon = session.daemon
    assert daemon is not None
    had_ended = daemon.poll() is not None
    if not had_ended:
        daemon.terminate()
    began_s = time.monotonic()
    try:
        daemon.wait(END_LIMIT_S)
    except subprocess.TimeoutExpired:
        outcome.broken.append(f"the daemon did not end within {END_LIMIT_S:.0f} s")
        daemon.kill()
        daemon.wait()
    status = daemon.returncode
    if time.monotonic() - began_s > CALL_LIMIT_S + _delay_s(words):
        outcome.broken.append("the daemon's end took too long")
    log = "".join(p.read_text(errors="replace") for p in session.shm.rglob("log*"))
    if session.log.exists():
        log += session.log.read_text(errors="replace")
    if "Traceback" in log:
        outcome.broken.append("Traceback: " + log[log.rindex("Traceback") :][-600:])
    is_killed = words[:1] == ["kill"] and status == -signal.SIGKILL
    has_said_why = words and 0 < status < TRACER and re.search(r"^monarch: ", log, re.M)
    if not is_killed and not has_said_why and (status or had_ended):
        when = "by itself " if had_ended else ""
        outcome.broken.append(f"the daemon ended {when}with status {status}: {log[-300:]}")
    if words:
        outcome.ended = f"status {status}"


def _delay_s(words: Sequence[str]) -> float:
    """Returns by how long the fault delays a call [s]."""
    action, _, ms = words[0].partition("=") if words else ("", "", "")
    return int(ms) / 1000 if action == "delay" else 0.0


def look_at_shared_memory(session: Session, outcome: Outcome) -> None:
    """Checks that an ended session left only logs, and files named in LEFT, in shared memory."""
    left = {path.name for path in session.shm.rglob("*") if path.is_file()}
    if left := {name for name in left if not name.startswith("log") and name not in LEFT}:
        outcome.broken.append(f"shared memory has {sorted(left)}")
