"""The commands of `monarch config`: check, show, convert and schema."""

import json
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING

import click

from monarch_py.cli.messages import warn
from monarch_py.cli.options import (
    as_json,
    checked,
    config_option,
    examples,
    source_option,
    write_new,
)
from monarch_py.cli.screen import print_table
from monarch_py.config.layers import read_layers, read_user_file
from monarch_py.config.schema import Config
from monarch_py.errors import ConfigError, TierError
from monarch_py.storage.staging_area import default_area
from monarch_py.util.units import format_size
from monarch_py.yaml_files.keys import schema as json_schema

if TYPE_CHECKING:
    from monarch_py.config.shown import Value


@click.group(short_help="Help with writing a configuration.")
def config() -> None:
    """Help with writing a configuration."""


@config.command(
    short_help="Check a configuration.", epilog=examples("monarch config check -c tiers.yaml")
)
@config_option
@source_option
def check(config_file: Path, sources: tuple[Path, ...]) -> None:
    """Check that a configuration can work on this node, without starting anything.

    The site's configuration is checked too. Exits with 2 and one sentence if the configuration
    cannot work. To examine the node as well, use `monarch doctor`.
    """
    from monarch_py.commands.named_files import named_files

    layers = read_layers(config_file, sources)
    found = checked(config_file, with_sources=not layers.lack_sources, sources=sources)
    for finding in named_files(found):
        if finding.level == "problem":
            raise ConfigError(f"{finding.found}; {finding.hint}")
        if finding.level == "warning":
            warn(f"the {finding.what} is {finding.found}; {finding.hint}")
    if found.peers.interface is not None:
        from monarch_py.cluster.address import serving_address

        try:
            serving_address(found)
        except ConfigError as error:
            # This is only a warning, because a daemon on a single node does not use
            # `peers.interface`.
            warn(str(error))
    from monarch_py.commands.doctor import occupied_by_others

    for text in filter(None, map(occupied_by_others, found.tiers)):
        warn(text)
    others = [str(file) for file in layers.files if file != config_file]
    beside = f" (together with {others[0]})" if others else ""
    later = ", when a dataset is named" if layers.lack_sources else ""
    click.echo(f"{config_file}: can be used on this node{beside}{later}")


@config.command(
    short_help="Show each value, and where it comes from.",
    epilog=examples(
        "monarch config show -c tiers.yaml",
        "MONARCH_SOURCE=/pfs/coco monarch config show -c tiers.yaml --json",
    ),
)
@config_option
@source_option
@as_json
def show(config_file: Path, sources: tuple[Path, ...], as_json: bool) -> None:
    """Show each value of the configuration, and where it comes from.

    A value can come from the defaults, the site's file, the user's file, the environment
    (MONARCH_SOURCE) or the command line. If several of these set the same key, the value from the
    last of them is used. The command does not check whether the values work on this node.
    """
    from monarch_py.config.shown import values

    layers = read_layers(config_file, sources)
    tiers = len(layers.given.get("tiers", ()))
    found = [_with_room(value, tiers) for value in values(layers)]
    if as_json:
        click.echo(json.dumps([asdict(value) for value in found], indent=2))
        return
    rows = [[each.key, each.value, each.layer, each.place] for each in found]
    print_table("", ["key", "value", "from", "place"], rows, left=4)


def _with_room(value: "Value", tiers: int) -> "Value":
    """Returns `value` as `show` prints it. Only the default of the key `staging` is changed: its
    text then says how large a staging area would be now, and where.

    tiers : the number of tiers
    """
    if value.key != "staging":
        return value
    try:
        area = default_area(tiers)
    except TierError as error:
        return replace(value, value=f"none ({error})")
    room = format_size(area.quota_bytes)
    return replace(value, value=f"{room} in {area.mount_point}, when needed")


@config.command(
    short_help="Convert a configuration of the original Monarch.",
    epilog=examples("monarch config convert old.yaml -o converted.yaml"),
)
@click.option(
    "-o",
    "--output",
    type=click.Path(path_type=Path),
    default=Path("-"),
    show_default=True,
    help="The file to write; - for standard output.",
)
@click.argument("old", type=click.Path(path_type=Path))
def convert(output: Path, old: Path) -> None:
    """Convert OLD, a configuration of the original Monarch (YAML or JSON), to today's keys.

    Keys that are not carried over are named on standard error and in comments of the new file.
    """
    from monarch_py.config.shown import as_yaml

    layer = read_user_file(old)
    lost = [text.removeprefix(f"{old}:") for text in layer.top.document.warnings]
    for text in layer.top.document.warnings:
        warn(text)
    comments = [f"# Not carried over: line {text}\n" for text in lost]
    head = f"# Converted from {old.name} by `monarch config convert`.\n"
    write_new(output, "".join([head, *comments, as_yaml(layer)]))
    if output != Path("-"):
        click.echo(f"{output} is written; next: monarch config check -c {output}")


@config.command(
    short_help="Print the JSON schema of a configuration.",
    epilog=examples("monarch config schema > monarch.schema.json"),
)
def schema() -> None:
    """Print the JSON schema of a configuration. With it, editors complete and check the keys."""
    click.echo(json.dumps(json_schema(Config), indent=2))
