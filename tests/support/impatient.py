"""Runs `monarch` with other time limits than the package's own. So a test need not wait for a limit
as long as a user would."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping

from support.session import Session

# Arguments: LIMITS WORD... Runs `monarch WORD...` with these limits. The daemons that the command
# starts get the limits too.
PROGRAM = """
import sys
SET = "import importlib, json; [setattr(importlib.import_module(m), n, v) for m, n, v in {}];"
IMPORT = " from monarch_py.daemon.lifecycle import main;"
set_limits = SET.format(sys.argv.pop(1))
exec(set_limits)
from monarch_py.daemon import starting
command_of = starting._command
def impatient(*arguments):
    command = command_of(*arguments)
    code = command.index("-c") + 1
    assert IMPORT in command[code]
    command[code] = command[code].replace(IMPORT, f" {set_limits}{IMPORT}")
    return command
starting._command = impatient
from monarch_py.__main__ import main
main()
"""


def impatient(session: Session, limits: Mapping[str, float], *words: str) -> list[str]:
    """Returns the command line of `monarch WORDS` with the session's configuration.

    limits : values of constants, by their full names, such as `monarch_py.util.hanging.LIMIT_S`
    """
    values = [[*name.rsplit(".", 1), value] for name, value in limits.items()]
    command = [sys.executable, "-c", PROGRAM, json.dumps(values)]
    return [*command, words[0], "-c", str(session.config), *words[1:]]
