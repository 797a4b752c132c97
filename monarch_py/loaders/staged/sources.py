"""Asks the node's daemon how many opens of files found copies, and how many went to the source."""

from monarch_py.config.layers import default_file
from monarch_py.errors import SessionError
from monarch_py.ipc.connection import DaemonConnection
from monarch_py.ipc.session import SessionDir
from monarch_py.util.launcher import with_rank


def daemon_sources() -> dict[str, int]:
    """Returns counts of the daemon of this process's configuration, since the daemon's start and
    for all programs: how many opens of files found copies (`copies`), how many went to the source
    (`source`), and how many bytes other nodes sent (`bytes_from_peers`). Returns an empty dict if
    the daemon does not run."""
    configuration = default_file()
    if configuration is None:
        return {}
    try:
        connection = DaemonConnection(SessionDir.of(with_rank(configuration)))
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
