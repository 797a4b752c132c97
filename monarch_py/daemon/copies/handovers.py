"""The sockets over which programs hand the engine descriptors of files that they have read."""

import logging
import socket

from monarch_py.config import Config
from monarch_py.daemon.copies.engine import Engine
from monarch_py.ipc.session import SessionDir

log = logging.getLogger("monarch.handovers")


class Handovers:
    """The sockets for handovers. They are open until `close`, which comes after the engine's
    end."""

    def __init__(self, config: Config, session: SessionDir, engine: Engine) -> None:
        """`most_bytes` is the size up to which files are handed over [bytes]. It is 0, and nothing
        is taken, where the sockets cannot be made or opens are no reason to fill."""
        self.most_bytes = 0
        self._sockets: list[socket.socket] = []
        if config.prefetch == "none" or config.fill_after or not config.handover_bytes:
            return
        try:
            for path in session.handovers:
                self._sockets.append(socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM))
                session.bind(self._sockets[-1], path)
        except OSError as error:
            log.warning("programs cannot hand over descriptors: %s", error)
            return
        if engine.take_handovers([one.fileno() for one in self._sockets]):
            self.most_bytes = config.handover_bytes

    def close(self) -> None:
        for one in self._sockets:
            one.close()
