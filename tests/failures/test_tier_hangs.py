"""The daemon reads a tier's copies before programs need them, and these reads hang."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from daemon.following import plan_of
from support.files import Files
from support.session import MIB, Session, wait_until
from support.watch import assert_quiet

from monarch_py.demo.slowsource import SlowSource
from monarch_py.plan import Plan

MANY, SIZE, THREADS = 200, 50_000, 4
HANGS_S = 3600.0
# Opens files in the order in which a training run reads them, but does not read them.
OPEN = "import os, sys\nfor path in sys.argv[1:]: os.close(os.open(path, os.O_RDONLY))"
READ = """
import hashlib, sys
for path in sys.argv[1:]:
    with open(path, "rb") as file:
        print(hashlib.sha256(file.read()).hexdigest())
"""


@pytest.fixture
def files(tmp_path: Path) -> Files:
    return Files(tmp_path / "source").add_many(MANY, SIZE)


def first_epoch(plan: Path) -> list[int]:
    return [int(unit) for unit in Plan.load(plan).timeline().section(0).node(0)]


def test_what_is_filled_does_not_wait_for_what_is_read_ahead(
    session_factory: Callable[..., Session],
    slow_factory: Callable[..., SlowSource],
    files: Files,
    tmp_path: Path,
) -> None:
    """Some threads read copies ahead, and hang because the tier hangs. Fills do not wait for these
    threads. In this test, the tier has room for half of the files, and every thread may read
    ahead."""
    tier = slow_factory()
    plan = plan_of(files, files.root, tmp_path / "plan.npz", epochs=2)
    (tmp_path / "area").mkdir()
    session = session_factory(
        files.root,
        tiers=[{"mount_point": tier.mountpoint, "max_storage_quota": MANY * (SIZE + 8192) // 2}],
        staging={"mount_point": str(tmp_path / "area"), "max_storage_quota": 4 * MIB},
        plan=str(plan),
        shared_tpool_size=THREADS,
        min_reads=THREADS,
    ).start()
    session.wait_scanned()
    names = sorted(files.digests)
    wait_until(
        lambda: session.status()["tiers"][0]["files"] > MANY * 0.4, what="a tier that is full"
    )
    session.wait_idle()
    tier.reset()
    tier.latency(read=HANGS_S)
    try:
        opened = [str(files.path(names[unit])) for unit in first_epoch(plan)]
        done = session.run([sys.executable, "-c", OPEN, *opened])
        assert (done.returncode, done.stderr) == (0, "")
        # The daemon reads ahead the copies in the tier, beginning with those that the second epoch
        # uses first.
        wait_until(lambda: tier.counts()["read"] == THREADS // 2, what="threads that hang")
        session.wait_idle()
        late = Files(files.root)
        for i in range(20):
            late.add(f"late{i}", SIZE)
        fills = session.totals()["fills"]
        said = session.python(READ, *map(late.path, late.digests), timeout=20)
        assert said.split() == list(late.digests.values())
        wait_until(
            lambda: session.totals()["fills"] >= fills + len(late.digests), what="the late fills"
        )
        assert session.totals()["fallbacks"] == 0
        assert tier.counts()["read"] == THREADS // 2
        assert session.status()["staging"]["read_ahead"] == 0
    finally:
        tier.latency(read=0)
    wait_until(
        lambda: session.status()["staging"]["read_ahead"] > 0, what="bytes that are read ahead"
    )
    assert_quiet(session)
