"""The `monarch` command. Each module holds the commands of one concern; errors that a user can mend
end here as one sentence and an exit status."""

import os
import sys
from importlib import import_module
from pathlib import Path

import click

from monarch_py import __version__
from monarch_py.errors import MonarchError
from monarch_py.native import LIBRARY

__all__ = ["main"]


# Whose module is loaded when it is called: `status` needs nothing of what the daemon does.
MODULES = {
    "calibrate": "simulate",
    "clear": "care",
    "demo": "setup",
    "doctor": "care",
    "env": "setup",
    "plan": "plan",
    "run": "lifecycle",
    "serve": "lifecycle",
    "simulate": "simulate",
    "start": "lifecycle",
    "status": "view",
    "stop": "lifecycle",
    "verify": "care",
    "warm": "warm",
}


class _Commands(click.Group):
    """Those of `MODULES`."""

    def list_commands(self, context: click.Context) -> list[str]:
        return sorted(MODULES)

    def get_command(self, context: click.Context, name: str) -> click.Command | None:
        if name not in MODULES:
            return None
        commands: list[click.Command] = import_module(f"monarch_py.cli.{MODULES[name]}").COMMANDS
        return next(command for command in commands if command.name == name)


@click.group(
    cls=_Commands,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)
@click.version_option(__version__, prog_name="monarch")
def group() -> None:
    """Serve a dataset on a slow file system from copies on this node's fast storage."""


def _leave_the_library() -> None:
    """Starts this command anew without our own library before it, as `module load` leaves it.

    A daemon under the library would scan and fill from its own copies, and `verify --source` would
    compare a copy with itself. The job that `run` starts gets the library from `run`.
    """
    preloads = os.environ.get("LD_PRELOAD", "").replace(" ", ":").split(":")
    others = [path for path in preloads if Path(path).name != LIBRARY.name]
    if others != preloads:
        environment = {**os.environ, "LD_PRELOAD": ":".join(others)}
        environment["MONARCH_LEFT"] = os.environ["LD_PRELOAD"]  # for doctor
        if not any(others):
            del environment["LD_PRELOAD"]
        os.execve(sys.executable, [sys.executable, *sys.orig_argv[1:]], environment)  # noqa: S606


def main() -> None:
    """Entry point: exits with the command's status."""
    _leave_the_library()
    try:
        group(prog_name="monarch")
    except MonarchError as error:
        sys.stderr.write(f"monarch: {error}\n")
        sys.exit(error.exit_status)
    except BrokenPipeError:
        # The reader of our output has gone (`monarch status | head`).
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(141)
