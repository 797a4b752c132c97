"""The commands env, demo and init, which help to set up a job with Monarch."""

import os
import shlex
import signal
import sys
from pathlib import Path

import click

from monarch_py.cli.messages import warn
from monarch_py.cli.options import as_size, examples, optional_config_option, write_new
from monarch_py.cli.screen import console
from monarch_py.config.layers import read_layers
from monarch_py.config.load import load_config
from monarch_py.errors import ConfigError
from monarch_py.native import LIBRARY
from monarch_py.util.signals import handling


@click.command(
    short_help="Print the export lines for a job script.",
    epilog=examples('eval "$(monarch env -c tiers.yaml)"', 'eval "$(monarch env --unset)"'),
)
@optional_config_option
@click.option("--library", is_flag=True, help="Print the path of the preload library.")
@click.option("--unset", is_flag=True, help="Print the lines that undo the exports.")
def env(config_file: Path | None, library: bool, unset: bool) -> None:
    """Print the export lines for a job script."""
    if unset:
        # cli.main has already removed Monarch's library from LD_PRELOAD.
        others = os.environ.get("LD_PRELOAD", "").strip(" :")
        click.echo(f"export LD_PRELOAD={shlex.quote(others)}" if others else "unset LD_PRELOAD")
        click.echo("unset MONARCH_CONFIG")
    elif library:
        click.echo(LIBRARY)
    else:
        if config_file is not None and not config_file.is_file():
            # The file does not exist, so this call raises ConfigError. Errors in an existing file
            # cause only a warning (below), because the file may be correct on the job's nodes.
            load_config(config_file)
        if config_file is not None:
            _warn_of_mistakes(config_file)
        quoted = shlex.quote(str(LIBRARY))
        click.echo(f'export LD_PRELOAD={quoted}"${{LD_PRELOAD:+:$LD_PRELOAD}}"')
        if config_file is not None:
            click.echo(f"export MONARCH_CONFIG={shlex.quote(str(config_file.resolve()))}")


def _warn_of_mistakes(config_file: Path) -> None:
    """Warns if the configuration has errors, so that no daemon could start with it on this node.
    This is only a warning, because the file may be correct on the job's nodes. For example, it may
    use a variable that only the batch system sets."""
    try:
        read_layers(config_file)
    except ConfigError as error:
        warn(str(error))


@click.command(
    short_help="Show the gain with a small training run on a slow source.",
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

    # SIGTERM and SIGHUP raise SystemExit, so that the demo removes its files before it ends.
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
    """Examine this node, and write a first configuration for the directories DATASET.

    The tiers are the node's memory and local disks. Their quotas depend on the space that is free
    now. If the site's configuration has tiers, the job uses them, and the new file names none. Run
    this command on a node where the job will run, and read the file before you use it.
    """
    from monarch_py.commands.first_config import first_configuration

    write_new(output, first_configuration(datasets))
    if output != Path("-"):
        click.echo(f"{output} is written; next: monarch doctor -c {shlex.quote(str(output))}")
