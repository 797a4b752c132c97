"""The commands `monarch module` and `monarch source`.

`module` offers one installation to many users. `source` lets many jobs share one daemon.
"""

import os
from pathlib import Path

import click

from monarch_py import __version__
from monarch_py.cli.messages import warn
from monarch_py.cli.options import examples, served_config_option, to_serve
from monarch_py.commands.modulefile import modulefile
from monarch_py.commands.sources import add_sources
from monarch_py.config.layers import SITE_FILE, installation, site_file
from monarch_py.ipc.connection import DaemonConnection
from monarch_py.ipc.session import SessionDir


@click.command(
    short_help="Print a modulefile, for administrators.",
    epilog=examples(
        "monarch module --tcl > /opt/modulefiles/monarch/VERSION",
        "monarch module --lua > /opt/modulefiles/monarch/VERSION.lua",
    ),
)
@click.option("--tcl", "is_tcl", is_flag=True, help="For Environment Modules, and for Lmod.")
@click.option("--lua", "is_lua", is_flag=True, help="For Lmod.")
@click.option(
    "--site-config",
    type=click.Path(path_type=Path),
    help="The site's configuration.  [default: etc/monarch/site.yaml of the installation]",
)
def module(*, is_tcl: bool, is_lua: bool, site_config: Path | None) -> None:
    """Print a modulefile, with which an administrator offers this installation to all users."""
    if is_tcl == is_lua:
        raise click.UsageError("give either --tcl or --lua")
    site, prefix = site_config or site_file(), installation()
    if site is None:
        place = "/the/site.yaml" if prefix is None else prefix / SITE_FILE
        warn(
            f"the modulefile names no configuration of the site; write {place}, then print the"
            f" modulefile again with --site-config {place}"
        )
    else:
        site = Path(os.path.abspath(site))
    click.echo(modulefile("tcl" if is_tcl else "lua", __version__, prefix, site), nl=False)


@click.group(short_help="Add datasets to a running daemon.")
def source() -> None:
    """Add datasets to a running daemon."""


@source.command(
    short_help="Add datasets to the running daemon.",
    epilog=examples("monarch source add -c tiers.yaml /pfs/coco"),
)
@served_config_option
@click.argument("paths", metavar="PATH ...", nargs=-1, required=True)
def add(config_file: Path, paths: tuple[str, ...]) -> None:
    """Add the datasets PATH to the running daemon, for all jobs that use the daemon.

    The datasets share the quotas of the tiers, and stay until the daemon ends. `monarch run` and
    `monarch start` add the sources of their configuration by themselves.
    """
    named = tuple(Path(os.path.abspath(path)) for path in paths)
    config = to_serve(config_file, named)
    connection = DaemonConnection(SessionDir.of(config.file))
    added = add_sources(connection, config.sources)
    for given in config.sources:
        is_new = str(given.path) in added
        click.echo(f"{given.path}: {'added' if is_new else 'is served already'}")
