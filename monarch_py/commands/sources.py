"""Adds sources to a daemon that runs, so that several jobs of a user share it."""

from collections.abc import Sequence

from monarch_py.config.schema import Config, SourceConfig
from monarch_py.ipc.connection import DaemonConnection

# The message for a daemon that another job has started with other settings.
OTHERS_SETTINGS = (
    "the daemon that runs was started with other settings than {} has; they apply after `monarch"
    " stop`"
)


def add_sources(connection: DaemonConnection, sources: Sequence[SourceConfig]) -> list[str]:
    """Gives the running daemon those sources that it lacks. Returns their paths. Raises
    SessionError if the daemon cannot take one."""
    served = connection.ask("where")["sources"]
    lacking = [source for source in sources if str(source.real_path) not in served]
    for source in lacking:
        connection.ask("add_source", source=source.words())
    return [str(source.path) for source in lacking]


def settings_differ(connection: DaemonConnection, config: Config) -> bool:
    """Whether the running daemon has other settings than the configuration, although the files
    that it read are the same as at its start."""
    found = connection.ask("where")
    return bool(found["is_current"]) and found["settings"] != config.settings
