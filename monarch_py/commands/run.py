"""`monarch run`: runs a command under the preload library, with a daemon that serves it."""

import contextlib
import errno
import os
import shlex
import shutil
import signal
import stat
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from monarch_py.commands.sources import OTHERS_SETTINGS, add_sources, settings_differ
from monarch_py.config.schema import Config
from monarch_py.daemon.starting import SHARED, spawn
from monarch_py.errors import MonarchError, NoDaemonError, SessionError
from monarch_py.ipc.connection import DaemonConnection, troubles
from monarch_py.ipc.jobs import Jobs, can_see, jobs_of, own_job
from monarch_py.ipc.session import SessionDir
from monarch_py.ipc.shares import Shares, turn
from monarch_py.native import LIBRARY
from monarch_py.util.limits import met_limit
from monarch_py.util.processes import PROC, Identity
from monarch_py.util.signals import handling

# Exit statuses that a shell returns for a command that does not exist or cannot be executed.
NOT_FOUND, NOT_RUNNABLE = 127, 126
# If the name of a command contains one of these characters, the user has probably passed a complete
# shell command line as one argument.
SHELL_SIGNS = frozenset(" \t\n;&|<>()$`*?")
FORWARDED = (signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2)
# END_LIMIT_S: how long [s] a daemon may take to end after it has accepted the command `stop`. In
# this time, the daemon may have to remove many copies and to sync a tier's file system.
# SILENT_LIMIT_S: how long [s] a daemon that does not answer may take to end after SIGTERM.
END_LIMIT_S, SILENT_LIMIT_S = 600.0, 60.0
# How long [s] a daemon may take to end after SIGKILL.
KILL_LIMIT_S = 10.0


@dataclass(frozen=True, slots=True)
class Outcome:
    """The result of a run.

    exit_status : the exit status of the command; 128 + n if signal n ended the command
    report : the daemon's status after the command; None if the daemon's status is not known
    problem : why the command ran without a daemon, or why it could not run; "" if the command ran
        with a daemon
    before : the daemon's status before the command; None if the daemon's status is not known
    lost : why `report` is missing or incomplete; "" if it is complete
    """

    exit_status: int
    report: dict[str, Any] | None
    problem: str
    before: dict[str, Any] | None = None
    lost: str = ""


def why_unusable(name: str) -> Outcome | None:
    """Returns None if the command `name` can be executed. Otherwise returns an Outcome with the
    exit status that a shell would return."""
    if shutil.which(name) is not None:
        return None
    if shutil.which(name, os.F_OK) is not None or ("/" in name and _is_denied(name)):
        return Outcome(NOT_RUNNABLE, None, f"{name}: {os.strerror(errno.EACCES)}")
    hint = ""
    if SHELL_SIGNS & set(name):
        hint = f"; to run a line of the shell, use monarch run -- sh -c {shlex.quote(name)}"
    return Outcome(NOT_FOUND, None, f"{name}: command not found{hint}")


def _is_denied(path: str) -> bool:
    """Whether executing `path` fails with EACCES, because `path` is a directory, or lies below a
    directory that this user has no permission to search. Call this function only for a path that is
    not an executable file."""
    try:
        return stat.S_ISDIR(os.stat(path).st_mode)
    except OSError as error:
        return error.errno == errno.EACCES


def job_environment(config_file: Path, base: Mapping[str, str]) -> dict[str, str]:
    """Returns a copy of the environment `base`, with the variables that load the preload library
    into a program. Other libraries in LD_PRELOAD stay there, after the preload library."""
    base = {name: value for name, value in base.items() if name != "MONARCH_LEFT"}
    others = [p for p in base.get("LD_PRELOAD", "").split(":") if p and p != str(LIBRARY)]
    return {
        **base,
        "LD_PRELOAD": ":".join([str(LIBRARY), *others]),
        "MONARCH_CONFIG": str(config_file.resolve()),
    }


def _run(
    command: Sequence[str], environment: Mapping[str, str], starts: Callable[[Identity], None]
) -> int:
    """Runs the command and returns its exit status (128 + n for signal n).

    This process forwards the signals FORWARDED, which a batch system may send, to the command. It
    ignores SIGINT, and waits until the command ends. It does not forward SIGINT, because after
    Ctrl-C the terminal sends SIGINT to the command directly.

    starts : a function that records the command for the daemon. Its argument is the identity of the
        child process. The child process calls the function before it executes the command, so that
        the record exists even if this process is killed at once
    """
    child: subprocess.Popen[bytes] | None = None
    early: list[int] = []

    def forward(number: int, _frame: object) -> None:
        if child is None:
            early.append(number)
        else:
            child.send_signal(number)

    with handling(FORWARDED, forward), handling([signal.SIGINT], lambda *_: None):
        try:
            child = subprocess.Popen(
                command,
                env=environment,
                preexec_fn=lambda: starts(Identity.of(os.getpid())),  # noqa: PLW1509 - no threads
            )
        except OSError as error:
            is_missing = isinstance(error, FileNotFoundError)
            why = "command not found" if is_missing else error.strerror
            sys.stderr.write(f"monarch: {command[0]}: {why}\n")
            return NOT_FOUND if is_missing else NOT_RUNNABLE
        for number in early:
            child.send_signal(number)
        status = child.wait()
    return status if status >= 0 else 128 - status


def _serving(connection: DaemonConnection) -> Identity | None:
    """Returns the identity of the daemon that answers; None if no daemon answers."""
    with contextlib.suppress(SessionError):
        found = connection.ask("where")
        return Identity(int(found["pid"]), int(found["began"]))
    return None


def _end_daemon(connection: DaemonConnection, daemon: Identity) -> None:
    """Ends the daemon. Sends it the command `stop`, or SIGTERM if the daemon does not answer. If
    the daemon has not ended within the limit, sends SIGKILL."""
    is_asked = False
    if _serving(connection) == daemon:
        with contextlib.suppress(SessionError):
            connection.ask("stop")
            is_asked = True
    if not is_asked:
        daemon.send(signal.SIGTERM)
    if not daemon.wait(END_LIMIT_S if is_asked else SILENT_LIMIT_S):
        daemon.send(signal.SIGKILL)
        daemon.wait(KILL_LIMIT_S)


class _Share:
    """The use of a daemon by one run (`monarch run`). Several runs can share a daemon
    (`ipc.shares`).

    The first run starts the daemon, and the last run ends the daemon. There are three exceptions.
    First, a run may be killed while its command goes on. The daemon then continues to serve the
    command, and ends by itself later (`daemon.orphan`). Second, if other jobs need the daemon, the
    last run does not end the daemon. Third, no run ends a daemon that `monarch start` has started.
    """

    def __init__(self, config_file: Path, config: Config | None) -> None:
        self.config_file, self.config = config_file, config
        session = SessionDir.of(config_file)
        self.connection, self.shares = DaemonConnection(session), Shares(session)
        self._jobs = Jobs(session)
        self._child: subprocess.Popen[bytes] | None = None
        self._had_turn = False

    def begin(self) -> None:
        """Makes sure that a daemon serves until `end` is called. Raises MonarchError if no daemon
        can be started."""
        self.shares.take_turn()
        self._had_turn = True
        try:
            serving = _serving(self.connection)
            if serving is None:
                self._child = spawn(self.config_file, detach=False, kind=SHARED)
                self._tell_troubles()
            else:
                # The file `users` names the daemon that the last run must end. If the file does not
                # name the running daemon, then no run has started this daemon, and no run may end
                # it. A name in the file is that of an earlier daemon, so remove the name.
                if self.shares.daemon() != serving:
                    self.shares.note_daemon(None)
                with contextlib.suppress(SessionError):
                    self.connection.ask("job")
                self._share_settings()
            self.shares.join()
            self.shares.note_command(Identity.of(os.getpid()))
        finally:
            self.shares.leave_turn()

    def _share_settings(self) -> None:
        """Adds the missing sources to a daemon that runs already. Warns if another job has started
        the daemon with other settings."""
        if self.config is None:
            return
        try:
            add_sources(self.connection, self.config.sources)
            if settings_differ(self.connection, self.config):
                sys.stderr.write(f"monarch: {OTHERS_SETTINGS.format(self.config_file)}\n")
        except SessionError as error:
            sys.stderr.write(f"monarch: {error}\n")

    def _tell_troubles(self) -> None:
        with contextlib.suppress(SessionError):
            for trouble in troubles(self.connection.ask("status")):
                sys.stderr.write(f"monarch: {trouble}\n")

    def end(self) -> None:
        try:
            self.shares.leave()
            if not self._had_turn:
                return
            self.shares.take_turn()
            is_last = self.shares.is_unused() and not self.shares.has_command()
            if is_last and not (self._jobs.noted() or self._jobs.others()):
                daemon = self.shares.daemon()
                if daemon is not None:
                    _end_daemon(self.connection, daemon)
                self.shares.note_daemon(None)
        except (SessionError, OSError) as error:
            left = "; the daemon is left running" if self._had_turn else ""
            sys.stderr.write(f"monarch: {_words(error)}{left}\n")
        finally:
            with contextlib.suppress(OSError):
                self.shares.close()
        if self._child is not None:
            # The daemon has ended, or continues to serve other runs. This process need not wait for
            # the daemon. Set a return code, because Popen would otherwise warn that the child
            # process is running.
            self._child.returncode = 0


def keep_daemon(config_file: Path, kind: str = "") -> "subprocess.Popen[bytes] | None":
    """Makes sure that a daemon runs, and that no `monarch run` ends the daemon. If no daemon runs,
    starts one and returns its process. Otherwise returns None. Raises SessionError if the new
    daemon cannot be started.

    kind : the kind of a new daemon (`daemon.starting`), which determines when the daemon ends by
        itself. A daemon of the kind "" never ends by itself. If a daemon runs already and `kind` is
        "", the running daemon becomes a daemon of this kind
    """
    session = SessionDir.of(config_file)
    with turn(session) as shares:
        connection, child = DaemonConnection(session), None
        if not connection.runs():
            child = spawn(config_file, detach=True, kind=kind)
        elif not kind:
            with contextlib.suppress(SessionError):  # daemons of older versions lack this command
                connection.ask("stay")
        shares.note_daemon(None)
        Jobs(session).note()
        return child


@contextlib.contextmanager
def seen_others(session: SessionDir) -> Iterator[list[str]]:
    """Yields a list of the jobs, except this one, that use the daemon. Inside the `with` block, no
    further job can begin to use the daemon. Raises SessionError if this process cannot see which
    jobs use the daemon."""
    if not session.path.exists():
        yield []
        return
    with turn(session) as shares:
        try:
            found = DaemonConnection(session).ask("where")
        except NoDaemonError:
            yield []
            return
        if not can_see(found.get("pid_namespace", 0)):
            raise SessionError(
                "the daemon runs outside this container (in another PID namespace), so this"
                " command cannot see which jobs use it; run the command outside, or with --force"
            )
        running = jobs_of(PROC / str(each.pid) for each in shares.commands())
        yield sorted({*running, *Jobs(session).others()} - {own_job()})


def leave_to_others(session: SessionDir) -> None:
    """Makes the daemon end by itself when no run and no job needs it. The caller must hold the lock
    `ipc.shares.turn`."""
    with contextlib.suppress(SessionError):  # daemons of older versions lack this command
        DaemonConnection(session).ask("let_go")


def listed_jobs(jobs: Sequence[str]) -> str:
    """Returns a clause that says which jobs use the daemon."""
    if len(jobs) == 1:
        return f"job {jobs[0]} uses the daemon"
    return f"jobs {', '.join(jobs)} use the daemon"


def run_job(
    config_file: Path,
    command: Sequence[str],
    config: Config | None = None,
    *,
    is_recorded: bool = False,
) -> Outcome:
    """Runs the command with the preload library.

    config : the configuration in `config_file`. If a daemon runs already, this function adds the
        configuration's sources to the daemon
    is_recorded : whether the report includes the fields for `monarch report` (commands/record.py)

    If `monarch start` has started a daemon for the configuration, the run uses this daemon and
    leaves it running. Otherwise the first run starts a daemon, and the last run that uses the
    daemon ends it. If no daemon can be started, the command runs anyway and reads from the source.
    If a signal arrives before the command runs, this process ends (SystemExit). If this process has
    started a daemon, it ends the daemon too.
    """
    with handling([signal.SIGTERM, signal.SIGHUP], lambda number, _: sys.exit(128 + number)):
        return _run_job(config_file, command, config, is_recorded=is_recorded)


def _run_job(
    config_file: Path, command: Sequence[str], config: Config | None, *, is_recorded: bool
) -> Outcome:
    try:
        share = _Share(config_file, config)
    except (MonarchError, OSError) as error:  # e.g. the session's directory cannot be made
        problem = _tell_problem(error)
        return Outcome(_run(command, os.environ, lambda _: None), None, problem)
    problem, report, lost = "", None, ""
    before: dict[str, Any] | None = None
    try:
        try:
            share.begin()
            with contextlib.suppress(SessionError):
                before = share.connection.ask("status")
        except (MonarchError, OSError) as error:
            problem = _tell_problem(error)
        environment = dict(os.environ) if problem else job_environment(config_file, os.environ)
        status = _run(command, environment, share.shares.note_command)
        try:
            report = share.connection.ask("status")
            if is_recorded:
                from monarch_py.commands.record import record

                report |= record(share.connection, report)
        except NoDaemonError:
            lost = "the daemon ended before the command; see `monarch logs`"
        except SessionError as error:
            lost = str(error)
    finally:
        with handling([*FORWARDED, signal.SIGINT], lambda *_: None):
            share.end()
    return Outcome(status, report, problem, before, lost)


def _tell_problem(error: MonarchError | OSError) -> str:
    problem = _words(error)
    sys.stderr.write(f"monarch: {problem}; the command reads from the source\n")
    return problem


def _words(error: MonarchError | OSError) -> str:
    if not isinstance(error, OSError):
        return str(error)
    if limit := met_limit(error.errno):
        return limit
    why = error.strerror or str(error)
    return f"{error.filename}: {why}" if error.filename else why
