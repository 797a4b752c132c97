"""The record from which the preload library learns whether to start a daemon, and how.

The library cannot read YAML. So each daemon writes a record into the session's file `autostart`. So
does each process that starts a daemon for the library (commands/autostart.py). The record states
whether the configuration requests a daemon, and lists the sources. It also names the files and
environment variables on which this depends. If two jobs have different values of these variables,
each job has its own record, so that neither replaces the other's record.
csrc/preload/autostart/record.c defines the format.
"""

import os
import re
from collections.abc import Iterator
from pathlib import Path

from monarch_py.config.schema import Config
from monarch_py.errors import SessionError
from monarch_py.ipc.session import SessionDir, open_private

FIRST_LINE, END = "monarch autostart 1", "\nend\n"
# ALWAYS: the environment variables on which every configuration depends. HOME: the character `~`. A
# configuration that contains this character may also depend on the environment variable HOME.
ALWAYS = ("MONARCH_SITE_CONFIG", "MONARCH_SOURCE")
HOME = b"~"
# The file keeps the latest MOST_RECORDS records. The library reads the file only if it is smaller
# than MOST_BYTES.
MOST_RECORDS, MOST_BYTES = 16, 32768
# A record consists of lines. Those that begin with one of these words are its setting. A new record
# replaces an old record with the same setting.
SETTING = ("config ", "mounts ", "value ")
VARIABLE = re.compile(rb"\$\{?(\w+)", re.ASCII)


def write_record(config_file: Path, config: Config, *, is_alone: bool) -> None:
    """Writes the record of `config_file`, which was read as `config`. Raises SessionError or
    OSError if the record cannot be written.

    is_alone : whether to remove all other records. A starting daemon does so, because they may name
        sources that it does not serve
    """
    session = SessionDir.of(config.file)
    session.make()
    record = session.autostart
    hidden = record.with_name(f".autostart.{os.getpid()}")
    lines = [*_facts(config_file, config)]
    if any("\n" in line for line in lines):
        raise SessionError(
            "a path contains a line break, which autostart does not support; rename it or use"
            " `monarch start`"
        )
    own = "\n".join(lines)
    others = () if is_alone else _records(record)
    with open(open_private(hidden, os.O_WRONLY | os.O_TRUNC), "wb") as file:
        file.write(_written([own, *(each for each in others if _setting(each) != _setting(own))]))
    hidden.rename(record)


def _records(file: Path) -> list[str]:
    try:
        text = os.fsdecode(file.read_bytes())
    except FileNotFoundError:
        return []
    return text.removeprefix(f"{FIRST_LINE}\n").split(END)[:-1]


def _setting(record: str) -> list[str]:
    return [line for line in record.split("\n") if line.startswith(SETTING)]


def _written(records: list[str]) -> bytes:
    """Returns the text of a file with these records, at most MOST_RECORDS of them. The first record
    is always included. A further record is omitted if the text would reach MOST_BYTES with it."""
    data = os.fsencode(f"{FIRST_LINE}\n{records[0]}{END}")
    for record in records[1:MOST_RECORDS]:
        more = os.fsencode(record + END)
        if len(data) + len(more) < MOST_BYTES:
            data += more
    return data


def _facts(config_file: Path, config: Config) -> Iterator[str]:
    yield f"config {config_file.resolve()}"
    yield f"mounts {os.stat('/proc/self/ns/mnt').st_ino}"
    names = set(ALWAYS)
    for file in config.files:
        found = file.stat()
        yield f"file {found.st_ino} {found.st_size} {found.st_mtime_ns} {file}"
        text = file.read_bytes()
        names |= {os.fsdecode(name) for name in VARIABLE.findall(text)}
        names |= {"HOME"} if HOME in text else set()
    for name in sorted(names):
        value = os.environ.get(name)
        yield f"value {name}" if value is None else f"value {name}={value}"
    yield f"wish {'yes' if config.autostart else 'no'}"
    for source in config.sources:
        yield f"source {source.real_path}"
