"""The manual pages and the shell completions of the command line, made from the commands.

``PYTHONPATH=tests python -m support.manuals`` writes them anew.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import click
from click.shell_completion import get_completion_class
from click_man.core import generate_man_page

from monarch_py import __version__
from monarch_py.cli import group
from support.command_tree import examples, subcommands

PACKAGING = Path(__file__).resolve().parents[2] / "packaging"
# The completion script of each shell, where a package installs it below share/.
COMPLETIONS = {
    "bash": "bash-completion/completions/monarch",
    "fish": "fish/vendor_completions.d/monarch.fish",
    "zsh": "zsh/site-functions/_monarch",
}


def _pages(
    name: str, command: click.Command, parent: click.Context | None
) -> Iterator[tuple[str, str]]:
    context = click.Context(command, info_name=name, parent=parent, max_content_width=100)
    below = subcommands(command, context)
    if isinstance(command, click.Group):
        command.commands = below  # where the generator looks for them
    # The version takes the place of a date, which would be another one each day.
    page = generate_man_page(context, version=__version__, date=f"Monarch {__version__}")
    name = f"{context.command_path.replace(' ', '-')}.1"
    yield name, page.rstrip("\n") + "\n" + _examples(command)
    for each, sub in below.items():
        yield from _pages(each, sub, context)


def _examples(command: click.Command) -> str:
    """As a section of a manual page."""
    lines = [line.replace("\\", "\\e").replace("-", r"\-") for line in examples(command)]
    return "\n".join([".SH EXAMPLES", ".nf", *lines, ".fi", ""]) if lines else ""


def files() -> dict[str, str]:
    """Path below packaging/share -> content."""
    group.short_help = group.get_short_help_str(80)
    made = {f"man/man1/{name}": page for name, page in _pages("monarch", group, None)}
    for shell, path in COMPLETIONS.items():
        kind = get_completion_class(shell)
        assert kind is not None
        made[path] = kind(group, {}, "monarch", "_MONARCH_COMPLETE").source().strip("\n") + "\n"
    return made


def main() -> int:
    share = PACKAGING / "share"
    made = files()
    for old in share.rglob("*"):
        is_other = str(old.relative_to(share)).startswith("monarch/")  # not made by this module
        if old.is_file() and not is_other and str(old.relative_to(share)) not in made:
            old.unlink()
    for path, text in made.items():
        (share / path).parent.mkdir(parents=True, exist_ok=True)
        (share / path).write_text(text)
    print(f"{len(made)} files below {share.relative_to(Path.cwd())}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
