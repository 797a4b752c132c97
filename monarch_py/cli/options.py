"""Options that several commands share."""

import os
import shlex
import stat
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any

import click

from monarch_py.cli.messages import warn
from monarch_py.config.layers import SOURCES, default_file, no_configuration, site_file
from monarch_py.config.load import load_config
from monarch_py.config.schema import Config
from monarch_py.errors import ConfigError, SessionError
from monarch_py.ipc.session import SessionDir, link_session, served_configurations
from monarch_py.util.launcher import launched, with_rank
from monarch_py.util.units import parse_size

CONFIG_HELP = (
    "The configuration, in YAML. {rank} in its name is replaced by the number that mpiexec or srun"
    " has given this process."
)


def _required(_context: Any, _parameter: Any, value: Path | None) -> Path:
    if value is None and (value := default_file()) is None:
        raise no_configuration()
    file = with_rank(value)
    # A missing file is an error, with two exceptions. First, if mpiexec or srun has started this
    # process, `bring_up` reports the error later, one time for all ranks. Second, if a daemon of
    # this configuration has left a session, the user can stop the daemon and read its log without
    # the file.
    if launched() is None and not file.exists() and not SessionDir.of(file).path.exists():
        load_config(file)  # raises ConfigError, which says why the file cannot be read
    return file


def _served(context: Any, parameter: Any, value: Path | None) -> Path:
    return _required(context, parameter, _only_served() if value is None else value)


def _only_served() -> Path:
    """Returns the configuration to use if the user names none. Only the user's daemons on this node
    matter. If no daemon runs, or if a daemon serves the site's configuration, returns the site's
    configuration. Otherwise, returns the configuration of the only daemon. Raises ConfigError if
    several daemons run, or if no daemon runs and the site has no configuration."""
    served, site = served_configurations(), site_file()
    if site is not None and (not served or Path(os.path.abspath(site)) in served):
        return site
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
    value = default_file() if value is None else value
    return None if value is None else with_rank(value)


def _config(
    callback: Callable[..., Path | None], default: str = "$MONARCH_CONFIG, else the site's"
) -> Callable[[Any], Any]:
    return click.option(
        "-c",
        "--config",
        "config_file",
        envvar="MONARCH_CONFIG",
        # click need not check whether the file can be read, because load_config does, and its error
        # message says why the file cannot be read.
        type=click.Path(path_type=Path, readable=False),
        callback=callback,
        help=f"{CONFIG_HELP}  [default: {default}]",
    )


config_option = _config(_required)
# The option -c of the commands that need a running daemon.
served_config_option = _config(
    _served, "$MONARCH_CONFIG, else the file of your only daemon on this node, else the site's"
)
optional_config_option = _config(_optional)


def examples(*lines: str) -> str:
    """Returns the last part of a command's help: examples that a user can copy. Tests run each
    line."""
    return "\n".join(["\b", "Examples:", *(f"  {line}" for line in lines)])


def as_size(_context: Any, _parameter: Any, value: str | None) -> int | None:
    """Returns the number of bytes that an option's value, such as "64MiB", means. click calls this
    function."""
    try:
        return None if value is None else parse_size(value)
    except ValueError as error:
        raise click.BadParameter(str(error)) from None


force_option = click.option(
    "--force", is_flag=True, help="Go ahead even if other jobs of yours use the daemon."
)
as_json: Callable[[Any], Any] = click.option("--json", "as_json", is_flag=True, help="Print JSON.")


def _named_sources(context: Any, _parameter: Any, value: tuple[Path, ...]) -> tuple[Path, ...]:
    if any(":" in str(path) for path in value):
        raise click.BadParameter("a path with a colon can be given only in a configuration file")
    return tuple(Path(os.path.abspath(path)) for path in value)


source_option = click.option(
    "-s",
    "--source",
    "sources",
    multiple=True,
    type=click.Path(path_type=Path),
    callback=_named_sources,
    help="A dataset, in place of the configuration's 'sources'; may be given several times."
    "  [default: $MONARCH_SOURCE, separated by colons]",
)


def export_sources(sources: tuple[Path, ...]) -> None:
    """Puts the datasets that the user has given with --source into this process's environment, so
    that child processes use them too."""
    if sources:
        os.environ[SOURCES] = ":".join(str(path).replace("$", "$$") for path in sources)


def to_serve(config_file: Path, sources: tuple[Path, ...]) -> Config:
    """Loads the configuration, shows its warnings (`checked`), and prepares its session.

    A session is a directory with the files of one daemon. A configuration may use the tiers of
    another file, such as the site's. Both then have the same daemon, so the configuration's session
    is a symbolic link to the session of the other file (`link_session`). If a killed daemon has
    left a session at the path of the link, this function first removes that session.
    """
    config = checked(config_file, sources=sources)
    own = SessionDir.of(config_file)
    if own.path != SessionDir.of(config.file).path and own.control.exists():
        from monarch_py.commands.sweep import sweep_session  # only here: loads daemon code

        for problem in sweep_session(own).problems:
            raise SessionError(problem)
    link_session(config_file, config.file)
    return config


def checked(
    config_file: Path, *, with_sources: bool = True, sources: tuple[Path, ...] = ()
) -> Config:
    """Loads the configuration and shows its warnings. Raises ConfigError if the configuration
    cannot work.

    with_sources : False for a command that needs only the tiers. Then the sources are not examined
    sources : the datasets that the user has given with --source. This function also puts them into
        the environment, for child processes
    """
    config = load_config(config_file, with_sources=with_sources, sources=sources)
    export_sources(sources)
    for warning in config.warnings:
        warn(warning)
    return config


def refuse_input(option: str, output: Path, inputs: Iterable[Path]) -> None:
    """Raises ConfigError if `output` is one of the files that the command reads. Recognizes a file
    under another name (a link) too. Call this function before the command changes anything.

    option : the command-line option with which the user has named `output`
    inputs : the files that the command reads. Directories and missing files are ignored
    """
    with suppress(OSError):  # raised if `output` does not exist yet
        found = os.stat(output)
        for path in inputs if stat.S_ISREG(found.st_mode) else ():
            with suppress(OSError):
                if os.path.samestat(found, os.stat(path)):
                    raise ConfigError(
                        f"{option} {output}: would overwrite {path}, which this command reads; name"
                        " another file"
                    )


def write_new(output: Path, text: str) -> None:
    """Writes a new file. If `output` is "-", writes to standard output instead. Raises ConfigError
    if the file exists already or cannot be written."""
    if output == Path("-"):
        click.echo(text, nl=False)
        return
    try:
        with output.open("x") as file:
            file.write(text)
    except FileExistsError:
        raise ConfigError(f"{output}: exists already; name another file with -o") from None
    except OSError as error:
        raise ConfigError(
            f"{output}: cannot be written ({error.strerror}); name another file with -o"
        ) from None
