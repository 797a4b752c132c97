"""A command loads what it needs, and no other command."""

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


@pytest.mark.parametrize("module", ["lifecycle", "view", "warm", "plan"])
def test_who_looks_at_a_daemon_does_not_load_one(module: str) -> None:
    script = f"import sys, monarch_py.cli.{module}\nprint(*sys.modules)"
    loaded = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True, timeout=60
    ).stdout.split()
    assert f"monarch_py.cli.{module}" in loaded
    assert not {"monarch_py.daemon.server", "monarch_py.simulator"} & set(loaded)


def test_who_prints_no_table_does_not_load_what_draws_one() -> None:
    script = "import sys, monarch_py.cli.lifecycle\nprint(*sys.modules)"
    words = [sys.executable, "-c", script]
    loaded = subprocess.run(words, capture_output=True, text=True, check=True, timeout=60).stdout
    assert "rich" not in loaded.split()
