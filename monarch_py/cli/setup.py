"""The commands env, demo, init and config, which help to set up a job with Monarch."""

import json
import os
import shlex
import signal
import sys
from pathlib import Path

import click

from monarch_py import __version__
from monarch_py.cli.options import as_size, checked, config_option, examples, optional_config_option
from monarch_py.cli.screen import console
from monarch_py.config.load import load_config
from monarch_py.config.schema import Config
from monarch_py.errors import ConfigError
from monarch_py.native import LIBRARY
from monarch_py.util.signals import handling

MODULEFILE = """\
#%Module1.0
## Monarch {version}: works with environment-modules and with Lmod.

proc ModulesHelp {{ }} {{
    puts stderr "Serves datasets from copies on the node's own storage."
    puts stderr "Name your tiers in a file, set MONARCH_CONFIG to it, and start a daemon:"
    puts stderr "    monarch start -c tiers.yaml"
    puts stderr "MONARCH_DISABLE=1 turns everything off."
}}

module-whatis "storage tiering for deep-learning training"
conflict monarch

prepend-path PATH {{{commands}}}
prepend-path LD_PRELOAD {{{library}}}
"""


def _modulefile(config_file: Path | None) -> str:
    """Returns a Tcl modulefile, with which an administrator offers Monarch to all users of a
    system. If it names a configuration, users need none of their own."""
    # No character is special within Tcl's braces.
    commands = Path(sys.executable).parent
    text = MODULEFILE.format(version=__version__, commands=commands, library=LIBRARY)
    config = f"setenv MONARCH_CONFIG {{{config_file.resolve()}}}\n" if config_file else ""
    return text + config


@click.command(
    short_help="Print the export lines for a job script.",
    epilog=examples('eval "$(monarch env -c tiers.yaml)"', 'eval "$(monarch env --unset)"'),
)
@optional_config_option
@click.option("--library", is_flag=True, help="Print the path of the preload library.")
@click.option(
    "--modulefile", "as_module", is_flag=True, help="Print a Tcl modulefile, for administrators."
)
@click.option("--unset", is_flag=True, help="Print the lines that undo the exports.")
def env(config_file: Path | None, library: bool, as_module: bool, unset: bool) -> None:
    """Print the export lines for a job script."""
    if unset:
        others = os.environ.get("LD_PRELOAD", "").strip(" :")  # cli.main has removed ours
        click.echo(f"export LD_PRELOAD={shlex.quote(others)}" if others else "unset LD_PRELOAD")
        click.echo("unset MONARCH_CONFIG")
    elif library:
        click.echo(LIBRARY)
    elif as_module:
        click.echo(_modulefile(config_file), nl=False)
    else:
        if config_file is not None and not config_file.is_file():
            # Reports that the file is missing. Its content can be checked only on the job's nodes.
            load_config(config_file)
        quoted = shlex.quote(str(LIBRARY))
        click.echo(f'export LD_PRELOAD={quoted}"${{LD_PRELOAD:+:$LD_PRELOAD}}"')
        if config_file is not None:
            click.echo(f"export MONARCH_CONFIG={shlex.quote(str(config_file.resolve()))}")


@click.command(
    short_help="Show the gain with a small training on a slow source.",
    epilog=examples("monarch demo --size 16MiB"),
)
@click.option(
    "--size", default="64MiB", callback=as_size, show_default=True, help="Size of the dataset."
)
@click.option("--workdir", type=click.Path(path_type=Path), help="Where to make the dataset.")
@click.option("--keep", is_flag=True, help="Keep the dataset and the logs.")
def demo(size: int, workdir: Path | None, keep: bool) -> None:
    """Train a small model on a slow source, first without Monarch and then with it."""
    from monarch_py.demo.run import run_demo

    # The signals raise SystemExit, so that the demo removes what it has made.
    with handling([signal.SIGTERM, signal.SIGHUP], lambda number, _: sys.exit(128 + number)):
        sys.exit(run_demo(console(), size_bytes=size, workdir=workdir, keep=keep))


@click.command(
    short_help="Write a first configuration for this node.",
    epilog=examples(
        "monarch init /pfs/imagenet -o imagenet.yaml", "monarch init -o - /pfs/imagenet"
    ),
)
@click.option(
    "-o",
    "--output",
    type=click.Path(path_type=Path),
    default=Path("tiers.yaml"),
    show_default=True,
    help="The file to write; - for standard output.",
)
@click.argument(
    "datasets",
    metavar="DATASET ...",
    nargs=-1,
    required=True,
    type=click.Path(path_type=Path),
)
def init(output: Path, datasets: tuple[Path, ...]) -> None:
    """Write a first configuration, for the directories DATASET, by looking at this node.

    Its tiers are the node's memory and local disks, with quotas from what is free now. Run it where
    the job will run, and read the file before you use it.
    """
    from monarch_py.commands.first_config import first_configuration

    text = first_configuration(datasets)
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
    click.echo(f"{output} is written; next: monarch doctor -c {shlex.quote(str(output))}")


@click.group(short_help="Help with writing a configuration.")
def config() -> None:
    """Help with writing a configuration."""


@config.command(
    short_help="Check a configuration.", epilog=examples("monarch config check -c tiers.yaml")
)
@config_option
def check(config_file: Path) -> None:
    """Check that a configuration can work on this node, without starting anything.

    Exits with 2 and one sentence if it cannot. `monarch doctor` looks at the node too.
    """
    checked(config_file)
    click.echo(f"{config_file}: can be used on this node")


@config.command(
    short_help="Print the JSON schema of a configuration.",
    epilog=examples("monarch config schema > monarch.schema.json"),
)
def schema() -> None:
    """Print the JSON schema of a configuration, by which editors complete and check its keys."""
    from monarch_py.document.keys import schema

    click.echo(json.dumps(schema(Config), indent=2))
