"""The configuration: reads and checks it, and says which files of a source it selects."""

from monarch_py.config._disk import mount_options
from monarch_py.config.load import load_config
from monarch_py.config.patterns import PathFilter
from monarch_py.config.performance import Performance
from monarch_py.config.schema import (
    SYSTEM_SWITCH_FILE,
    Config,
    PeersConfig,
    SourceConfig,
    TierConfig,
    Tuning,
)

__all__ = [
    "SYSTEM_SWITCH_FILE",
    "Config",
    "PathFilter",
    "PeersConfig",
    "Performance",
    "SourceConfig",
    "TierConfig",
    "Tuning",
    "load_config",
    "mount_options",
]
