"""The `monarch` command, also as `python -m monarch_py`."""

import os
import signal
import sys


def _have_streams() -> None:
    """Where the shell has closed a standard stream, Python has None for it, and the next file that
    is opened gets its number. What stands in is not inherited: a command that we run finds the
    stream closed."""
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, mode, encoding="utf-8"))  # noqa: SIM115


def main() -> None:
    """Entry point: exits with the command's status. An interrupt while modules are loaded ends the
    process like any program's, without a traceback; the commands' own handling comes after that."""
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    _have_streams()
    from monarch_py.cli import main as run_command

    run_command()


if __name__ == "__main__":
    main()
