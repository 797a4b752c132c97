"""The starter: starts a daemon for a program that has opened a file of a dataset.

The preload library (csrc/preload/autostart) starts this process when a program opens such a file
and no daemon runs. The program's descriptors are closed in this process. Its standard error is the
session's log. Its descriptor 3 is the claim: a locked file that keeps the library from launching
another starter until this process ends. The process also writes a record (ipc/record.py). The
record contains the parts of the configuration that the library needs, because the library cannot
read YAML.
"""

import os
import sys
from contextlib import suppress
from pathlib import Path

from monarch_py.commands.run import keep_daemon
from monarch_py.commands.sources import add_sources
from monarch_py.config.load import load_config
from monarch_py.config.schema import Config
from monarch_py.daemon.starting import AUTOSTARTED
from monarch_py.errors import MonarchError
from monarch_py.ipc.connection import DaemonConnection
from monarch_py.ipc.record import write_record
from monarch_py.ipc.session import SessionDir, link_session
from monarch_py.native import LIBRARY
from monarch_py.util.processes import mapping

# CLAIM is the descriptor of the claim, which is the locked file `starts`. The library's C code
# writes the times at which it launched the latest starters into this file. Each time is an integer
# of TIME_BYTES bytes, in the byte order of this machine.
CLAIM, TIME_BYTES, BYTE_ORDER = 3, 8, sys.byteorder


def main() -> None:
    """Runs the starter. The first command-line argument is the configuration file. The second
    argument is the file that the program has opened. If the program's daemon was killed, so that
    the program needs a new daemon, the second argument is ""."""
    config_file, opened = Path(sys.argv[1]), sys.argv[2]
    _close_inherited()
    # If `start` raises an error, `is_started` stays True, and the start is not taken back. The
    # library then allows fewer further starts, because the next start would probably fail too.
    is_started = True
    try:
        is_started = start(config_file, opened)
    except (MonarchError, OSError) as error:
        sys.stderr.write(f"monarch: no daemon was started for {opened or config_file}: {error}\n")
    if not is_started:
        _take_back()


def start(config_file: Path, opened: str) -> bool:
    """Writes the record (ipc/record.py). If autostart is switched on and a program needs a daemon,
    also starts a daemon. If a daemon runs already, adds the sources to this daemon instead. Returns
    whether a daemon was started. A program needs a daemon if it has opened a file of the sources,
    or if its daemon was killed.

    opened : the file that the program has opened; "" if the program's daemon was killed
    """
    config = load_config(config_file)
    link_session(config_file, config.file)
    write_record(config_file, config, is_alone=False)
    roots = tuple(f"{source.real_path}/" for source in config.sources)
    is_due = not opened or opened.startswith(roots) or _is_open_below(roots)
    if not is_wished(config) or not is_due:
        return False
    if keep_daemon(config_file, AUTOSTARTED) is not None:
        return True
    add_sources(DaemonConnection(SessionDir.of(config_file)), config.sources)
    return False


def is_wished(config: Config) -> bool:
    asked = os.environ.get("MONARCH_AUTOSTART")
    return asked != "0" if asked else config.autostart


def _is_open_below(roots: tuple[str, ...]) -> bool:
    """Whether a program with the preload library has a file open below one of the directories
    `roots`. Such a program may have opened its file after this process began. It could not launch a
    starter of its own, because this process holds the claim (the descriptor CLAIM). So this process
    must look for open files itself."""
    for process in mapping(str(LIBRARY.resolve())):
        with suppress(OSError):  # raised if the program has ended
            for fd in (process / "fd").iterdir():
                with suppress(OSError):  # raised if the program has closed the file
                    if os.readlink(fd).startswith(roots):
                        return True
    return False


def _close_inherited() -> None:
    """Closes the descriptors that this process has inherited from the program. On Linux 5.9 and
    later, the library has already closed them. On an older Linux, the library cannot close them."""
    for name in os.listdir("/proc/self/fd"):
        if int(name) > CLAIM:
            with suppress(OSError):  # os.listdir lists its own descriptor too, which is closed now
                os.close(int(name))


def _take_back() -> None:
    """Marks this start as not needed, so that the library delays later starts less. The claim's
    file contains the times of the last starts as integers (csrc/preload/autostart/claim.c). The
    largest integer is the time of this start. This function makes this integer odd, because an odd
    time marks a start that was not needed."""
    times = os.pread(CLAIM, 1 << 10, 0)
    starts = [
        int.from_bytes(times[at : at + TIME_BYTES], BYTE_ORDER)
        for at in range(0, len(times), TIME_BYTES)
    ]
    with suppress(ValueError, OSError):
        latest = max(starts)
        at = starts.index(latest) * TIME_BYTES
        os.pwrite(CLAIM, (latest | 1).to_bytes(TIME_BYTES, BYTE_ORDER), at)
