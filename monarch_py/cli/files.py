"""The commands ls and evict."""

import json
import sys
from collections import Counter
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path

import click

from monarch_py.cli.messages import tell
from monarch_py.cli.options import as_json, examples, served_config_option
from monarch_py.cli.screen import print_table
from monarch_py.commands.files import FilePlace, NamedFiles
from monarch_py.ipc.session import SessionDir
from monarch_py.util.quoting import quoted
from monarch_py.util.units import counted, format_size


def _end(named: NamedFiles) -> None:
    if not named.scanned:
        tell("the sources are still being listed: more files may be found")
    for path, why in named.problems:
        tell(f"{quoted(path)}: {why}")
    sys.exit(1 if named.problems else 0)


def _print_each(places: Iterator[FilePlace], width: int) -> None:
    """Prints one line for each file. Does not use `print_table`, which would be slow for millions
    of files.

    width : the width of the column `where` [characters]
    """
    for place in places:
        size = format_size(place.size) if place.size >= 0 else ""
        why = place.why.replace("_", " ")
        click.echo(f"{quoted(place.where):<{width}}  {why:<11}  {size:>10}  {quoted(place.path)}")


def _print_sums(places: Iterator[FilePlace]) -> None:
    """Prints how many files are in each place, and their total size, but not their names."""
    files: Counter[tuple[str, str]] = Counter()
    size: Counter[tuple[str, str]] = Counter()
    for place in places:
        files[place.where, place.why] += 1
        size[place.where, place.why] += max(0, place.size)
    rows = [[*key, files[key], format_size(size[key])] for key in sorted(files)]
    print_table("", ["where", "state", "files", "size"], rows, left=2)


@click.command(
    short_help="Show which of your files have copies, and where.",
    epilog=examples("monarch ls --sum", "monarch ls /pfs/imagenet/train"),
)
@served_config_option
@click.option("--sum", "as_sum", is_flag=True, help="Show only how many files are in each place.")
@as_json
@click.argument("paths", metavar="[PATH ...]", nargs=-1)
def ls(config_file: Path, as_sum: bool, as_json: bool, paths: tuple[str, ...]) -> None:
    """Show which files have copies on this node, and where; without PATH, all files.

    A directory selects all files below it. Exits with 1 if a PATH selects no file.
    """
    named = NamedFiles(SessionDir.of(config_file), list(paths) or None)
    places = named.places()
    if as_json:
        click.echo(json.dumps([asdict(place) for place in places], indent=2))
    elif as_sum:
        _print_sums(places)
    else:
        _print_each(places, max(len(quoted(name)) for name in named.names))
    _end(named)


@click.command(
    short_help="Drop the copies of the files that you name.",
    epilog=examples("monarch evict /pfs/imagenet/val"),
)
@served_config_option
@click.argument("paths", metavar="PATH ...", nargs=-1, required=True)
def evict(config_file: Path, paths: tuple[str, ...]) -> None:
    """Drop the copies of files, and of all files below directories, on this node.

    Other files can then use the room. A program that reads one of the files gets it from the
    source, and the file is copied again if there is room. Exits with 1 if a PATH selects no file.
    """
    named = NamedFiles(SessionDir.of(config_file), list(paths))
    dropped, size = named.evict()
    click.echo(f"{counted(dropped, 'copy')} ({format_size(size)}) dropped")
    _end(named)
