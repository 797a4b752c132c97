"""The `monarch` command. Each module holds the commands of one concern; errors that a user can mend
end here as one sentence and an exit status."""

import os
import sys

import click

from monarch_py import __version__
from monarch_py.cli import care, lifecycle, setup, view
from monarch_py.errors import MonarchError

__all__ = ["main"]


@click.group(context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.version_option(__version__, prog_name="monarch")
def group() -> None:
    """Serve a dataset on a slow file system from copies on this node's fast storage."""


for module in (lifecycle, view, care, setup):
    for command in module.COMMANDS:
        group.add_command(command)


def main() -> None:
    """Entry point: exits with the command's status."""
    try:
        group(prog_name="monarch")
    except MonarchError as error:
        sys.stderr.write(f"monarch: {error}\n")
        sys.exit(error.exit_status)
    except BrokenPipeError:
        # The reader of our output has gone (`monarch status | head`).
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(141)
