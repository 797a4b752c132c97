"""The command pack."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from monarch_py.cli.messages import warn
from monarch_py.cli.options import examples
from monarch_py.util.quoting import quoted

_PATH = click.Path(path_type=Path)
# The command prints the names of at most this many files that it has left out.
NAMED = 10


@click.command(
    short_help="Put the small files of a dataset into one tar.",
    epilog=examples("monarch pack /pfs/imagenet/train -o train.tar"),
)
@click.argument("directory", metavar="DIR", type=_PATH)
@click.option("-o", "--output", type=_PATH, required=True, help="The tar file.")
@click.option(
    "--index-only",
    is_flag=True,
    help="Leave the tar as it is, and index the members whose files in DIR have not changed.",
)
def pack(directory: Path, output: Path, *, index_only: bool) -> None:
    """Put the files of DIR into one tar, with an index beside it.

    If the configuration names the tar (`pack: TAR` of a source), the daemon copies many files with
    one read of the tar. Exits with 1 if files are left out of the index.
    """
    from monarch_py.packs.index import index_path
    from monarch_py.packs.tar import index_pack, write_pack
    from monarch_py.util.units import format_size

    if not directory.is_dir():
        raise click.UsageError(f"{str(directory)!r} is not a directory")
    made = (index_pack if index_only else write_pack)(directory, output)
    n_bytes = format_size(int(made.index.sizes.sum()))
    click.echo(f"{len(made.index)} of {made.files} files, {n_bytes}: {index_path(output)}")
    for name in made.changed[:NAMED]:
        why = "differs from the tar" if index_only else "changed while it was read"
        warn(f"left out, because it {why}: {quoted(name)}")
    if len(made.changed) > NAMED:
        warn(f"left out for the same reason: {len(made.changed) - NAMED} other files")
    sys.exit(1 if made.changed else 0)
