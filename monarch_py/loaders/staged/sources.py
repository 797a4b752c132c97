"""Where this node's programs have found the files that they opened, as its daemon counts them."""

import os
from pathlib import Path

from monarch_py.errors import SessionError
from monarch_py.ipc.connection import DaemonConnection
from monarch_py.ipc.session import SessionDir
from monarch_py.util.launcher import with_rank


def daemon_sources() -> dict[str, int]:
    """What the daemon of $MONARCH_CONFIG has counted since its start, of all programs: opens that
    found copies, opens that went to the source, and bytes that other nodes gave. Empty if there is
    no such daemon."""
    configuration = os.environ.get("MONARCH_CONFIG")
    if not configuration:
        return {}
    try:
        connection = DaemonConnection(SessionDir.of(with_rank(Path(configuration))))
        totals = connection.ask("status")["totals"] if connection.serves() else None
    except (SessionError, OSError):
        return {}
    if totals is None:
        return {}
    return {
        "copies": int(totals["hits"]),
        "source": int(totals["misses"]),
        "bytes_from_peers": int(totals["bytes_from_peers"]),
    }
