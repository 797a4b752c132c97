"""The figures of docs/simulator.md: what the command draws and what the page shows."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from benchmarks.simulator.figures import BATCHES_STAGED, CASES, divided, is_drawn, scaled
from benchmarks.simulator.tables import put_tables, table
from monarch_py.simulator.keys import load_scenario, shipped_scenarios

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "simulator.md").read_text()


def test_every_shipped_scenario_has_its_figure() -> None:
    assert {case.scenario for case in CASES} == set(shipped_scenarios())
    assert len({case.name for case in CASES}) == len(CASES)


def test_the_page_shows_what_is_drawn() -> None:
    made = {f"simulator_{case.name}.png" for case in CASES if is_drawn(case)}
    made.add("simulator_nopfs_fig9_grid4.png")
    assert set(re.findall(r"\(img/(simulator_\w+\.png)\)", PAGE)) == made


def test_every_table_of_the_page_is_filled() -> None:
    tables = re.findall(r"<!-- table (\S+) -->\n(.*?)<!-- end -->", PAGE, re.S)
    assert {name for name, _ in tables} >= {"nopfs", "lobster", "solar", "differences", "causes"}
    assert all(body.count("\n| ") >= 5 for _, body in tables)


def test_a_part_has_the_same_share_of_room() -> None:
    whole = load_scenario(shipped_scenarios()["nopfs_fig8_2"])
    part = divided(whole, 1000)
    assert part.dataset.files == whole.dataset.files // 1000
    room, files = part.classes[1].capacity_bytes, part.dataset.files
    ratio = whole.classes[1].capacity_bytes / whole.dataset.files
    assert room / files == pytest.approx(ratio, rel=1e-3)
    # The other sizes are divided by 1000. But a staging buffer of 5 GiB / 1000 would not hold
    # BATCHES_STAGED batches of 32 samples, so the buffer is made just large enough for them.
    least = BATCHES_STAGED * 32 * whole.sizes().mean()
    assert part.staging.capacity_bytes == int(least) > whole.staging.capacity_bytes // 1000


def test_a_slower_file_system_is_slower_alone() -> None:
    whole = load_scenario(shipped_scenarios()["nopfs_fig8_1"])
    slower = divided(whole, 1, 4)
    assert slower.pfs.total(4) == whole.pfs.total(4) / 4
    assert slower.classes == whole.classes
    assert slower.dataset == whole.dataset


def test_times_are_those_of_all_files() -> None:
    results = {"total_seconds": 2.0, "stall_seconds": 1.0, "epoch_seconds": [0.5, 1.5]}
    document = {"policies": {"a": results, "b": {"unsupported": "why"}}}
    made = scaled(document, 10)["policies"]["a"]
    assert made == {"total_seconds": 20.0, "stall_seconds": 10.0, "epoch_seconds": [5.0, 15.0]}


def test_tables_go_between_their_comments(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("a\n<!-- table x -->\nold\n<!-- end -->\nb\n<!-- table y -->\n<!-- end -->\n")
    for _ in range(2):
        put_tables(page, {"x": table(["", "n"], [["r\\1", "2"]]), "none": ["z"]})
        assert page.read_text() == (
            "a\n<!-- table x -->\n\n|  | n |\n| --- | --: |\n| r\\1 | 2 |\n\n<!-- end -->\nb\n"
            "<!-- table y -->\n<!-- end -->\n"
        )
