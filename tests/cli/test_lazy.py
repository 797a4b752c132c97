"""A command loads only the modules that it needs, and no module of another command."""

from __future__ import annotations

import subprocess
import sys
from importlib import import_module
from pathlib import Path

import click
import pytest

from monarch_py import cli


def test_every_command_is_known_by_its_module() -> None:
    modules = {path.stem for path in Path(cli.__file__).parent.glob("*.py")}
    modules -= {"__init__", "messages", "options", "screen"}
    assert set(cli.MODULES) == modules
    for module, names in cli.MODULES.items():
        commands = [getattr(import_module(f"monarch_py.cli.{module}"), name) for name in names]
        assert [command.name for command in commands] == list(names)
    context = click.Context(cli.group)
    assert cli.group.list_commands(context) == sorted(cli.COMMANDS)


# The modules are imported in this order in one process, and loaded modules stay loaded. `lifecycle`
# comes first, because it prints no table, and a test checks that importing it does not load rich.
MODULES = ["lifecycle", "view", "warm", "plan"]
IMPORTS = """
import sys
from importlib import import_module
for module in sys.argv[1:]:
    import_module(f"monarch_py.cli.{module}")
    print(*sys.modules)
"""


@pytest.fixture(scope="module")
def loaded() -> dict[str, list[str]]:
    """Imports the modules one after the other in one process. Returns the names of all modules
    that are loaded after each of these imports."""
    words = [sys.executable, "-c", IMPORTS, *MODULES]
    said = subprocess.run(words, capture_output=True, text=True, check=True, timeout=60).stdout
    return dict(zip(MODULES, map(str.split, said.splitlines()), strict=True))


def test_who_looks_at_a_daemon_does_not_load_one(loaded: dict[str, list[str]]) -> None:
    for module in MODULES:
        assert f"monarch_py.cli.{module}" in loaded[module]
        assert not {"monarch_py.daemon.server", "monarch_py.simulator"} & set(loaded[module])


def test_who_prints_no_table_does_not_load_what_draws_one(loaded: dict[str, list[str]]) -> None:
    assert "rich" not in loaded["lifecycle"]
