"""Tests that pre-commit runs every check of .ci/check, and that the names in the project's lists
and pages exist."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import yaml

ROOT = Path(__file__).parents[1]
CHECK = ".ci/check"


def checks() -> list[str]:
    words = [str(ROOT / CHECK), "--list"]
    return subprocess.run(words, capture_output=True, text=True, check=True).stdout.split()


def test_pre_commit_makes_every_check() -> None:
    (local,) = yaml.safe_load((ROOT / ".pre-commit-config.yaml").read_text())["repos"]
    assert len(checks()) > 5
    assert {hook["id"]: hook["entry"] for hook in local["hooks"]} == {
        name: f"{CHECK} {name}" for name in checks()
    }


def test_every_name_that_vulture_passes_over_is_in_the_code() -> None:
    table = (ROOT / "pyproject.toml").read_text().partition("\nignore_names = [\n")[2]
    lines = [line for line in table.partition("\n]")[0].splitlines() if "#" not in line]
    names = re.findall(r'"([^"]+)"', "".join(lines))
    assert len(names) > 30
    folders = [ROOT / name for name in ("benchmarks", "csrc", "monarch_py", "tests")]
    files = [path for folder in folders for path in folder.rglob("*.py")]
    words = {word for path in files for word in re.findall(r"\w+", path.read_text())}
    for name in names:
        pattern = re.compile(re.escape(name).replace(r"\*", r"\w+"))
        assert any(map(pattern.fullmatch, words)), name


def test_contributing_names_commands_that_exist() -> None:
    page = (ROOT / "docs" / "contributing.md").read_text()
    scripts = {path.name for path in (ROOT / ".ci").iterdir() if path.stat().st_mode & 0o100}
    assert set(re.findall(r"\.ci/([a-z]+)\b(?!\.)", page)) == scripts
    assert set(re.findall(r"\.ci/check ([a-z-]+)", page)) < set(checks())
    assert len(list((ROOT / "tests").glob("*/test_*sanitize*.py"))) > 4


def test_nothing_depends_on_one_registry_of_packages() -> None:
    """No script and no page names a registry of packages, so that users can choose the registry
    from which they install."""
    places = [*(ROOT / ".ci").iterdir(), *ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md")]
    pattern = r"pypi|pythonhosted|index-url|find-links|trusted-host|deb\.debian\.org"
    assert [path.name for path in places if re.search(pattern, path.read_text(), re.I)] == []
