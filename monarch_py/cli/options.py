"""Options that several commands share."""

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from monarch_py.config import Config, load_config
from monarch_py.errors import ConfigError
from monarch_py.launcher import launched, with_rank
from monarch_py.session import SessionDir

__all__ = ["as_json", "checked", "config_option", "optional_config_option"]


def _required(_context: Any, _parameter: Any, value: Path | None) -> Path:
    if value is None:
        raise ConfigError("no configuration is named; give -c tiers.yaml or set MONARCH_CONFIG")
    file = with_rank(value)
    # Of several ranks all would say it; bringing them up has one of them say it for all.
    if launched() is None and not file.exists() and not _may_be_served(file):
        load_config(file)  # says why it cannot be read
    return file


def _may_be_served(file: Path) -> bool:
    """A daemon may outlive its configuration, and is to be stopped all the same."""
    return (SessionDir.of(file).path / "socket").exists()


def _optional(_context: Any, _parameter: Any, value: Path | None) -> Path | None:
    return None if value is None else with_rank(value)


def _config(callback: Callable[..., Path | None], text: str | None = None) -> Callable[[Any], Any]:
    return click.option(
        "-c",
        "--config",
        "config_file",
        envvar="MONARCH_CONFIG",
        type=click.Path(path_type=Path),
        callback=callback,
        help=text,
    )


config_option = _config(
    _required,
    "Tiers and sources, in YAML; {rank} in its name is the number that mpiexec or srun has"
    " given this process.  [default: $MONARCH_CONFIG]",
)
optional_config_option = _config(_optional)

as_json: Callable[[Any], Any] = click.option("--json", "as_json", is_flag=True, help="Print JSON.")


def checked(config_file: Path) -> Config:
    """The configuration, after its warnings have been shown; ConfigError when it cannot work."""
    config = load_config(config_file)
    for warning in config.warnings:
        sys.stderr.write(f"monarch: {warning}\n")
    return config
