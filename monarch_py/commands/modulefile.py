"""The Tcl modulefile by which an administrator offers Monarch to all users of a system."""

import sys
from pathlib import Path

from monarch_py import __version__
from monarch_py.native import LIBRARY

__all__ = ["modulefile"]

TEMPLATE = """\
#%Module1.0
## Monarch {version}: works with environment-modules and with Lmod.

proc ModulesHelp {{ }} {{
    puts stderr "Serves datasets from copies on the node's own storage."
    puts stderr "Name your tiers in a file, set MONARCH_CONFIG to it, and start a daemon:"
    puts stderr "    monarch start -c tiers.yaml"
    puts stderr "MONARCH_DISABLE=1 turns everything off."
}}

module-whatis "storage tiering for deep-learning training"
conflict monarch

prepend-path PATH {commands}
prepend-path LD_PRELOAD {library}
{config}"""


def modulefile(config_file: Path | None) -> str:
    """Text of the modulefile. If it names a configuration, users need none of their own."""
    config = f"setenv MONARCH_CONFIG {{{config_file.resolve()}}}\n" if config_file else ""
    return TEMPLATE.format(
        version=__version__,
        commands=f"{{{Path(sys.executable).parent}}}",  # in Tcl's braces no character is special
        library=f"{{{LIBRARY}}}",
        config=config,
    )
