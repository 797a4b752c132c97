"""Options that several commands share."""

import shlex
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from monarch_py.cli.messages import warn
from monarch_py.config.load import load_config
from monarch_py.config.schema import Config
from monarch_py.errors import ConfigError
from monarch_py.ipc.session import SessionDir, served_configurations
from monarch_py.util.launcher import launched, with_rank
from monarch_py.util.units import parse_size

CONFIG_HELP = (
    "The configuration, in YAML. {rank} in its name stands for the number that mpiexec or srun has"
    " given this process."
)


def _required(_context: Any, _parameter: Any, value: Path | None) -> Path:
    if value is None:
        raise ConfigError("no configuration is named; give -c tiers.yaml or set MONARCH_CONFIG")
    file = with_rank(value)
    # Report a missing file now, with two exceptions. Under a launcher every rank would report it,
    # so `bring_up` reports it once for all. If the session still exists, its daemon can be stopped
    # and its log read without the file.
    if launched() is None and not file.exists() and not SessionDir.of(file).path.exists():
        load_config(file)  # raises ConfigError, which says why it cannot be read
    return file


def _served(context: Any, parameter: Any, value: Path | None) -> Path:
    return _required(context, parameter, _only_served() if value is None else value)


def _only_served() -> Path:
    """The configuration of this user's only daemon on this node. Raises ConfigError if there is no
    daemon, or several."""
    served = served_configurations()
    if not served:
        raise ConfigError(
            "no configuration is named, and none of your daemons runs on this node; give"
            " -c tiers.yaml or set MONARCH_CONFIG"
        )
    if len(served) > 1:
        named = " or ".join(f"-c {shlex.quote(str(file))}" for file in served)
        raise ConfigError(f"{len(served)} of your daemons run on this node; give {named}")
    return served[0]


def _optional(_context: Any, _parameter: Any, value: Path | None) -> Path | None:
    return None if value is None else with_rank(value)


def _config(
    callback: Callable[..., Path | None], default: str = "$MONARCH_CONFIG"
) -> Callable[[Any], Any]:
    return click.option(
        "-c",
        "--config",
        "config_file",
        envvar="MONARCH_CONFIG",
        type=click.Path(path_type=Path),
        callback=callback,
        help=f"{CONFIG_HELP}  [default: {default}]",
    )


config_option = _config(_required)
# The option of commands that ask a running daemon.
served_config_option = _config(_served, "$MONARCH_CONFIG, else that of your only daemon here")
optional_config_option = _config(_optional)


def examples(*lines: str) -> str:
    """Returns the end of a command's help: lines that a user can copy. Tests run each of them."""
    return "\n".join(["\b", "Examples:", *(f"  {line}" for line in lines)])


def as_size(_context: Any, _parameter: Any, value: str | None) -> int | None:
    """The callback of an option that is a size."""
    try:
        return None if value is None else parse_size(value)
    except ValueError as error:
        raise click.BadParameter(str(error)) from None


as_json: Callable[[Any], Any] = click.option("--json", "as_json", is_flag=True, help="Print JSON.")


def checked(config_file: Path, *, with_sources: bool = True) -> Config:
    """Loads the configuration and shows its warnings. Raises ConfigError if it cannot work.

    with_sources : as for load_config
    """
    config = load_config(config_file, with_sources=with_sources)
    for warning in config.warnings:
        warn(warning)
    return config
