"""Finds what turns Monarch off now."""

import os
from collections.abc import Iterator
from dataclasses import dataclass

from monarch_py.config.schema import SYSTEM_SWITCH_FILE, Config
from monarch_py.util.hanging import hanging


@dataclass(frozen=True, slots=True)
class Finding:
    """One result of an examination of this node.

    level : 'ok', 'note' (nothing was examined), 'warning' or 'problem'
    what : the thing that was examined
    found : the result, for the user
    hint : what the user can do; '' if there is nothing to do
    """

    level: str
    what: str
    found: str
    hint: str = ""


def is_disabled() -> bool:
    """Whether this process's environment turns the library off."""
    return os.environ.get("MONARCH_DISABLE", "0") not in ("", "0")


def switches(config: Config | None) -> Iterator[Finding]:
    """Yields a finding for each switch that turns Monarch off now. A switch is a file or an
    environment variable. Also yields a finding if the value of MONARCH_LOG is not a log level."""
    files = [SYSTEM_SWITCH_FILE, config.switch_file if config else None]
    for path in files:
        if path is None:
            continue
        if hanging([path]):
            yield Finding("problem", "switch", f"{path} does not answer", "check its file system")
        elif path.exists():
            yield Finding("warning", "switch", f"{path} turns everything off", "remove it")
    if (level := os.environ.get("MONARCH_LOG", "")).lower() not in ("", "debug"):
        text = f"MONARCH_LOG is {level!r}, which is not a log level, so nothing is logged"
        yield Finding("warning", "switch", text, "set it to debug")
    if is_disabled():
        text = "MONARCH_DISABLE is set, and turns everything off for programs started here"
        yield Finding("warning", "switch", text, "unset it")
