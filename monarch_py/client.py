"""The commands' side of a session: asking the daemon, and looking at its segments."""

import json
import os
import socket
import time
from pathlib import Path
from typing import Any

from monarch_py.config import load_config
from monarch_py.errors import SessionError
from monarch_py.native import SessionState, ffi
from monarch_py.session import Segment, SessionDir

__all__ = ["HAS_CHANGED", "Client", "session_of"]

# What is said where a daemon serves already that has read another text in the configuration.
HAS_CHANGED = "{} has changed since its daemon was started; monarch stop, then start, takes it in"

# A daemon answers from memory; a stopped one must not keep a command waiting for ever [s].
ANSWER_LIMIT_S = 15.0
FULL_PAUSE_S = 0.01


def session_of(config_file: Path) -> SessionDir:
    """The session of a configuration that can be loaded (ConfigError otherwise)."""
    return SessionDir.of(load_config(config_file).file)


class Client:
    """Talks to the daemon of one session."""

    def __init__(self, session: SessionDir) -> None:
        self.session = session

    def ask(self, command: str, **arguments: Any) -> Any:
        """Sends one command and returns the answer; SessionError when no daemon answers."""
        connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        connection.settimeout(ANSWER_LIMIT_S)
        try:
            with connection:
                self._connect(connection)
                connection.sendall(json.dumps({"do": command, **arguments}).encode() + b"\n")
                line = connection.makefile("rb").readline()
        except TimeoutError as error:
            raise SessionError(
                f"the daemon does not answer within {ANSWER_LIMIT_S:.0f} s; is it stopped?"
            ) from error
        except OSError as error:
            raise SessionError(
                "no daemon serves this configuration; start one with `monarch start`"
            ) from error
        if not line.endswith(b"\n"):
            raise SessionError("the daemon ended before it answered")
        answer = json.loads(line)
        if isinstance(answer, dict) and "error" in answer:
            raise SessionError(str(answer["error"]))
        return answer

    def _connect(self, connection: socket.socket) -> None:
        directory = os.open(self.session.path, os.O_RDONLY | os.O_DIRECTORY)
        limit = time.monotonic() + ANSWER_LIMIT_S
        try:
            while True:
                try:
                    connection.connect(f"/proc/self/fd/{directory}/socket")
                    return
                except BlockingIOError:  # more come at once than the daemon takes in
                    if time.monotonic() > limit:
                        raise TimeoutError from None
                    time.sleep(FULL_PAUSE_S)
        finally:
            os.close(directory)

    def wait_until_dropped(self) -> None:
        """Returns when the files of all copies that were dropped are gone."""
        while self.ask("status")["dropping"]:
            time.sleep(0.02)

    def serves(self, pid: int | None = None) -> bool:
        """Whether a daemon (this process, if a number is given) lets clients in."""
        try:
            control = Segment.open(self.session.control, writable=False)
        except (OSError, ValueError):
            return False
        if len(control.memory) < ffi.sizeof("struct monarch_control"):
            return False
        found = control.as_struct("struct monarch_control")
        return int(found.state) == SessionState.SERVING and pid in (None, int(found.pid))

    def runs(self) -> bool:
        """Whether a daemon answers; one that died without a word does not."""
        try:
            self.ask("where")
        except SessionError:
            return False
        return True
