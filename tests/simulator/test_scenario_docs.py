"""The page docs/scenarios.md lists every switch, and its example works."""

from __future__ import annotations

import re
from pathlib import Path

from benchmarks.published import Behaviour
from monarch_py.simulator.keys import load_scenario

PAGE = (Path(__file__).parents[2] / "docs" / "scenarios.md").read_text()


def test_the_page_shows_the_switches() -> None:
    rows = [f"| `{one.name}` | {one.on} | {one.off} |" for one in Behaviour]
    assert [row for row in rows if row not in PAGE.splitlines()] == []
    assert len(re.findall(r"^\| `[A-Z_]+` \|", PAGE, re.M)) == len(rows)


def test_the_example_of_the_page_works(tmp_path: Path) -> None:
    example = re.findall(r"```yaml\n(.*?)```", PAGE, re.S)[0]  # the first of several
    (tmp_path / "example.yaml").write_text(example)
    assert load_scenario(tmp_path / "example.yaml").nodes == 4
