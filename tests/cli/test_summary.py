"""Tests the summary of `monarch run`. Its numbers match those that the source has counted, its
lines fit into 80 columns, and it says what the user should change."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from support.session import IN_UNITS, MIB, Session

from monarch_py.demo.slowsource import SlowSource
from monarch_py.report.summary import since, summary
from monarch_py.util.units import counted

Factory = Callable[..., Session]

# Arguments: DIRECTORY NAME... The program reads each file of the directory to its end. It uses the
# functions below whose names begin with one of the NAMEs. These functions take turns: each reads
# the next file.
WAYS = """
import ctypes, mmap, os, shutil, sys
root = sys.argv[1]
libc = ctypes.CDLL(None)
libc.fopen.restype = libc.fdopen.restype = ctypes.c_void_p
libc.fread.argtypes = [ctypes.c_char_p, ctypes.c_size_t, ctypes.c_size_t, ctypes.c_void_p]

def drain(stream):
    buffer = ctypes.create_string_buffer(1 << 16)
    while libc.fread(buffer, 1, len(buffer), stream):
        pass

def by_read(path):
    with open(path, "rb", buffering=0) as file:
        while file.read(50_000):
            pass

def by_pread(path):
    fd, at = os.open(path, os.O_RDONLY), 0
    while got := os.pread(fd, 70_000, at):
        at += len(got)
    os.close(fd)

def by_readv(path):
    fd, buffers = os.open(path, os.O_RDONLY), [bytearray(30_000), bytearray(40_000)]
    while os.readv(fd, buffers):
        pass
    os.close(fd)

def by_preadv(path):
    fd, at, buffers = os.open(path, os.O_RDONLY), 0, [bytearray(30_000), bytearray(40_000)]
    while got := os.preadv(fd, buffers, at):
        at += got
    os.close(fd)

def by_sendfile(path):
    with open(path, "rb") as file, open("/dev/null", "wb") as sink:
        left = os.fstat(file.fileno()).st_size
        while left:
            left -= os.sendfile(sink.fileno(), file.fileno(), None, left)

def by_splice(path):
    read_end, write_end = os.pipe()
    fd = os.open(path, os.O_RDONLY)
    while got := os.splice(fd, write_end, 60_000):
        os.read(read_end, got)
    os.close(fd)

def by_stream(path):
    drain(libc.fopen(path.encode(), b"r"))

def by_stream_of_a_descriptor(path):
    drain(libc.fdopen(os.open(path, os.O_RDONLY), b"r"))

def by_mapping(path):
    fd = os.open(path, os.O_RDONLY)
    with mmap.mmap(fd, 0, access=mmap.ACCESS_READ) as view:
        bytes(view)
    os.close(fd)

for number, name in enumerate(sorted(os.listdir(root))):
    ways = [f for n, f in sorted(globals().items()) if n.startswith(tuple(sys.argv[2:]))]
    ways[number % len(ways)](os.path.join(root, name))
"""
COUNT, SIZE = 18, 3 * MIB // 2 + 17


@pytest.fixture
def slow(slow_factory: Callable[..., SlowSource]) -> SlowSource:
    # Without `keep_pages`, each open of a file would remove the file's pages from the page cache. A
    # fill that has read some of these pages but not copied them yet would read them again.
    source = slow_factory(keep_pages=True)
    for number in range(COUNT):
        (source.backing / f"f{number:02}").write_bytes(bytes([number]) * SIZE)
    return source


def run(session: Session, *words: str) -> tuple[dict[str, Any], list[str]]:
    """Runs a command under `monarch run`. Returns the JSON report and the lines of the summary."""
    file = session.directory / "run.json"
    done = session.monarch("run", "--json", str(file), "--", *words)
    assert done.returncode == 0, done.stderr
    lines = done.stderr.splitlines()
    assert max(map(len, lines)) <= 80 or str(session.directory.parent) in done.stderr
    return json.loads(file.read_text()), lines


def test_what_programs_have_read_is_not_counted_twice(
    session_factory: Factory, slow: SlowSource
) -> None:
    """If a copy is made from bytes that a program has read, these bytes are counted only once."""
    session = session_factory(slow.mountpoint)
    slow.rate(60e6)
    before = slow.counts()["bytes_read"]
    ways = ["by_read", "by_pread"]
    report, _ = run(session, sys.executable, "-c", WAYS, str(slow.mountpoint), *ways)
    totals = report["run"]["totals"]
    fills, own = (totals[f"source_bytes_read_by_{who}"] for who in ("fills", "programs"))
    assert 0.98 <= (fills + own) / (slow.counts()["bytes_read"] - before) <= 1.1
    assert slow.counts()["bytes_read"] - before <= 1.02 * COUNT * SIZE


@pytest.mark.parametrize("why", ["nothing is filled", "no tier has room", "all is filled"])
def test_what_the_source_gave_is_what_it_has_counted(
    session_factory: Factory, slow: SlowSource, tmp_path: Path, why: str
) -> None:
    tier = tmp_path / "tier"
    tier.mkdir()
    quota = MIB // 2 if why == "no tier has room" else 64 * MIB
    more = {"prefetch": "none"} if why == "nothing is filled" else {}
    tiers = [{"mount_point": tier, "max_storage_quota": quota}]
    session = session_factory(slow.mountpoint, tiers=tiers, **IN_UNITS | more)
    slow.rate(60e6)
    before = slow.counts()["bytes_read"]
    # If `why` is "all is filled", the program uses only methods of reading that the library
    # handles. Reads by other methods count as reads of the source even if a fill has already
    # brought the same pages into the page cache.
    ways = ["by_read", "by_pread"] if why == "all is filled" else ["by_"]
    report, lines = run(session, sys.executable, "-c", WAYS, str(slow.mountpoint), *ways)
    totals = report["run"]["totals"]
    fills, own = (totals[f"source_bytes_read_by_{who}"] for who in ("fills", "programs"))
    assert totals["opens"] == COUNT
    gave = slow.counts()["bytes_read"] - before
    # If a fill and a program read the same pages, both count these pages, but the source is read
    # only once. How many files this concerns depends on when the fills overtake the program.
    most = max(fills, own) if why == "all is filled" else fills + own
    assert most <= 1.02 * gave
    assert fills + own >= 0.98 * gave
    assert (fills > own) is (why == "all is filled")
    assert "27 MiB without Monarch" in " ".join(" ".join(lines).split())
    assert any("no room: 18 files" in line for line in lines) is (why == "no tier has room")
    assert any("with `prefetch: none` only" in line for line in lines) is (
        why == "nothing is filled"
    )


def test_files_without_a_tier_that_can_be_used(session_factory: Factory, source: Path) -> None:
    session = session_factory(source).start()
    session.run(["cat", source / "a"])
    report = session.status()
    report["tiers"][0] |= {"usable": False, "why": "tier /t goes unused: it was removed"}
    report["sources"][0] |= {"bypass": {"no_room": 3}, "bypass_bytes": {"no_room": 3 * MIB}}
    text = " ".join(" ".join(summary(report, since(None, report))).split())
    assert "tier: tier /t goes unused: it was removed" in text
    assert "no room: 3 files (3 MiB) left to the source: no tier can be used (see above)" in text


def test_the_quota_that_is_named_holds_all(
    session_factory: Factory, source: Path, tmp_path: Path
) -> None:
    (source / "large").write_bytes(b"x" * (3 * MIB))
    tier = tmp_path / "tier"
    tier.mkdir()
    tiers = [{"mount_point": tier, "max_storage_quota": MIB}]
    session = session_factory(source, tiers=tiers, prefetch="eager")
    large = f"{source}/large"
    # The command ends when the daemon has found that no tier has room for the file.
    is_refused = f"{sys.executable} -m monarch_py ls {large} | grep -q 'no room'"
    _, lines = run(session, "sh", "-c", f"cat {large} >/dev/null; until {is_refused}; do :; done")
    text = " ".join(" ".join(lines).split())
    assert "no room: 1 file (3 MiB) left to the source; `max_storage_quota: 4MiB`" in text
    session.config.write_text(session.config.read_text().replace(str(MIB), "4MiB"))
    assert "4MiB" in session.config.read_text()
    report, lines = run(session, "cat", f"{source}/large")
    assert not any("no room" in line for line in lines)
    assert report["sources"][0]["bypass"] == {}


def test_a_run_on_another_dataset_is_told_what_to_look_at(session: Session) -> None:
    _, lines = run(session, "true")
    text = " ".join(" ".join(lines).split())
    assert f"monarch: no file below {session.source} was opened; the program may use" in text
    assert "source:" not in text


def test_a_second_run_counts_its_own_alone(served: Session) -> None:
    for times in (3, 1):
        words = ["sh", "-c", f"cat {' '.join([str(served.source / 'a')] * times)} >/dev/null"]
        report, lines = run(served, *words)
        assert report["run"]["totals"]["opens"] == times
        assert (
            lines[0]
            == f"monarch: {counted(times, 'open')} of dataset files, {times} (100.0 %) from copies"
        )
    assert report["totals"]["opens"] > 3


def test_a_tier_of_another_daemon_is_named_with_what_to_do(
    session_factory: Factory, served: Session, tmp_path: Path
) -> None:
    own = tmp_path / "own"
    own.mkdir()
    tiers = [{"mount_point": path, "max_storage_quota": MIB} for path in (served.tiers[0], own)]
    _, lines = run(session_factory(served.source, tiers=tiers), "cat", str(served.source / "b"))
    text = " ".join(" ".join(lines).split())
    assert f"tier {served.tiers[0]} is held by the daemon of {served.config}" in text
    assert "directory of its own" in text


# --- the lines ----------------------------------------------------------------------------------


COUNTED = [
    *(
        "opens",
        "hits",
        "misses",
        "fills",
        "bytes_from_tier",
        "bytes_from_source",
        "bytes_from_peers",
    ),
    *("bytes_while_filling", "source_bytes_read_by_fills", "source_bytes_read_by_programs"),
]


def report(**changes: Any) -> dict[str, Any]:
    totals = dict.fromkeys(COUNTED, 0)
    tier = {
        "mount_point": "/local/me",
        "usable": True,
        "why": "",
        "used_bytes": 7 * MIB,
        "quota_bytes": 8 * MIB,
        "files": 152,
    }
    source = {"path": "/pfs/imagenet", "bypass": {}, "bypass_bytes": {}}
    return {
        "pid": 1,
        "uptime_seconds": 60.0,
        "switched_off": False,
        "prefetch": "auto",
        "totals": {**totals, "opens": 1800, "hits": 1200, **changes.pop("totals", {})},
        "tiers": [tier],
        "staging": None,
        "ahead": None,
        "plans": [],
        "sources": [source],
        "nodes": None,
        **changes,
    }


def said(before: dict[str, Any] | None = None, **changes: Any) -> str:
    now = report(**changes)
    lines = summary(now, since(before, now))
    assert max(map(len, lines)) <= 80
    assert all(line.startswith(" " * 2) for line in lines[1:])
    return " ".join(" ".join(lines).split())


def test_the_summary_has_the_sources_bytes_in_all() -> None:
    text = said(
        totals={
            "bytes_from_tier": 60 * MIB,
            "bytes_from_source": 30 * MIB,
            "source_bytes_read_by_fills": 30 * MIB,
            "source_bytes_read_by_programs": 2 * MIB,
            "bytes_while_filling": 5 * MIB,
        }
    )
    assert "1,800 opens of dataset files, 1,200 (66.7 %) from copies; 5 MiB were read while" in text
    bytes_told = "32 MiB read (30 MiB to fill copies, 2 MiB by programs)"
    assert f"source: {bytes_told}; 90 MiB without Monarch" in text


def test_the_summary_has_staging_nodes_and_plans() -> None:
    staging = {**report()["tiers"][0], "mount_point": "/dev/shm", "staged": 448}
    plan = {
        "file": "/me/plan.npz",
        "state": "following",
        "why": "",
        "epoch": 4,
        "position": 3000,
        "fitting": 2990,
    }
    dropped = {**plan, "state": "dropped", "why": "113 of the last 207 files are others"}
    text = said(
        before=report(staging={**staging, "staged": 8}, nodes={"served_bytes": MIB}),
        staging=staging,
        plans=[plan, dropped, {**plan, "state": "waiting", "position": None}],
        nodes={"served_bytes": 13 * MIB},
        ahead={"unused_files": 1234, "unused_bytes": 77 * MIB},
        totals={"bytes_from_peers": 17 * MIB},
    )
    assert "staging: /dev/shm: 152 copies, 7 MiB of 8 MiB; 440 were made here in this run" in text
    assert "nodes: 17 MiB came from other nodes, 12 MiB went to them" in text
    assert "ahead: 1,234 copies (77 MiB) that no program has opened yet" in text
    assert (
        "plan.npz was followed up to epoch 4, 3,000 accesses; 2,990 opens fitted the plan" in text
    )
    assert "plan.npz was dropped: 113 of the last 207 files are others" in text
    assert "plan.npz was not followed: waiting" in text


def test_another_daemons_counts_are_not_subtracted() -> None:
    earlier = {**report(), "pid": 2}
    assert since(earlier, report())["totals"]["opens"] == 1800
    assert since(report(), report())["totals"]["opens"] == 0


def test_a_switch_is_said_before_all_else() -> None:
    assert said(switched_off=True).startswith("monarch: switched off by an administrator or by")


def test_numbers_stand_on_one_line_with_their_units() -> None:
    for opens in (10**power for power in range(12)):
        now = report(totals={"bytes_while_filling": 43 * MIB // 10, "opens": opens})
        for line in summary(now, since(None, now)):
            assert len(line) <= 80
            assert not re.search(r"\d$", line), line


@pytest.mark.parametrize(
    ("prefetch", "totals", "is_said"),
    [
        ("none", {}, True),
        ("none", {"fills": 1}, False),
        ("none", {"hits": 1800}, False),
        ("auto", {}, False),
    ],
)
def test_that_nothing_is_to_be_filled_is_said(
    prefetch: str, totals: dict[str, int], is_said: bool
) -> None:
    line = "filled: nothing; with `prefetch: none` only `monarch warm` makes copies"
    assert (line in said(prefetch=prefetch, totals=totals)) is is_said


def test_what_the_configuration_leaves_out_is_said() -> None:
    left = {"excluded": 30, "failed": 1}
    (source,) = report()["sources"]
    text = said(sources=[{**source, "bypass": left, "bypass_bytes": {}}])
    assert "skipped: 30 files excluded by the configuration" in text
    assert "skipped: 1 file could not be copied: see `monarch logs`" in text


def test_what_a_run_has_read_is_not_said_to_be_unused(
    session_factory: Factory, slow_factory: Callable[..., SlowSource]
) -> None:
    """Copies of files that the run has just read are not called unused. This holds even if the
    summary is made before the daemon's loop has counted these reads."""
    slow = slow_factory()
    for number in range(200):
        (slow.backing / f"{number:03d}").write_bytes(b"x" * 20_000)
    slow.latency(open=0.001, read=0.001)
    session = session_factory(slow.mountpoint, prefetch="auto")
    script = "for i in 1 2 3; do cat $1/* > /dev/null; done"
    _, lines = run(session, "sh", "-c", script, "sh", str(slow.mountpoint))
    assert not any("ahead:" in line for line in lines), lines


@pytest.mark.parametrize("way", ["by_read", "by_stream"])
@pytest.mark.parametrize("is_link_to_root", [True, False])
def test_a_job_that_reads_only_through_links(
    slow: SlowSource, session_factory: Factory, tmp_path: Path, way: str, *, is_link_to_root: bool
) -> None:
    """All opens of a program that reads only through links are counted. The scan waits for the
    program's first open, so at this open the catalog does not have the link's target yet."""
    link = tmp_path / "link"
    if is_link_to_root:
        link.symlink_to(slow.mountpoint)
    else:
        link.mkdir()
        for number in range(COUNT):
            (link / str(number)).symlink_to(slow.mountpoint / f"f{number:02}")
    session = session_factory(slow.mountpoint, prefetch="auto")
    report, lines = run(session, sys.executable, "-c", WAYS, str(link), way)
    assert report["totals"]["opens"] == COUNT, lines
