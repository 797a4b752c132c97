"""`monarch status`: its text and its report, which has the fields that docs/status.md describes."""

from __future__ import annotations

import json
import mmap
import os
import re
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from cli.conftest import FILES, Factory
from cli.processes import on_a_terminal
from support.draws import cases
from support.nodes import Nodes
from support.session import MIB, Session, wait_until

from monarch_py.daemon.history import COUNTED
from monarch_py.daemon.status import SCHEMA_VERSION
from monarch_py.native import Reason
from monarch_py.report.summary import exchanged, opened, read_from_source
from monarch_py.storage.memory import available_bytes
from monarch_py.util.units import format_size

PAGE = Path(__file__).parents[2] / "docs" / "status.md"
ONLY_WITH_OPEN = {"open"}
ONLY_AFTER_RUN = {"exit_status", "problem", "run"}
ONLY_WITH_HISTORY = {"history", "files", "rooms", "memory_bytes", "other_jobs"}


def documented(heading: str) -> list[tuple[str, str]]:
    """Returns (field, meaning) for each row of the tables below a heading of docs/status.md."""
    section = PAGE.read_text().partition(f"\n## {heading}\n")[2].partition("\n## ")[0]
    rows = re.findall(r"^\| `(\w+)` \| (?:.*?\| )?(.*) \|$", section, re.M)
    assert rows, heading
    return rows


def fields(heading: str) -> set[str]:
    names = [name for name, _ in documented(heading) if name not in REASONS]
    assert len(names) == len(set(names))
    return set(names)


REASONS = {reason.name.lower() for reason in Reason} - {"none"}


def fields_of_columns(heading: str) -> set[str]:
    """Returns the fields that the table below this heading of the page describes. One row of the
    table may describe several fields."""
    section = PAGE.read_text().partition(f"\n## {heading}\n")[2].partition("\n## ")[0]
    cells = re.findall(r"^\| (`.*?`) \| list", section, re.M)
    return {name for cell in cells for name in re.findall(r"`(\w+)`", cell)}


def of_session(session: Session, *words: str) -> dict[str, Any]:
    done = session.monarch("status", "--json", *words)
    assert done.returncode == 0, done.stderr
    report: dict[str, Any] = json.loads(done.stdout)
    return report


# --- the schema ---------------------------------------------------------------------------------


def test_the_report_has_the_documented_fields(served: Session) -> None:
    top = fields("The report") - ONLY_AFTER_RUN - ONLY_WITH_HISTORY
    report = of_session(served)
    assert set(report) == top - ONLY_WITH_OPEN
    assert set(of_session(served, "--open")) == top
    with_history = of_session(served, "--history")
    assert set(with_history) == (top | ONLY_WITH_HISTORY) - ONLY_WITH_OPEN
    assert set(with_history["files"]) == fields("`files`")
    assert set(with_history["history"]) == {"seconds", *COUNTED, "epoch", "readers", "memory_bytes"}
    assert set(with_history["history"]) == fields_of_columns("`history`")
    assert set(report["tiers"][0]) == fields("Each of `tiers`")
    assert set(report["sources"][0]) == fields("Each of `sources`")
    assert set(report["totals"]) == fields("`totals`")
    assert report["plans"] == []
    assert report["staging"] is None  # test_staging.py checks the fields of a staging area
    assert report["nodes"] is None  # the next test checks the fields of `nodes`
    assert report["schema"] == SCHEMA_VERSION
    assert f"This is schema {SCHEMA_VERSION}." in PAGE.read_text()


def test_what_a_node_is_among_others_has_the_documented_fields(
    tmp_path: Path, source: Path
) -> None:
    with Nodes(tmp_path / "nodes", [source] * 2, [MIB] * 2).start() as nodes:
        said = nodes[0].nodes()
    assert set(said) == fields("`nodes`")
    mine, other = sorted(said["members"], key=len)
    assert mine["rank"] == 0
    assert set(other) == fields("Each of `members`")


def test_all_nodes_have_the_documented_fields(served: Session) -> None:
    report = of_session(served, "--all")
    assert set(report) == {"schema", "nodes"}
    (node,) = report["nodes"]
    assert set(node) == fields("`status --all --json`")
    assert set(node["status"]) == set(of_session(served))


def test_the_report_of_a_run_has_the_documented_fields(session: Session) -> None:
    file = session.directory / "run.json"
    assert session.monarch("run", "--json", str(file), "--", "true").returncode == 0
    assert set(json.loads(file.read_text())) == fields("The report") - ONLY_WITH_OPEN


def test_what_else_the_advice_needs(served: Session) -> None:
    """The report says how many bytes each tier could hold, and how much more memory the daemon may
    use within the limits of its cgroups."""
    report = of_session(served, "--history")
    system = os.statvfs(served.tiers[0])
    room = report["rooms"][0] - report["tiers"][0]["used_bytes"]
    assert room == pytest.approx(system.f_bavail * system.f_frsize, rel=0.02)
    for said in (report["memory_bytes"], report["history"]["memory_bytes"][-1]):
        assert said == pytest.approx(available_bytes(), rel=0.2)


def test_other_jobs_are_counted(session: Session) -> None:
    start, status = ("start", "--alone"), ("status", "--json", "--history")
    assert session.monarch(*start, environment={"MONARCH_JOB": "1"}).returncode == 0
    try:
        for job, others in (("1", 0), ("2", 1)):
            done = session.monarch(*status, environment={"MONARCH_JOB": job})
            assert json.loads(done.stdout)["other_jobs"] == others
    finally:
        session.monarch("stop", "--force")


def test_a_tier_that_is_held_elsewhere_has_the_first_seven_fields(
    session_factory: Factory, served: Session, tmp_path: Path
) -> None:
    own = tmp_path / "own"
    own.mkdir()
    tiers = [{"mount_point": path, "max_storage_quota": MIB} for path in (served.tiers[0], own)]
    other = session_factory(served.source, tiers=tiers).start()
    held, fine = of_session(other)["tiers"]
    assert set(held) == {name for name, _ in documented("Each of `tiers`")[:7]}
    assert not held["usable"]
    assert f"is held by the daemon of {served.config} (process " in held["why"]
    assert (fine["usable"], fine["why"]) == (True, "")
    assert f"\n{held['why']}\n" in other.monarch("status").stdout


def test_every_reason_is_documented() -> None:
    section = PAGE.read_text().partition("The reasons of `bypass`:")[2].partition("\n## ")[0]
    assert set(re.findall(r"^\| `(\w+)` \|", section, re.M)) == REASONS


# --- the numbers --------------------------------------------------------------------------------


def test_the_numbers_of_known_reads(served: Session) -> None:
    before = of_session(served)["totals"]
    for _ in range(2):
        served.run(["cat", served.source / "a", served.source / "d/c"], check=True)
    report = of_session(served)
    gained = {name: report["totals"][name] - before[name] for name in before}
    assert (gained["opens"], gained["hits"], gained["misses"]) == (4, 4, 0)
    assert gained["bytes_from_tier"] == 2 * (FILES["a"] + FILES["d/c"])
    assert gained["bytes_from_source"] == 0
    assert report["totals"]["fills"] == len(FILES)
    assert report["totals"]["filled_bytes"] == sum(FILES.values())
    assert report["totals"]["source_bytes_read_by_fills"] == sum(FILES.values())
    source, tier = report["sources"][0], report["tiers"][0]
    assert (source["files"], source["bytes"]) == (len(FILES), sum(FILES.values()))
    assert (source["present"], source["present_bytes"]) == (source["files"], source["bytes"])
    # The catalog also has entries of the source's root and of the directory `d`.
    assert report["catalog_entries"] == len(FILES) + 2
    assert tier["files"] == len(FILES)
    assert sum(FILES.values()) < tier["used_bytes"] <= sum(FILES.values()) + 3 * 4096
    assert tier["used_bytes"] + tier["free_bytes"] < tier["quota_bytes"] == 256 * MIB
    assert not (report["switched_off"] or report["catalog_full"] or report["pending"])


def test_files_add_up_over_their_states(session_factory: Factory, source: Path) -> None:
    tier = source.parent / "small"
    tier.mkdir()
    session = session_factory(
        [{"path": str(source), "exclude": ["d/*"]}],
        tiers=[{"mount_point": tier, "max_storage_quota": 60_000}],
    )
    session.start().wait_all_present()
    told = of_session(session)["sources"][0]
    assert told["bypass"] == {"excluded": 1, "no_room": 1}
    assert (told["present"], told["present_bytes"]) == (1, FILES["b"])
    counted = [told[state] for state in ("present", "filling", "wanted", "absent")]
    assert sum(counted) + sum(told["bypass"].values()) == told["files"] == len(FILES)


def test_a_changed_file_is_counted_as_such(served: Session) -> None:
    served.python("open(__import__('sys').argv[1], 'a').write('more')", served.source / "b")
    wait_until(
        lambda: of_session(served)["sources"][0]["bypass"] == {"changed": 1},
        what="the note of the change",
    )
    # The copy is removed after the change was noted.
    wait_until(
        lambda: of_session(served)["tiers"][0]["files"] == len(FILES) - 1,
        what="the removal of the changed file's copy",
    )


# --- for people ---------------------------------------------------------------------------------


def test_the_text_names_tiers_and_sources(served: Session) -> None:
    done = served.monarch("status")
    assert done.returncode == 0
    lines = done.stdout.splitlines()
    report = of_session(served)
    pid, used = report["pid"], report["tiers"][0]["used_bytes"]
    assert re.match(rf"Daemon {pid} \(version \S+\): serving for \d+ s, 0 fills pending", lines[0])
    # The output does not go to a terminal, so it is plain text. A row of a table is one line. Every
    # column has a name, and a cell in each row.
    rows = [re.split(" {2,}", line) for line in lines]
    assert rows[2:5] == [
        ["Tiers"],
        ["mount point", "quota", "used", "full", "copies"],
        [str(served.tiers[0]), "256 MiB", format_size(used), "0 %", "3"],
    ]
    assert rows[6:9] == [
        ["Sources"],
        ["source", "files", "size", "with copy", "share"],
        [str(served.source), "3", "87.9 KiB", "3", "100 %"],
    ]
    assert lines[10:] == [
        "Opens: 3 opens of dataset files, 0 (0.0 %) from copies",
        f"Source: {lines[11].split()[1]} KiB read (87.9 KiB to fill copies,"
        f" {lines[11].split('copies, ')[1].split(' by')[0]} by programs); 87.9 KiB without Monarch",
    ]
    assert all(line == line.rstrip() for line in lines)


def shown(session: Session, width: int, *words: str) -> str:
    """Returns what the command prints on a terminal of this width."""
    of_terminal = {"COLUMNS": str(width), "TERM": "xterm"}
    status, said = on_a_terminal(session, *words, columns=width, environment=of_terminal)
    assert status == 0
    return re.sub(r"\x1b\[[0-9;]*m", "", said.replace("\r\n", "\n"))


@pytest.mark.parametrize("width", cases([40, 80], short=[40]))
def test_a_narrow_terminal_cuts_nothing(served: Session, width: int) -> None:
    """On a narrow terminal no path is cut. If a table would be too wide, its paths are printed on
    lines of their own."""
    for words in (["status"], ["status", "--all"], ["status", "--open"]):
        lines = shown(served, width, *words).splitlines()
        text = " ".join(" ".join(lines).split())
        paths = [str(served.source), str(served.tiers[0])] if words != ["status", "--all"] else []
        assert [path for path in paths if path not in lines] == []
        assert [line for line in lines if len(line) > width and line not in paths] == []
        assert "256 MiB" in text.replace("\u00a0", " ")
    assert "No file is open." in text


def test_a_daemon_alone_has_its_hosts_name(served: Session) -> None:
    lines = served.monarch("status", "--all").stdout.splitlines()
    rows = [re.split(" {2,}", line) for line in lines]
    assert rows[2][:3] == ["0", socket.gethostname(), "serving"]


def test_what_peers_gave_is_not_the_sources() -> None:
    totals = dict.fromkeys(("opens", "hits", "misses", "bytes_from_tier"), 0)
    totals |= {"opens": 2200, "hits": 1551, "misses": 649, "bytes_from_source": 81 * MIB}
    totals |= {"bytes_from_peers": 56 * MIB, "source_bytes_read_by_fills": 24 * MIB}
    totals |= {"source_bytes_read_by_programs": MIB, "bytes_while_filling": 0}
    assert opened(totals) == "2,200 opens of dataset files, 1,551 (70.5 %) from copies"
    gave = "25 MiB read (24 MiB to fill copies, 1 MiB by programs)"
    assert read_from_source(totals) == f"{gave}; 81 MiB without Monarch"
    (between,) = exchanged({"totals": totals, "served_bytes": 0})
    assert between == "56 MiB came from other nodes, 0 B went to them"


def test_an_administrators_switch_is_told(session_factory: Factory, source: Path) -> None:
    switch = source.parent / "off"
    session = session_factory(source, switch_file=str(switch)).start()
    assert not of_session(session)["switched_off"]
    switch.touch()
    wait_until(lambda: of_session(session)["switched_off"], what="the daemon's look at the switch")
    assert "switched off by an administrator" in session.monarch("status").stdout


# --- open files ---------------------------------------------------------------------------------

HOLDER = """
import mmap, os, sys
kept = [os.open(path, os.O_RDONLY) for path in sys.argv[2:]]
if sys.argv[1] == "map":
    view = mmap.mmap(kept[0], 0, access=mmap.ACCESS_READ)
    os.close(kept[0])
print("holding", flush=True)
sys.stdin.read()
"""


@contextmanager
def holding(session: Session, how: str, *paths: Path, preload: bool = True) -> Iterator[int]:
    """Runs a process that keeps the files open until the `with` statement ends. If `how` is "map",
    the process maps the first file and closes that file's descriptor. Yields the process ID."""
    with subprocess.Popen(
        [sys.executable, "-c", HOLDER, how, *map(str, paths)],
        env=session.env(preload),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        assert process.stdout.readline() == "holding\n"
        yield process.pid
        process.stdin.close()


def rows_of(session: Session, pid: int) -> list[dict[str, Any]]:
    rows = [row for row in of_session(session, "--open")["open"] if row["pid"] == pid]
    for row in rows:
        assert set(row) == fields("Each of `open`")
    return rows


def test_open_says_who_holds_a_copy_and_who_the_source(served: Session) -> None:
    paths = [served.source / "a", served.source / "b"]
    with (
        holding(served, "open", *paths) as under,
        holding(served, "open", *paths, preload=False) as without,
    ):
        copies, sources = rows_of(served, under), rows_of(served, without)
        text = served.monarch("status", "--open").stdout
    assert sorted(row["path"] for row in copies) == list(map(str, paths))
    assert sorted(row["path"] for row in sources) == list(map(str, paths))
    assert {row["served_by"] for row in copies} == {"tier 0"}
    assert {row["served_by"] for row in sources} == {"source"}
    assert all(isinstance(row["fd"], int) for row in copies + sources)
    assert "Open files" in text
    assert str(under) in text
    assert rows_of(served, under) == []


def test_open_says_who_has_a_mapping_of_a_closed_descriptor(served: Session) -> None:
    with holding(served, "map", served.source / "a") as pid:
        rows = rows_of(served, pid)
        text = served.monarch("status", "--open").stdout
    (mapping,) = [row for row in rows if row["fd"] is None]
    assert mapping["path"] == str(served.source / "a")
    assert mapping["served_by"] == "tier 0"
    assert "mapped" in text


def test_open_leaves_out_what_is_no_dataset(served: Session, tmp_path: Path) -> None:
    other = tmp_path / "other"
    other.write_bytes(b"x" * mmap.PAGESIZE)
    with holding(served, "open", other) as pid:
        assert rows_of(served, pid) == []


def test_open_is_asked_for(served: Session) -> None:
    with holding(served, "open", served.source / "a"):
        assert "open" not in of_session(served)
    assert os.getpid() not in {row["pid"] for row in of_session(served, "--open")["open"]}


@pytest.mark.parametrize("heading", ["The report", "Each of `tiers`", "Each of `sources`"])
def test_every_field_has_a_meaning(heading: str) -> None:
    assert all(len(meaning) > 5 for _, meaning in documented(heading))
