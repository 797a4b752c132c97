"""pre-commit makes the checks of .ci/check, and what these leave out exists."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import yaml

ROOT = Path(__file__).parents[1]
CHECK = ".ci/check"


def test_pre_commit_makes_every_check() -> None:
    listed = subprocess.run(
        [ROOT / CHECK, "--list"], capture_output=True, text=True, check=True
    ).stdout.split()
    (local,) = yaml.safe_load((ROOT / ".pre-commit-config.yaml").read_text())["repos"]
    assert len(listed) > 5
    assert {hook["id"]: hook["entry"] for hook in local["hooks"]} == {
        name: f"{CHECK} {name}" for name in listed
    }


def test_every_name_that_vulture_passes_over_is_in_the_code() -> None:
    table = (ROOT / "pyproject.toml").read_text().partition("\nignore_names = [\n")[2]
    lines = [line for line in table.partition("\n]")[0].splitlines() if "#" not in line]
    names = re.findall(r'"([^"]+)"', "".join(lines))
    assert len(names) > 30
    folders = [ROOT / name for name in ("benchmarks", "csrc", "monarch_py", "tests")]
    code = "\n".join(path.read_text() for folder in folders for path in folder.rglob("*.py"))
    for name in names:
        pattern = re.escape(name).replace(r"\*", r"\w+")
        assert re.search(rf"\b{pattern}\b", code), name
