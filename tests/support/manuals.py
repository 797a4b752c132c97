"""The manual pages and the shell completions of the command line, made from the commands.

``PYTHONPATH=tests python -m support.manuals`` writes them anew.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, MutableMapping
from pathlib import Path

import click
from click.shell_completion import get_completion_class
from click_man.core import generate_man_page

from monarch_py import __version__
from monarch_py.cli import group

PACKAGING = Path(__file__).resolve().parents[2] / "packaging"
# The completion script of each shell, where a package installs it below share/.
COMPLETIONS = {
    "bash": "bash-completion/completions/monarch",
    "fish": "fish/vendor_completions.d/monarch.fish",
    "zsh": "zsh/site-functions/_monarch",
}


def _commands(command: click.Command, context: click.Context) -> MutableMapping[str, click.Command]:
    if not isinstance(command, click.Group):
        return {}
    found = {name: command.get_command(context, name) for name in command.list_commands(context)}
    shown = {name: each for name, each in found.items() if each is not None and not each.hidden}
    for each in shown.values():  # else the generator asks click in a way that goes out of use
        each.short_help = each.get_short_help_str(80)
    return shown


def _pages(
    name: str, command: click.Command, parent: click.Context | None
) -> Iterator[tuple[str, str]]:
    context = click.Context(command, info_name=name, parent=parent, max_content_width=100)
    below = _commands(command, context)
    if isinstance(command, click.Group):
        command.commands = below  # where the generator looks for them
    # The version takes the place of a date, which would be another one each day.
    page = generate_man_page(context, version=__version__, date=f"Monarch {__version__}")
    name = f"{context.command_path.replace(' ', '-')}.1"
    yield name, page.rstrip("\n") + "\n" + _examples(command)
    for each, sub in below.items():
        yield from _pages(each, sub, context)


def examples(command: click.Command) -> list[str]:
    """The lines that the end of a command's help shows."""
    return [line.strip() for line in (command.epilog or "").splitlines()[2:]]


def _examples(command: click.Command) -> str:
    """As a section of a manual page."""
    lines = [line.replace("\\", "\\e").replace("-", r"\-") for line in examples(command)]
    return "\n".join([".SH EXAMPLES", ".nf", *lines, ".fi", ""]) if lines else ""


def leaves(
    name: str = "monarch", command: click.Command = group, parent: click.Context | None = None
) -> dict[str, click.Context]:
    """All commands that are no group, by what a user types."""
    context = click.Context(command, parent, name, terminal_width=100, **command.context_settings)
    if not isinstance(command, click.Group):
        return {context.command_path: context}
    found: dict[str, click.Context] = {}
    for each, sub in _commands(command, context).items():
        found |= leaves(each, sub, context)
    return found


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
