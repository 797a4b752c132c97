"""Adds sources to a running daemon, so that several jobs of a user can share one daemon."""

from collections.abc import Sequence
from dataclasses import replace

from monarch_py.config.schema import Config, SourceConfig
from monarch_py.errors import SilentError
from monarch_py.ipc.connection import DaemonConnection

# The message for a daemon that another job has started with other settings.
OTHERS_SETTINGS = (
    "the running daemon was started with other settings than those of {}; your settings apply only"
    " after `monarch stop`"
)


def add_sources(connection: DaemonConnection, sources: Sequence[SourceConfig]) -> list[str]:
    """Adds the sources that the running daemon does not serve yet. Returns the paths of the added
    sources. Raises SessionError if the daemon cannot add a source."""
    served = connection.ask("where")["sources"]
    lacking = [source for source in sources if str(source.real_path) not in served]
    return [str(source.path) for source in lacking if _is_added(connection, source)]


def _is_added(connection: DaemonConnection, source: SourceConfig) -> bool:
    try:
        return bool(connection.ask("add_source", source=source.words())["added"])
    except SilentError as error:
        raise SilentError(
            f"{source.path} is not added yet: its file system hangs, or {error}"
        ) from error


def settings_differ(connection: DaemonConnection, config: Config) -> bool:
    """Whether the settings of the running daemon differ from those of the configuration, including
    the settings of single sources. If the daemon's configuration files have changed since the
    daemon started, returns False, because the user gets another warning about this change."""
    found = connection.ask("where")
    served = [SourceConfig.from_words(words) for words in found.get("described", [])]
    return bool(found["is_current"]) and (
        found["settings"] != config.settings
        or any(_differs(source, each) for source in config.sources for each in served)
    )


def _differs(source: SourceConfig, served: SourceConfig) -> bool:
    """Whether the directory of `source` lies in the daemon's source `served`, but the two sources
    have different settings."""
    is_meant = source.real_path.is_relative_to(served.real_path)
    return is_meant and replace(served, path=source.path, real_path=source.real_path) != source
