"""The `monarch` command. Each module of this package contains a group of related commands.

If a user can correct an error, this module reports the error in one sentence, and sets an exit
status.
"""

import errno
import os
import re
import signal
import sys
from importlib import import_module
from pathlib import Path
from typing import Any

import click

from monarch_py import __version__
from monarch_py.cli.messages import output_failed, prepare, tell, written
from monarch_py.errors import ConfigError, MonarchError
from monarch_py.native import LIBRARY
from monarch_py.util.limits import met_limit
from monarch_py.util.spelling import hint

__all__ = ["main"]


# The commands of each module. A module is loaded only when one of its commands is called, so that
# `status`, for example, does not load the daemon's code.
MODULES = {
    "advise": ("advise",),
    "config": ("config",),
    "care": ("clear", "doctor", "sweep", "verify"),
    "files": ("evict", "ls"),
    "lifecycle": ("run", "serve", "start", "stop"),
    "logs": ("logs",),
    "metrics": ("metrics",),
    "pack": ("pack",),
    "plan": ("plan",),
    "setup": ("demo", "env", "init"),
    "site": ("module", "source"),
    "report": ("report",),
    "simulate": ("calibrate", "simulate"),
    "top": ("top",),
    "view": ("status",),
    "warm": ("warm",),
}
COMMANDS = {command: module for module, commands in MODULES.items() for command in commands}
# The exit status after Ctrl-C. Shells report 128 + SIGINT for a program that SIGINT has ended.
INTERRUPTED = 130
# Matches the end of the message that click prints for a value that is not a number.
NO_NUMBER = re.compile(r"is not a valid (?:(integer)|float)(?: range)?")
DID_YOU_MEAN = r"\.? \(?Did you mean(.*?)\)?$"
# The exception that click raises if the user names a group of commands, such as `monarch plan`, but
# no command of the group. This module then shows the group's help. Older versions of click do not
# have this exception; they show the help themselves.
NO_ARGUMENTS: Any = getattr(click.exceptions, "NoArgsIsHelpError", ())


class _Commands(click.Group):
    """The group of all commands."""

    def list_commands(self, context: click.Context) -> list[str]:
        return sorted(COMMANDS)

    def get_command(self, context: click.Context, name: str) -> click.Command | None:
        if name == "help":
            return _help
        if name not in COMMANDS:
            return None
        command = getattr(import_module(f"monarch_py.cli.{COMMANDS[name]}"), name)
        # `__main__` has set SIGINT to SIG_DFL, so that Ctrl-C during the imports prints no
        # traceback. The imports are complete now, so restore Python's handler, which raises
        # KeyboardInterrupt.
        if signal.getsignal(signal.SIGINT) == signal.SIG_DFL:
            signal.signal(signal.SIGINT, signal.default_int_handler)
        assert isinstance(command, click.Command)
        return command

    def resolve_command(
        self, context: click.Context, words: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if not words[0].startswith("-") and self.get_command(context, words[0]) is None:
            known = hint(words[0], COMMANDS, "see `monarch --help`")
            raise click.UsageError(f"unknown command {words[0]!r}; {known}")
        return super().resolve_command(context, words)


@click.group(
    cls=_Commands,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)
@click.version_option(__version__, prog_name="monarch")
def group() -> None:
    """Serve a dataset on a slow file system from copies on this node's fast storage.

    \b
    Try it:              monarch demo
    Check this machine:  monarch doctor -c tiers.yaml
    Run a job:           monarch run -c tiers.yaml python train.py
    """


@click.command("help", hidden=True)
@click.argument("words", metavar="[COMMAND]", nargs=-1)
def _help(words: tuple[str, ...]) -> None:
    """Show the help of a command, or the list of all commands."""
    group.main([*words, "--help"], prog_name="monarch", standalone_mode=False)


def _leave_the_library() -> None:
    """If LD_PRELOAD names Monarch's preload library, executes this command again without the
    library. LD_PRELOAD names the library after `module load`, for example.

    The library redirects reads of a source to copies. A daemon under the library would make copies
    from its own copies, and `verify --source` would compare a copy with itself. `monarch run` adds
    the library again for the job that it starts.
    """
    preloads = os.environ.get("LD_PRELOAD", "").replace(" ", ":").split(":")
    others = [path for path in preloads if Path(path).name != LIBRARY.name]
    if others != preloads:
        environment = {**os.environ, "LD_PRELOAD": ":".join(others)}
        environment["MONARCH_LEFT"] = os.environ["LD_PRELOAD"]  # for `monarch doctor`
        if not any(others):
            del environment["LD_PRELOAD"]
        os.execve(sys.executable, [sys.executable, *sys.orig_argv[1:]], environment)  # noqa: S606


def _sentence(error: click.ClickException) -> str:
    """Returns click's message in the style of Monarch's own messages. A UsageError whose message
    has no hint gets the hint "see `COMMAND --help`"."""
    text = re.sub(DID_YOU_MEAN, r"; did you mean\1", error.format_message().rstrip("."))
    text = NO_NUMBER.sub(lambda found: f"is not a {'whole ' if found[1] else ''}number", text)
    context = getattr(error, "ctx", None)
    if isinstance(error, click.UsageError) and context is not None and ";" not in text:
        text += f"; see `{context.command_path} --help`"
    return text[:1].lower() + text[1:]


def _tell_lost_directory() -> bool:
    """Returns whether the current directory was removed, and if so, tells the user. The command's
    own error would only say that a relative path does not exist, without the cause."""
    try:
        os.getcwd()
    except FileNotFoundError:
        tell("the current directory no longer exists; change to another one")
        return True
    return False


def _failed(error: OSError) -> int:
    """Tells the user about an OSError that the command has not handled, and returns the exit
    status. The error may have one of three causes: the current directory was removed, this process
    has opened too many files, or the output cannot be written. Any other error is a bug, and is
    raised again."""
    # os.path.abspath raises this error, without a file name, if the current directory was removed.
    if error.errno == errno.ENOENT and error.filename is None and _tell_lost_directory():
        return ConfigError.exit_status
    if error.errno == errno.EMFILE:
        tell(met_limit(error.errno))
        return MonarchError.exit_status
    return output_failed(error)


def _run() -> int:
    """Runs the command, and returns its exit status."""
    try:
        group.main(prog_name="monarch", standalone_mode=False)
    except MonarchError as error:
        tell(str(error))
        _tell_lost_directory()
        return error.exit_status
    except click.ClickException as error:
        if isinstance(error, NO_ARGUMENTS):
            error.show()
        else:
            tell(_sentence(error))
            _tell_lost_directory()
        return error.exit_code
    except (click.Abort, KeyboardInterrupt):
        tell("interrupted")
        return INTERRUPTED
    except SystemExit as ended:
        return ended.code if isinstance(ended.code, int) else int(ended.code is not None)
    except OSError as error:
        return _failed(error)
    return 0


def main() -> None:
    """The entry point: runs the command, and exits with the command's exit status."""
    _leave_the_library()
    prepare()
    sys.exit(written(_run()))
