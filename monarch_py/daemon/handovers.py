"""The socket by which programs hand descriptors of files that they have read to the copy engine."""

import logging
import socket

from monarch_py.config import Config
from monarch_py.daemon.engine import Engine
from monarch_py.session import SessionDir

__all__ = ["Handovers"]

log = logging.getLogger("monarch.handovers")


class Handovers:
    """Open until `close`, which comes after the engine's end."""

    def __init__(self, config: Config, session: SessionDir, engine: Engine) -> None:
        """Where the socket cannot be made, or opens are no reason to fill, nothing is taken, and
        `most_bytes` is 0: of a file that is handed over [bytes]."""
        self.most_bytes = 0
        self._socket: socket.socket | None = None
        if config.prefetch == "none" or config.fill_after or not config.handover_bytes:
            return
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        try:
            session.bind(self._socket, session.handovers)
        except OSError as error:
            log.warning("programs cannot hand descriptors over: %s", error)
            return
        if engine.take_handovers(self._socket.fileno()):
            self.most_bytes = config.handover_bytes

    def close(self) -> None:
        if self._socket is not None:
            self._socket.close()
