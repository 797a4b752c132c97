"""Modulefiles for Environment Modules (Tcl) and Lmod (Lua)."""

import sys
from pathlib import Path

from monarch_py.config.layers import SITE
from monarch_py.native import LIBRARY

# A directory below the installation's prefix that contains only the command `monarch`. The
# modulefile adds this directory to PATH. The directory `bin` is not suitable, because its Python
# interpreter and other commands would hide the user's own commands.
COMMANDS = Path("share/monarch/bin")

HELP = (
    "Serves datasets from copies on the node's own storage. In a job script:",
    "    export MONARCH_SOURCE=/the/dataset",
    "    monarch run -- python train.py",
    "MONARCH_DISABLE=1 turns everything off.",
)
ABOUT = "storage tiering for deep-learning training"


def modulefile(language: str, version: str, prefix: Path | None, site: Path | None) -> str:
    """Returns the text of a modulefile. Unloading the modulefile undoes all its settings.

    language : "tcl" or "lua"
    prefix : the directory in which the package is installed; None if Monarch runs from a checkout
    site : the site's configuration file; None if there is none
    """
    commands = Path(sys.executable).parent if prefix is None else prefix / COMMANDS
    paths = [("PATH", commands), ("LD_PRELOAD", LIBRARY)]
    if prefix is not None:
        paths.insert(1, ("MANPATH", prefix / "share/man"))
    return (_tcl if language == "tcl" else _lua)(version, paths, site)


def _tcl(version: str, paths: list[tuple[str, Path]], site: Path | None) -> str:
    # Tcl substitutes nothing inside braces.
    lines = [f"    puts stderr {{{line}}}" for line in HELP]
    sets = [f"prepend-path {name} {{{path}}}" for name, path in paths]
    return "\n".join(
        [
            "#%Module1.0",
            f"## Monarch {version}: for Environment Modules, and for Lmod.",
            "proc ModulesHelp { } {",
            *lines,
            "}",
            f"module-whatis {{{ABOUT}}}",
            "conflict monarch",
            *sets,
            *(["append-path MANPATH {}"] if len(paths) > 2 else []),
            *([f"setenv {SITE} {{{site}}}"] if site else []),
            "",
        ]
    )


def _lua(version: str, paths: list[tuple[str, Path]], site: Path | None) -> str:
    return "\n".join(
        [
            f"-- Monarch {version}: for Lmod.",
            f"help([==[{chr(10).join(HELP)}]==])",
            f"whatis([==[{ABOUT}]==])",
            'conflict("monarch")',
            *(f'prepend_path("{name}", [==[{path}]==])' for name, path in paths),
            *(['append_path("MANPATH", "")'] if len(paths) > 2 else []),
            *([f'setenv("{SITE}", [==[{site}]==])'] if site else []),
            "",
        ]
    )
