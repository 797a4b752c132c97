"""The `monarch` command, also available as `python -m monarch_py`."""

import os
import signal
import sys


def _have_streams() -> None:
    """Opens /dev/null for each standard stream that the shell has closed. Otherwise the next file
    that this process opens would get the stream's descriptor number. Programs that this process
    starts do not inherit /dev/null: their streams remain closed."""
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, mode, encoding="utf-8"))  # noqa: SIM115


def main() -> None:
    """The entry point. Runs the command and exits with its status. Ctrl-C during the imports ends
    the process without a traceback. After the imports, each command handles Ctrl-C itself."""
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    _have_streams()
    from monarch_py.cli import main as run_command

    run_command()


if __name__ == "__main__":
    main()
