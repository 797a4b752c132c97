"""Finds the batch jobs that use a session, so that no job ends a daemon that another job needs.

The batch system passes a job's number to the job's processes in an environment variable.
`monarch start` records its job in the session's directory. Any other job is found if one of its
processes has mapped a segment of the session.
"""

import os
import re
import time
from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path

from monarch_py.ipc.session import SessionDir
from monarch_py.util.processes import mapping, own_processes

# One line for each batch system. The first variable contains the number of the job. In some batch
# systems, all elements of a job array have the same number. For these, the second variable contains
# the number of the element. Users of other batch systems can set MONARCH_JOB.
VARIABLES = {
    "MONARCH_JOB": "",
    "SLURM_JOB_ID": "",
    "PBS_JOBID": "",
    "LSB_JOBID": "LSB_JOBINDEX",
    "FLUX_JOB_ID": "",
    "JOB_ID": "SGE_TASK_ID",
}
# The command line of a daemon contains this text if `spawn` (daemon/starting.py) has started the
# daemon.
DAEMON = b"monarch_py.daemon.lifecycle"
# For this long [s] after `monarch start`, a job counts as running even without a process: a prolog
# may start the daemon before the job begins.
NEW_S = 60.0
# The inode number of the kernel's first PID namespace (PROC_PID_INIT_INO). Processes in this
# namespace see all processes.
FIRST_NAMESPACE = 0xEFFFFFFC


def _job_of(environment: Mapping[str, str]) -> str:
    """Returns the job of a process with this environment, in a form that can be part of a file
    name; "" if the process belongs to no job."""
    named = next((name for name in VARIABLES if environment.get(name)), None)
    if named is None:
        return ""
    words = (environment[named], environment.get(VARIABLES[named], ""))
    return re.sub(r"[^\w.-]", "_", ".".join(filter(None, words)))[:200]


def own_job() -> str:
    """Returns the job of this process; "" outside a batch system."""
    return _job_of(os.environ)


def pid_namespace() -> int:
    """Returns the inode number of this process's PID namespace; 0 if the kernel does not provide
    this number."""
    with suppress(OSError):
        return os.stat("/proc/self/ns/pid").st_ino
    return 0


def can_see(namespace: int) -> bool:
    """Returns whether this process sees the processes of a PID namespace. A process in a container
    does not see processes outside the container."""
    return pid_namespace() in (namespace, FIRST_NAMESPACE)


def jobs_of(processes: Iterable[Path]) -> set[str]:
    """Returns the jobs of these processes. Skips daemons: a daemon has the environment of the job
    that has started it, but may outlive that job."""
    return {_job_of(_environment(each)) for each in processes if not _is_daemon(each)} - {""}


def _is_daemon(process: Path) -> bool:
    try:
        return DAEMON in (process / "cmdline").read_bytes()
    except OSError:
        return False


def _environment(process: Path) -> dict[str, str]:
    with suppress(OSError):
        words = (process / "environ").read_bytes().decode(errors="replace").split("\0")
        return dict(word.split("=", 1) for word in words if "=" in word)
    return {}


class Jobs:
    """The jobs of one session."""

    def __init__(self, session: SessionDir) -> None:
        self._session = session
        self._notes = session.path / "jobs"

    def note(self) -> None:
        """Records that this process's job needs the daemon. The record is valid until the job calls
        `leave`, or ends."""
        if job := own_job():
            with suppress(OSError):
                self._notes.mkdir(mode=0o700, exist_ok=True)
                (self._notes / job).write_text(f"{pid_namespace()}\n")

    def leave(self) -> None:
        """Records that this process's job no longer needs the daemon."""
        with suppress(OSError):
            (self._notes / (own_job() or "-")).unlink(missing_ok=True)

    def others(self) -> list[str]:
        """Returns the other jobs that use the session, sorted."""
        attached = jobs_of(mapping(f"{self._session.path}/"))
        return sorted({*attached, *self.noted()} - {own_job()})

    def noted(self) -> set[str]:
        """Returns the recorded jobs that may be running: new jobs, jobs with processes, and jobs
        whose processes this process cannot see. Removes the records of all others."""
        notes, found = list(self._notes.glob("*")), set()
        running = jobs_of(own_processes()) if notes else set()
        for note in notes:
            with suppress(OSError):
                is_new = time.time() - note.stat().st_mtime < NEW_S
                if note.name in running or is_new or not can_see(int(note.read_text() or 0)):
                    found.add(note.name)
                else:
                    note.unlink()
        return found
