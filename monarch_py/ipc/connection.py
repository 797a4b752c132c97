"""A command's connection to its session: sends requests to the daemon, and reads the session's
segments in shared memory."""

import json
import os
import socket
import time
from typing import Any

from monarch_py.errors import NoDaemonError, SessionError, SilentError
from monarch_py.ipc.session import Segment, SessionDir, holder_of, shm_root
from monarch_py.native import SessionState

# The message if a configuration was changed after its daemon had read it.
HAS_CHANGED = (
    "{} has changed since its daemon was started; run `monarch stop` and `monarch start` to apply"
    " the change"
)

# The time limit for an answer [s]. A daemon has all answers in memory, so a daemon that takes
# longer is probably suspended (SIGSTOP). A command must not wait for such a daemon.
ANSWER_LIMIT_S = 15.0
# If the daemon's accept queue is full, a command tries to connect again after this pause [s].
FULL_PAUSE_S = 0.01


def troubles(report: dict[str, Any]) -> list[str]:
    """Returns a sentence for each problem in a status report: a tier is not used, has lost copies
    or cannot record copies; threads have failed; the catalog cannot grow."""
    said = [tier.get(key) for tier in report["tiers"] for key in ("why", "lost", "unrecorded")]
    if failed := ", ".join(report["thread_failures"]):
        said.append(
            f"threads of the daemon have failed: {failed}; see `monarch logs`, then run"
            " `monarch stop` and `monarch start`"
        )
    return [text for text in (*said, catalog_trouble(report)) if text]


def shortages(report: dict[str, Any]) -> list[str]:
    """Returns one sentence for each tier whose file system has less room than the tier's quota."""
    return [text for tier in report["tiers"] if (text := tier.get("shortage"))]


def catalog_trouble(report: dict[str, Any]) -> str:
    if not report["catalog_full"]:
        return ""
    return (
        f"shared memory is full: the catalog holds {report['catalog_entries']:,} names, and the"
        f" source serves all other files; enlarge {shm_root()}, give the tiers another file system,"
        " or narrow the sources with include and exclude"
    )


class DaemonConnection:
    """Communicates with the daemon of one session."""

    def __init__(self, session: SessionDir) -> None:
        self.session = session

    def ask(self, command: str, **arguments: Any) -> Any:
        """Sends one command and returns the daemon's answer. Raises NoDaemonError if no daemon
        serves the session, SilentError if the daemon does not answer, and SessionError if it
        refuses the command."""
        connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        connection.settimeout(ANSWER_LIMIT_S)
        try:
            with connection:
                self._connect(connection)
                connection.sendall(json.dumps({"do": command, **arguments}).encode() + b"\n")
                line = connection.makefile("rb").readline()
        except TimeoutError as error:
            raise SilentError(
                f"the daemon does not answer within {ANSWER_LIMIT_S:.0f} s; it may be suspended"
                " (SIGSTOP) or very busy"
            ) from error
        except OSError as error:
            raise NoDaemonError(self._why_none()) from error
        if not line.endswith(b"\n"):
            raise SessionError("the daemon ended before it answered")
        answer = json.loads(line)
        if isinstance(answer, dict) and "error" in answer:
            raise SessionError(str(answer["error"]))
        return answer

    def _why_none(self) -> str:
        if not self.session.control.exists():
            return "no daemon serves this configuration; start one with `monarch start`"
        if (holder := holder_of(self.session.lock)) is not None:
            return (
                f"the daemon ({holder}) runs but accepts no commands: it is ending, or lacks"
                " memory, threads or descriptors; see `monarch logs`"
            )
        return (
            "the daemon of this configuration was killed or crashed (see `monarch logs`); start"
            " another with `monarch start`"
        )

    def _connect(self, connection: socket.socket) -> None:
        directory = os.open(self.session.path, os.O_RDONLY | os.O_DIRECTORY)
        limit = time.monotonic() + ANSWER_LIMIT_S
        try:
            while True:
                try:
                    connection.connect(f"/proc/self/fd/{directory}/socket")
                    return
                except BlockingIOError:  # the daemon's accept queue is full
                    if time.monotonic() > limit:
                        raise TimeoutError from None
                    time.sleep(FULL_PAUSE_S)
        finally:
            os.close(directory)

    def wait_until_dropped(self) -> None:
        """Waits until the daemon has removed the files of all dropped copies."""
        while self.ask("status")["dropping"]:
            time.sleep(0.02)

    def serves(self, pid: int | None = None) -> bool:
        """Returns whether, according to the control segment, a daemon serves the session, and has
        this `pid` if one is given. A killed daemon leaves the segment as it was, so the result may
        be out of date; `runs` asks the daemon itself."""
        try:
            control = Segment.open(self.session.control, writable=False)
            found = control.as_struct("struct monarch_control")
        except (OSError, ValueError):
            return False
        return int(found.state) == SessionState.SERVING and pid in (None, int(found.pid))

    def runs(self) -> bool:
        """Returns whether a daemon answers."""
        try:
            self.ask("where")
        except SessionError:
            return False
        return True
