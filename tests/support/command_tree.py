"""The commands of the command line as a user sees them: names, help, examples."""

from __future__ import annotations

from collections.abc import MutableMapping

import click

from monarch_py.cli import group


def subcommands(
    command: click.Command, context: click.Context
) -> MutableMapping[str, click.Command]:
    """Returns the subcommands of a group by name, without hidden ones."""
    if not isinstance(command, click.Group):
        return {}
    found = {name: command.get_command(context, name) for name in command.list_commands(context)}
    shown = {name: each for name, each in found.items() if each is not None and not each.hidden}
    # Without a short help, click_man would call a deprecated function of click.
    for each in shown.values():
        each.short_help = each.get_short_help_str(80)
    return shown


def leaves(
    name: str = "monarch", command: click.Command = group, parent: click.Context | None = None
) -> dict[str, click.Context]:
    """Returns the context of each command that is not a group. The keys are the words that a user
    types for the command."""
    context = click.Context(command, parent, name, terminal_width=100, **command.context_settings)
    if not isinstance(command, click.Group):
        return {context.command_path: context}
    found: dict[str, click.Context] = {}
    for each, sub in subcommands(command, context).items():
        found |= leaves(each, sub, context)
    return found


def examples(command: click.Command) -> list[str]:
    """Returns the example lines at the end of a command's help."""
    return [line.strip() for line in (command.epilog or "").splitlines()[2:]]
