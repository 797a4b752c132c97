"""Tests `monarch report` and `monarch advise report` on a real run whose readers are killed, on
made-up runs, and on files that are not reports. The page of the real run is shown in a real
browser."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from html.parser import HTMLParser
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pytest
from cli.conftest import FILES, Factory, Monarch
from cli.reports import GIB, made_report, tier, write
from PIL import Image
from support import draws
from support.session import MIB, Session

import monarch_py
from monarch_py.demo.slowsource import SlowSource
from monarch_py.report.recorded import load

COUNT, SIZE, EPOCHS, READERS, RATE = 200, 100_000, 3, 4, 20e6
# The background of the page in each colour scheme.
DAY, NIGHT = (255, 255, 255), (20, 23, 26)
# In each epoch new readers are forked. Each reader kills itself when it has read its files.
JOB = """
import os, random, signal, sys
root, epochs, readers = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
names = sorted(os.path.join(d, f) for d, _, fs in os.walk(root) for f in fs)
for epoch in range(epochs):
    random.Random(epoch).shuffle(names)
    children = []
    for reader in range(readers):
        child = os.fork()
        if child == 0:
            for name in names[reader::readers]:
                with open(name, "rb", buffering=0) as file:
                    while file.read(1 << 20):
                        pass
            os.kill(os.getpid(), signal.SIGKILL)
        children.append(child)
    for child in children:
        os.waitpid(child, 0)
"""


def advice_of(monarch: Monarch, file: Path, *words: str) -> dict[str, Any]:
    done = monarch("advise", "report", str(file), "--json", *words)
    assert done.returncode == 0, done.stderr
    advice: dict[str, Any] = json.loads(done.stdout)
    return advice


def changes_of(monarch: Monarch, file: Path, *words: str) -> dict[str, float]:
    """Returns a dict: the first word of each advised change -> the simulated time of a run with
    this change [s]."""
    advice = advice_of(monarch, file, *words)
    return {c["what"].split()[0]: c["simulated_seconds"] for c in advice["changes"]}


class Page(HTMLParser):
    """Parses a page: its tables by name, the number of its drawings, and all links in it."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tables: dict[str, list[list[str]]] = {}
        self.loaded: list[str] = []
        self.drawings = 0
        self._name, self._cell = "", False
        self.feed(text)

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        found = {name: value or "" for name, value in attributes}
        self.drawings += tag == "svg"
        assert tag != "script"
        self.loaded += [found[name] for name in ("src", "href", "xlink:href") if name in found]
        if tag == "div" and found.get("role") == "region":
            self._name = found["aria-label"]
            self.tables[self._name] = []
        if tag == "tr":
            self.tables[self._name].append([])
        self._cell = tag in ("td", "th")
        if self._cell:
            self.tables[self._name][-1].append("")

    def handle_endtag(self, tag: str) -> None:
        self._cell = self._cell and tag not in ("td", "th")

    def handle_data(self, data: str) -> None:
        if self._cell:
            self.tables[self._name][-1][-1] += data


def page_of(monarch: Monarch, file: Path, *words: str) -> tuple[Path, Page]:
    output = file.with_suffix(".html")
    done = monarch("report", str(file), "-o", str(output), *words)
    assert done.returncode == 0, done.stderr
    return output, Page(output.read_text())


# --- a real run ---------------------------------------------------------------------------------


@pytest.fixture
def ran(
    session_factory: Factory, slow_factory: Callable[..., SlowSource], tmp_path: Path
) -> tuple[Path, dict[str, Any]]:
    """Runs a job whose tier has room for half of the files. Returns the file with the run's report,
    and the report."""
    slow = slow_factory()
    for number in range(COUNT):
        path = slow.backing / f"class{number // 20:02}" / f"{number:04}.jpg"
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(bytes([number]) * SIZE)
    tier0 = tmp_path / "tier0"
    tier0.mkdir()
    quota = COUNT // 2 * (-(-SIZE // 4096) * 4096)
    tiers = [{"mount_point": tier0, "max_storage_quota": quota}]
    session = session_factory(slow.mountpoint, tiers=tiers, prefetch="auto")
    slow.rate(RATE)
    file = tmp_path / "run.json"
    job = [sys.executable, "-c", JOB, str(slow.mountpoint), str(EPOCHS), str(READERS)]
    done = session.monarch("run", "--json", str(file), "--", *job)
    assert done.returncode == 0, done.stderr
    return file, json.loads(file.read_text())


def test_a_real_run(ran: tuple[Path, dict[str, Any]], monarch: Monarch) -> None:
    file, report = ran
    assert report["run"]["totals"]["opens"] == COUNT * EPOCHS
    assert report["history"]["opens"][-1] == COUNT * EPOCHS
    assert report["history"]["hits"][-1] == report["run"]["totals"]["hits"]
    assert sum(report["files"]["count"]) == COUNT
    copied = sum(report["files"]["copied_bytes"][0])
    assert copied == report["sources"][0]["present_bytes"] <= COUNT // 2 * SIZE
    output, page = page_of(monarch, file)
    assert page.drawings == 4
    ratios = [float(row[1].rstrip(" %")) for row in page.tables["Hit ratio"][1:]]
    assert len(ratios) == EPOCHS
    # In later epochs half of the files have copies.
    assert ratios[0] < 45 < min(ratios[1:]) <= max(ratios[1:]) < 55
    copies, source = np.array(page.tables["Throughput"][1:], float)[:, 1:].T
    assert 0.5 * RATE / MIB < np.median(source) < 1.2 * RATE / MIB
    assert copies[: len(copies) // 4].mean() < copies[len(copies) // 2 :].mean()
    advised = [row[0] for row in page.tables["What would have helped"]]
    assert any(what.startswith("raise max_storage_quota of") for what in advised)
    advice = advice_of(monarch, file)
    assert advice["simulated_seconds"] == pytest.approx(advice["measured_seconds"], rel=0.3)
    best = advice["changes"][0]["simulated_seconds"]
    # With the best change, all files have room, so each file is read from the source only once. In
    # the reported run, twice as many bytes were read from the source: all files in the first epoch,
    # and half of the files in each of the two later epochs.
    assert best == pytest.approx(advice["simulated_seconds"] / 2, rel=0.2)
    look_at(output)


def look_at(output: Path) -> None:
    """Takes two pictures of the page in a browser, and checks them. One shows the light colour
    scheme on a wide screen, the other the dark colour scheme on a narrow screen."""
    desk = shot(output, 1280)
    phone = shot(output, 400, "--blink-settings=preferredColorScheme=0")
    for picture, paper in ((desk, DAY), (phone, NIGHT)):
        assert tuple(picture[0, 0]) == paper
        # The lines of the figures and the bars of the hit ratio are there.
        for colour in ((59, 130, 246), (232, 89, 12)):
            assert (abs(picture.astype(int) - colour).sum(axis=2) < 30).sum() > 100, colour
        # The right margin in the picture is empty, so nothing is wider than the page.
        assert (picture[:, -12:] == paper).all()
    # In the dark scheme all letters are light. This also holds for the letters in the figures below
    # the heading "What happened".
    assert (phone[1100:2600].min(axis=2) > 200).sum() > 1000


def shot(output: Path, width: int, *words: str) -> np.ndarray[Any, Any]:
    """Returns a picture of the page in Chromium, as (height, width, 3) bytes."""
    browser = shutil.which("chromium")
    if browser is None:
        pytest.skip("chromium is missing; install the package chromium")
    picture = output.with_name(f"{width}{len(words)}.png")
    profile = output.with_name("profile")
    options = ["--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", *words]
    options += [f"--user-data-dir={profile}", f"--window-size={width},3400"]
    subprocess.run(
        [browser, *options, f"--screenshot={picture}", output.as_uri()],
        check=True,
        timeout=60,
        capture_output=True,
        env={**os.environ, "HOME": str(output.parent)},
    )
    return np.asarray(Image.open(picture).convert("RGB"))


def test_a_daemon_that_runs(served: Session) -> None:
    status = served.monarch("status", "--json", "--history")
    assert status.returncode == 0, status.stderr
    done = subprocess.run(
        [sys.executable, "-m", "monarch_py", "advise", "report", "-", "--json"],
        input=status.stdout,
        env=served.env(preload=False),
        capture_output=True,
        text=True,
        check=True,
    )
    assert json.loads(done.stdout)["measured_seconds"] > 0
    refused = served.monarch("status", "--history")
    assert (refused.returncode, refused.stdout) == (2, "")
    assert "--history has no table; give --json too" in refused.stderr


def test_a_run_with_a_daemon_that_has_served_before(
    served: Session, source: Path, tmp_path: Path
) -> None:
    """The report covers only the run, although its daemon has served other programs before."""
    for _ in range(3):
        served.run(["cat", source / "a", source / "b"], check=True)
    file = tmp_path / "run.json"
    words = ["cat", str(source / "a"), str(source / "b")]
    assert served.monarch("run", "--json", str(file), "--", *words).returncode == 0
    run = load(file)
    assert run.report.totals["opens"] >= 8
    assert run.counted["opens"].sum() == run.counted["hits"].sum() == 2
    assert run.counted["bytes_from_tier"].sum() == FILES["a"] + FILES["b"]
    assert run.length < run.report.uptime_seconds


def test_more_files_than_groups(
    session_factory: Factory, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A report contains the sizes of at most MOST_GROUPS groups of files. If there are more files
    than groups, the sums over the groups equal the sums over the files that `monarch ls` lists."""
    groups = 20
    monkeypatch.setattr("monarch_py.commands.record.MOST_GROUPS", groups)
    source, places = tmp_path / "many", (tmp_path / "a", tmp_path / "b")
    for number in range(2 * groups + 5):
        path = source / f"{number % 3}" / f"{number}"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"." * (1 + number % 7))
    for place in places:
        place.mkdir()
    tiers = [{"mount_point": place, "max_storage_quota": 30 * 4096} for place in places]
    served = session_factory(source, tiers=tiers, prefetch="eager").start()
    status = served.wait_idle()
    files = json.loads(served.monarch("status", "--json", "--history").stdout)["files"]
    rows = json.loads(served.monarch("ls", "--json").stdout)
    assert (len(files["count"]), sum(files["count"])) == (groups, len(rows))
    assert max(files["count"]) <= 3
    assert sum(files["bytes"]) == sum(row["size"] for row in rows)
    copied = [
        sum(row["size"] for row in rows if row["where"] == place["mount_point"])
        for place in status["tiers"]
    ]
    assert [sum(column) for column in files["copied_bytes"]] == copied
    assert min(copied) > 0
    assert files["first"] == sorted(files["first"])
    assert {f"{source}/{name}" for name in files["first"]} < {row["path"] for row in rows}


def test_a_daemon_that_is_killed(session: Session, monarch: Monarch, tmp_path: Path) -> None:
    """If the daemon is killed during a run, its counts are lost, and `monarch report` says so."""
    file = tmp_path / "run.json"
    kill = "import os, signal, sys; os.kill(int(sys.argv[1]), signal.SIGKILL)"
    session.start()
    pid = str(session.status()["pid"])
    done = session.monarch("run", "--json", str(file), "--", sys.executable, "-c", kill, pid)
    session.kill()
    assert done.returncode == 0, done.stderr
    said = monarch("report", str(file), "-o", str(tmp_path / "o.html"))
    assert said.returncode == 1
    assert "holds no report of a daemon: the daemon ended before the command; see" in said.stderr


# --- what the page says -------------------------------------------------------------------------


@pytest.fixture
def undrawn(monkeypatch: pytest.MonkeyPatch) -> None:
    """Leaves out the figures, for tests of a page's text. Drawing the figures takes most of the
    time."""
    monkeypatch.setattr("monarch_py.report.figures._svg", lambda _: "<svg></svg>")


def test_the_page_loads_nothing(monarch: Monarch, tmp_path: Path) -> None:
    output, page = page_of(monarch, write(made_report(), tmp_path))
    assert all(link.startswith(("#", "data:")) for link in page.loaded)
    # SVG identifies its XML namespaces by URLs at www.w3.org, but no browser fetches them.
    others = {url for url in re.findall(r"//([^/\s]+)/", output.read_text())}
    assert others <= {"www.w3.org"}


def test_names_are_no_markup(monarch: Monarch, tmp_path: Path) -> None:
    report = made_report(files=5)
    report["sources"][0]["path"] = "/pfs/<script>alert(1)</script>"
    report["files"]["first"][0] = "<b>&amp;"
    output, page = page_of(monarch, write(report, tmp_path))
    assert "<script" not in output.read_text()
    assert page.tables["Files"][1][1].startswith("/pfs/<script>alert(1)</script>/<b>&amp;")


@pytest.mark.usefixtures("undrawn")
def test_the_page_tells_where_files_and_copies_are(monarch: Monarch, tmp_path: Path) -> None:
    report = made_report(tiers=[tier(60 * MIB, used=50 * MIB, files=500)])
    _, page = page_of(monarch, write(report, tmp_path))
    assert page.tables["Tiers at the end"] == [
        ["tier", "kind", "quota", "used", "copies"],
        ["/local", "ssd", "60 MiB", "50 MiB", "500"],
    ]
    assert page.tables["Sources at the end"] == [
        ["source", "files", "size", "with a copy", "their size", "left to the source"],
        ["/pfs/set", "1,000", "95.4 MiB", "500", "47.7 MiB", "500 no room"],
    ]


@pytest.mark.usefixtures("undrawn")
def test_the_epochs_that_are_given(monarch: Monarch, tmp_path: Path) -> None:
    """With `--epochs 2`, a run of four epochs is shown as two. The first of these two includes the
    run's first epoch, in which no file had a copy yet."""
    file = write(made_report(epochs=4, share=0.9), tmp_path)
    _, page = page_of(monarch, file, "--epochs", "2")
    ratios = [float(row[1].rstrip(" %")) for row in page.tables["Hit ratio"][1:]]
    assert ratios == pytest.approx([45, 90], abs=0.5)


@pytest.mark.usefixtures("undrawn")
def test_the_epochs_of_a_plan(monarch: Monarch, tmp_path: Path) -> None:
    report = made_report(epochs=2, share=1.0)
    points = len(report["history"]["epoch"])
    report["history"]["epoch"] = [None] * 10 + [0] * 100 + [1] * (points - 110)
    _, page = page_of(monarch, write(report, tmp_path))
    assert [row[0] for row in page.tables["Hit ratio"][1:]] == ["0", "1"]


@pytest.mark.parametrize("files", [100_000, pytest.param(1_000_000, marks=pytest.mark.long)])
def test_a_page_of_many_files_is_small(monarch: Monarch, tmp_path: Path, files: int) -> None:
    output, page = page_of(monarch, write(made_report(files=files, epochs=10), tmp_path))
    assert output.stat().st_size <= 3e6
    assert len(page.tables["Files"]) == 1 + 40
    assert sum(int(row[2].replace(",", "")) for row in page.tables["Files"][1:]) == files


# --- advice -------------------------------------------------------------------------------------


# For each advised change: its first word, and the rate [GiB/s] of the tier that it adds or
# enlarges.
TIERS = (("raise", 1), ("put", 4))


def test_more_room(monarch: Monarch, tmp_path: Path) -> None:
    """The advice says how long a run with more room would take. The reported run was limited by its
    source. It read the complete dataset from the source in the first epoch, and half of the dataset
    in each of the other three epochs. With room for all files, it would read the dataset once from
    the source and three times from the tier."""
    file = write(made_report(epochs=4, share=0.5), tmp_path)
    advice = advice_of(monarch, file)
    assert advice["simulated_seconds"] == pytest.approx(advice["measured_seconds"], rel=0.05)
    found = changes_of(monarch, file)
    dataset = 1000 * 100_000
    expected = {name: dataset / 100e6 + 3 * dataset / (n * GIB) for name, n in TIERS}
    assert found == pytest.approx(expected, rel=0.03)
    assert "the training computes nothing" in " ".join(advice["assumptions"])


def test_no_more_than_there_is_room_for(monarch: Monarch, tmp_path: Path) -> None:
    """The advised quota fits into the tier's file system. The advised RAM tier takes at most half
    of the memory that was free throughout the run."""
    report = made_report(epochs=4, share=0.5, rooms=[80 * 10**6])
    history = report["history"]["memory_bytes"]
    history[len(history) // 2] = 20 * MIB
    file = write(report, tmp_path)
    names = [change["what"] for change in advice_of(monarch, file)["changes"]]
    assert names == [
        "raise max_storage_quota of /local to 69MiB, the most that fits on its disk",
        "put a RAM tier of 10MiB (on a tmpfs) before the other tiers",
    ]
    report["rooms"] = [50 * 10**6]
    report["memory_bytes"] = MIB
    assert changes_of(monarch, write(report, tmp_path)) == {}


@pytest.mark.usefixtures("undrawn")
def test_a_daemon_that_other_jobs_use(monarch: Monarch, tmp_path: Path) -> None:
    """If other jobs used the daemon, no change is advised, because the daemon's counts do not
    separate their reads from those of the run."""
    file = write(made_report(epochs=4, share=0.5, other_jobs=2), tmp_path)
    advice = advice_of(monarch, file)
    assert advice["changes"] == []
    assert "other jobs used the daemon too" in advice["assumptions"][0]
    assert "The daemon also served 2 other jobs" in page_of(monarch, file)[0].read_text()


def test_a_training_that_is_no_faster_gains_nothing(monarch: Monarch, tmp_path: Path) -> None:
    file = write(made_report(epochs=4, share=0.5, rate=100e6), tmp_path)
    assert changes_of(monarch, file, "--compute", "90MB/s") == {}
    done = monarch("advise", "report", str(file), "--compute", "90MB/s")
    assert done.stdout.startswith("No simulated change would have saved 5 %")
    assert "without a change. Assumptions:" in done.stdout


def test_scaled_down_the_gain_is_the_same(monarch: Monarch, tmp_path: Path) -> None:
    files = [write(made_report(files=n), tmp_path) for n in (10_000, 80_000)]
    few, many = (changes_of(monarch, file) for file in files)
    assert many["raise"] == pytest.approx(8 * few["raise"], rel=0.02)


def test_tiers_in_the_wrong_order(monarch: Monarch, tmp_path: Path) -> None:
    tiers = [tier(GIB), tier(GIB, kind="ram", name="/ram")]
    shape: dict[str, Any] = {"files": 5000, "size": 200_000, "epochs": 20, "share": 1.0}
    report = made_report(**shape, rate=5e9, tier_rate=1e9, tiers=tiers)
    advice = advice_of(monarch, write(report, tmp_path), "--compute", "4GB/s")
    assert [c["what"] for c in advice["changes"]] == ["order the tiers by speed: /ram, /local"]


def test_workers_that_only_wait(monarch: Monarch, tmp_path: Path) -> None:
    report = made_report(readers=8, waiting=7.5, share=1.0, epochs=1)
    advice = advice_of(monarch, write(report, tmp_path))
    (change,) = advice["changes"]
    assert change["what"].startswith("use about 4 workers in place of 8")
    assert change["simulated_seconds"] == pytest.approx(advice["simulated_seconds"], rel=0.02)
    busy = made_report(readers=8, waiting=1.0, share=1.0, epochs=1)
    assert changes_of(monarch, write(busy, tmp_path)) == {}


def test_a_plan_for_several_nodes(monarch: Monarch, tmp_path: Path) -> None:
    """A plan is advised for a run on four nodes. The report is that of one node, which has opened a
    quarter of the files in each epoch."""
    nodes: dict[str, Any] = {"members": [{}] * 4}
    report = made_report(files=4000, share=0.25, epochs=3, nodes=nodes)
    totals, history = report["totals"], report["history"]
    for name in ("opens", "hits", "bytes_from_tier", "bytes_from_source"):
        totals[name] /= 4
        history[name] = [count / 4 for count in history[name]]
    history["bytes_from_peers"] = [20e6 * second for second in history["seconds"]]
    totals["bytes_from_peers"] = history["bytes_from_peers"][-1]
    advice = advice_of(monarch, write(report, tmp_path))
    assert [c["what"] for c in advice["changes"]] == [
        "give the daemons a plan of the sampler's order (see `monarch plan make`)"
    ]
    assumptions = "\n".join(advice["assumptions"])
    assert "3 epochs of 4,000 files" in assumptions
    assert "a link between nodes gives 19.1 MiB/s, as measured in this run" in assumptions


def test_nothing_is_filled(monarch: Monarch, tmp_path: Path) -> None:
    tiers = [tier(GIB)]
    report = made_report(share=0.0, epochs=4, prefetch="none", tiers=tiers)
    assert "set" in changes_of(monarch, write(report, tmp_path))


def test_a_run_that_read_nothing(monarch: Monarch, tmp_path: Path) -> None:
    report = made_report()
    for name in set(report["totals"]):
        report["totals"][name] = 0
        report["history"][name] = [0] * len(report["history"]["seconds"])
    file = write(report, tmp_path)
    assert advice_of(monarch, file)["changes"] == []
    _, page = page_of(monarch, file)
    assert "Hit ratio" not in page.tables


# --- files that are no reports ------------------------------------------------------------------


def broken(**changes: Any) -> str:
    report = made_report(files=10)
    for path, value in changes.items():
        *outer, last = path.split("__")
        at: Any = report
        for name in outer:
            at = at[int(name) if name.isdecimal() else name]
        at[last] = value
    return json.dumps(report)


BAD = {
    "": "is damaged or not a report (Input data was truncated)",
    "\x00\xff": "is damaged or not a report",
    "[" * 100_000: "is damaged or not a report",
    "[1, 2]": "is not a report of Monarch",
    '{"schema": 1, "scenario": "x", "policies": {}}': "is not a report of schema 1",
    '{"exit_status": 1, "problem": "no tier can be used"}': (
        "holds no report of a daemon: no tier can be used"
    ),
    '{"schema": 1, "totals": {}}': "has no history",
    broken(schema=2): "is not a report of schema 1",
    broken(history__opens=[1, 2]): "columns of different lengths",
    broken(history__opens=[9.0] + [1.0] * 499): "history.opens decreases",
    broken(history__seconds=[]): "seconds",
    broken(totals__opens=-1): "at `$.totals[...]`",
    broken(totals__opens=1e300): "at `$.totals[...]`",
    broken(totals={"opens": 5}): "totals lack bytes_from_peers",
    broken(tiers__0__quota_bytes="much"): "$.tiers[0].quota_bytes",
    broken(files__source=[7] * 10): "files do not belong to these tiers and sources",
    broken(files__copied_bytes=[]): "files do not belong to these tiers and sources",
    broken(sources=[]): "$.sources",
    broken()[:-500]: "is damaged or not a report",
}


@pytest.mark.parametrize("text", BAD, ids=range(len(BAD)))
def test_no_report(monarch: Monarch, tmp_path: Path, text: str) -> None:
    file = tmp_path / "run.json"
    file.write_text(text, encoding="latin-1")
    output = str(tmp_path / "o.html")
    for words in (["report", str(file), "-o", output], ["advise", "report", str(file)]):
        done = monarch(*words)
        assert done.returncode == 1
        assert done.stderr.startswith(f"monarch: {file}: ")
        assert BAD[text] in done.stderr
        assert done.stderr.count("\n") == 1
    assert not (tmp_path / "o.html").exists()


@pytest.mark.usefixtures("undrawn")
def test_files_that_cannot_be_opened(monarch: Monarch, tmp_path: Path) -> None:
    done = monarch("report", str(tmp_path / "none"), "-o", str(tmp_path / "o.html"))
    assert done.returncode == 1
    assert "none: cannot be read (No such file or directory); give a file that" in done.stderr
    file = write(made_report(files=5), tmp_path)
    done = monarch("report", str(file), "-o", str(tmp_path / "no" / "o.html"))
    assert done.returncode == 1
    assert "o.html: cannot be written (No such file or directory); name another" in done.stderr


ODD: tuple[Any, ...] = (0, 1, -1, 5000, 10**9, 10**17, 1e18, 1e-9, None, "x", [], {}, True)


def places_in(document: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Yields, for each value in a JSON document, the keys and indices that lead to the value.
    Visits only the first three elements of each list."""
    if isinstance(document, dict | list):
        keys = list(document) if isinstance(document, dict) else range(min(3, len(document)))
        for key in keys:
            yield *path, key
            yield from places_in(document[key], (*path, key))


@pytest.mark.parametrize("seed", range(draws.examples(12)))
def test_any_odd_value_is_taken_or_told_in_a_sentence(
    monarch: Monarch, tmp_path: Path, seed: int
) -> None:
    random = Random(seed)
    report = made_report(files=random.choice([1, 7, 1000, 10**6]), epochs=random.choice([1, 30]))
    for path in random.sample(list(places_in(report)), 2):
        with suppress(LookupError, TypeError):  # the first change may have removed this value
            at = report
            for name in path[:-1]:
                at = at[name]
            at[path[-1]] = random.choice(ODD)
    done = monarch("advise", "report", str(write(report, tmp_path)))
    assert (done.returncode, done.stderr.count("\n")) in ((0, 0), (1, 1)), done.stderr


def test_a_package_that_is_missing(
    monarch: Monarch, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("monarch_py.report.page.NEEDED", ("json", "nosuchpackage"))
    file = write(made_report(files=5), tmp_path)
    done = monarch("report", str(file), "-o", str(tmp_path / "o.html"))
    assert done.returncode == 1
    assert done.stderr == "monarch: the page needs nosuchpackage; pip install nosuchpackage\n"
    # If the user may not write to the directory of Monarch's package, pip installs packages in
    # another directory, which Monarch does not search.
    monkeypatch.setattr(os, "access", lambda _, mode: mode != os.W_OK)
    done = monarch("report", str(file), "-o", str(tmp_path / "o.html"))
    packages = Path(monarch_py.__file__).parents[1]
    assert done.stderr == (
        "monarch: the page needs nosuchpackage; ask the person who installed Monarch to add it in"
        f" {packages}\n"
    )


def test_every_cut_is_told_in_a_sentence(monarch: Monarch, tmp_path: Path) -> None:
    whole, file = json.dumps(made_report(files=3)), tmp_path / "run.json"
    for end in range(0, len(whole), len(whole) // 40):
        file.write_text(whole[:end])
        done = monarch("advise", "report", str(file))
        assert (done.returncode, done.stderr.count("\n")) == (1, 1), done.stderr
