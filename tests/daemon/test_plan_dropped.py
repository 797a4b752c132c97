"""The daemon goes on without plans that prove wrong, or that cannot be followed at all."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from daemon.following import plan_of, train
from daemon.planned_site import (
    MANY,
    SIZE,
    Factory,
    Site,
    plans,
    wait_dropped,
    wait_followed,
)
from support.files import Files, check_all
from support.session import Session, wait_until
from support.watch import assert_quiet

from monarch_py.config.load import load_config
from monarch_py.daemon.plans.fetch_ahead import MOST_FILES
from monarch_py.daemon.plans.placement import PlacementResult, PlacementTask
from monarch_py.daemon.server import Daemon
from monarch_py.ipc import word
from monarch_py.plan import Plan

# The program opens the files that its arguments name, slowly enough for the daemon to see their
# order. From the argument SLOWLY on, it takes ten times as long for each file. It returns to its
# first speed when its standard input becomes readable.
SLOWLY = "-"
OPEN = """
import os, select, sys, time
is_slow = False
for path in sys.argv[1:]:
    if path == "-":
        is_slow = True
        continue
    os.close(os.open(path, os.O_RDONLY))
    time.sleep(0.03 if is_slow and not select.select([0], [], [], 0)[0] else 0.003)
"""


def open_in_order(session: Session, paths: list[str]) -> None:
    """Opens these files in order. After the first 50 files, the job opens files more slowly until
    the daemon follows the plan."""
    words = [sys.executable, "-c", OPEN, *paths[:50], SLOWLY, *paths[50:]]
    with subprocess.Popen(words, env=session.env(), stdin=subprocess.PIPE) as job:
        wait_followed(session)
        job.communicate(b"\n")


def assert_dropped(session: Session, why: str, jobs: int = 1) -> None:
    """Asserts that the plan was dropped for this reason. The log must have a warning with this
    reason, and at most one such warning per job."""
    (plan,) = plans(session)
    assert plan["state"] == "dropped"
    assert re.search(why, plan["why"])
    warnings = re.findall(r".* is no longer followed: .*", session.log.read_text())
    assert 1 <= len(warnings) <= jobs
    assert all(re.search(why, warning) for warning in warnings)


def test_a_plan_with_another_seed_is_dropped_within_100_accesses(site: Site) -> None:
    site.slow()  # without delays, a job would open all files between two turns of the daemon's loop
    session = site.session(site.plan(seed=12))
    wait_followed(session)
    train(session, site.root, seed=11, epochs=1, limit=10, compute_s=0.05)
    wait_until(lambda: plans(session)[0]["state"] == "dropped", what="the end of the plan")
    assert session.totals()["opens"] <= 100 + 4 * 8, (
        "the daemon read too far ahead before it dropped the plan"
    )
    assert_dropped(session, r"\d+ of the last \d+ opens do not fit the plan; the plan's seed")
    # The daemon now places a file when it is opened, as it does without a plan.
    check_all(session, site.files, site.root)
    session.wait_idle()
    train(session, site.root, seed=11, epochs=2)
    wait_dropped(session)
    assert_dropped(session, "do not fit the plan", jobs=3)
    assert session.status()["tiers"][0]["files"] >= 0.45 * MANY
    assert_quiet(session)


def test_a_plan_that_was_dropped_is_tried_again(site: Site) -> None:
    """A dropped plan is tried again when the plan's file has changed, and when the next job begins.
    The daemon learns of a new job from `monarch run`, or from opens."""
    plan = site.plan(seed=12)
    order, names = Plan.load(plan).timeline().section(0).node(0), sorted(site.files.digests)
    right = [str(site.root / names[unit]) for unit in order]
    wrong = list(np.random.default_rng(1).permutation(right)[: MANY // 2])
    session = site.session(plan)
    wait_followed(session)
    session.python(OPEN, *wrong)
    wait_dropped(session)
    open_in_order(session, right)
    wait_until(lambda: plans(session)[0]["position"] > MANY // 2, what="the plan's position")
    session.python(OPEN, *wrong)
    wait_dropped(session)
    assert session.monarch("run", "--", "true").returncode == 0
    wait_followed(session)
    with subprocess.Popen(
        [sys.executable, "-c", OPEN + "sys.stdin.read()", *wrong],
        env=session.env(),
        stdin=subprocess.PIPE,
    ) as job:
        wait_dropped(session)
        site.plan(seed=13)
        wait_followed(session)  # while that job still runs
        job.communicate()
    site.plan(seed=14)
    session.monarch("run", "--", "true")
    order = Plan.load(plan).timeline().section(0).node(0)
    open_in_order(session, [str(site.root / names[unit]) for unit in order])
    wait_until(lambda: plans(session)[0]["position"] > MANY // 2, what="the plan's position")
    # The new plan may be installed before the daemon has seen the last opens of the previous job.
    # If these opens do not match the new plan, the daemon drops this plan too. Then there are 4
    # messages instead of 3.
    assert session.log.read_text().count("is no longer followed") in (3, 4)


def test_a_plan_for_a_dataset_that_has_changed_is_dropped(site: Site) -> None:
    plan = site.plan()
    site.files.add("f00007", SIZE - 1)
    site.files.path("f00008").unlink()
    del site.files.digests["f00008"]
    session = site.session(plan)
    wait_until(lambda: plans(session)[0]["state"] == "dropped", what="the look at the dataset")
    assert_dropped(session, f"2 of {MANY} files in .* are missing or have changed")
    shown = session.monarch("status").stdout
    assert "Plans" in shown
    assert "dropped" in shown
    assert "dropped" in session.monarch("status", "--all").stdout
    check_all(session, site.files, site.root)


def test_a_plan_for_files_elsewhere_is_dropped(site: Site, tmp_path: Path) -> None:
    plan = plan_of(site.files, tmp_path / "elsewhere", tmp_path / "plan.npz")
    session = site.session(plan)
    wait_until(lambda: plans(session)[0]["state"] == "dropped", what="the look at the dataset")
    assert_dropped(session, "elsewhere is not inside any configured source")


# This test needs --long. Without --long, test_tracker.py tests several plans, and the first test of
# this file tests that a daemon drops a plan.
@pytest.mark.long
def test_only_the_wrong_one_of_two_plans_is_dropped(site: Site) -> None:
    files = [
        plan_of(site.files, site.root, site.directory / f"{seed}.npz", seed=seed) for seed in (5, 6)
    ]
    session = site.session(files)
    wait_followed(session)
    train(session, site.root, seed=5, epochs=1, compute_s=0.01)
    assert [plan["state"] for plan in plans(session)] == ["following", "following"]
    train(session, site.root, seed=99, epochs=1, compute_s=0.01)
    wait_until(
        lambda: {plan["state"] for plan in plans(session)} == {"dropped"},
        what="the drop of both plans",
    )


@pytest.mark.parametrize("raises", ["step", "observe"])
def test_a_plan_that_cannot_be_worked_out_ends_itself_and_nothing_else(
    monkeypatch: pytest.MonkeyPatch, session_factory: Factory, tmp_path: Path, raises: str
) -> None:
    """If the code that follows a plan raises an exception, the plan is dropped. The exception must
    not end the daemon's loop."""
    files = Files(tmp_path / "source").add_many(50, 1000)
    plan = plan_of(files, files.root, tmp_path / "plan.npz", epochs=3)
    session = session_factory(files.root, plan=str(plan))
    monkeypatch.setenv("MONARCH_SHM", str(session.shm))
    session.paths.make()
    daemon = Daemon(load_config(session.config), session.paths)
    try:
        assert not daemon.filler.policy.follows_plan
        wait_until(
            lambda: [daemon._turn()] and daemon.plan_manager._placed, what="the plan's files"
        )
        assert daemon.filler.policy.follows_plan
        (tracker,) = daemon.plan_manager.trackers
        monkeypatch.setattr(tracker, raises, lambda *_: 1 / 0)
        daemon.plan_manager.observe(tracker.entries[:1])
        daemon._turn()
        assert (tracker.state, tracker.why) == (
            "dropped",
            "computing its next accesses failed (see the log)",
        )
        assert not daemon.filler.policy.follows_plan
        daemon._turn()
    finally:
        daemon.close()


def test_one_plan_that_cannot_be_worked_out_leaves_the_other(
    monkeypatch: pytest.MonkeyPatch, session_factory: Factory, tmp_path: Path
) -> None:
    files = Files(tmp_path / "source").add_many(50, 1000)
    both = [plan_of(files, files.root, tmp_path / f"{n}.npz", seed=n, epochs=3) for n in (1, 2)]
    session = session_factory(files.root, plan=[str(plan) for plan in both])
    monkeypatch.setenv("MONARCH_SHM", str(session.shm))
    session.paths.make()
    daemon = Daemon(load_config(session.config), session.paths)
    try:
        wait_until(
            lambda: [daemon._turn()] and daemon.plan_manager._placed, what="the plans' files"
        )
        bad, good = daemon.plan_manager.trackers
        monkeypatch.setattr(bad, "observe", lambda *_: 1 / 0)
        daemon.plan_manager.observe(bad.entries[:1])
        assert bad.state == "dropped"
        daemon._turn()
        assert good.state == "following"
        assert good.estimator is not None
        assert good.estimator.judged == 1
    finally:
        daemon.close()


def test_what_a_dropped_plan_wanted_is_not_fetched_while_the_next_is_placed(
    monkeypatch: pytest.MonkeyPatch, session_factory: Factory, tmp_path: Path
) -> None:
    files = Files(tmp_path / "source").add_many(4 * MOST_FILES, 1000)
    plan = plan_of(files, files.root, tmp_path / "plan.npz")
    session = session_factory(files.root, plan=str(plan))
    monkeypatch.setenv("MONARCH_SHM", str(session.shm))
    session.paths.make()
    daemon = Daemon(load_config(session.config), session.paths)

    def turned_until(met: Callable[[], object], what: str) -> None:
        wait_until(lambda: [daemon._turn()] and met(), what=what)

    def copies() -> int:
        return int(np.count_nonzero(word.copy(daemon.shared.catalog.words)))

    may_place, make = threading.Event(), PlacementTask.make

    def placed_later(placing: PlacementTask) -> PlacementResult:
        may_place.wait(30)
        return make(placing)

    try:
        turned_until(lambda: daemon.plan_manager._placed, "the plan's files")
        (tracker,) = daemon.plan_manager.trackers
        monkeypatch.setattr(tracker, "step", lambda: 1 / 0)
        daemon._turn()
        assert tracker.state == "dropped"
        begun = copies()
        assert 0 < begun < len(files.digests)
        monkeypatch.setattr(PlacementTask, "make", placed_later)
        daemon.plan_manager.new_job()
        turned_until(lambda: daemon.plan_manager._task is not None, "the plan that is tried again")
        assert daemon.plan_manager.is_active
        turned_until(lambda: daemon.filler.engine.idle, "the last fill")
        for _ in range(10):
            daemon._turn()
        assert copies() == begun
        may_place.set()
        turned_until(lambda: copies() == len(files.digests), "copies of everything")
    finally:
        may_place.set()
        daemon.close()


# --- plans that cannot be followed --------------------------------------------------------------


def refusal(session: Session) -> str:
    done = session.monarch("serve")
    assert done.returncode == 2
    (line,) = done.stderr.splitlines()
    return line


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        (
            {"plan": "not_there.npz"},
            r"tiers.yaml:\d+: plan: .*not_there.npz' is not a file; write a plan.yaml, or",
        ),
        (
            {"plan": ["index.npz"]},
            r"index.npz: not a plan .*; make one with `monarch plan make -c plan.yaml`",
        ),
        ({"plan": ["tiers.yaml"]}, r"tiers.yaml:1: hierarchy: unknown key; use .*epochs"),
        ({"plan": [[]]}, r"tiers.yaml:\d+: plan\[0\]: cannot be .*; name a plan.yaml"),
        ({"plan": "tiers.yaml", "prefetch": "none"}, r"plan: with 'prefetch: none' .*; remove one"),
    ],
)
def test_what_is_no_plan_is_refused(
    session_factory: Factory, tree: Path, settings: dict[str, Any], said: str
) -> None:
    session = session_factory(tree, **settings)
    (session.directory / "index.npz").write_bytes(b"no plan")
    assert re.search(said, refusal(session))


def test_a_plan_without_names_is_refused(session_factory: Factory, tree: Path) -> None:
    session = session_factory(tree, plan="plan.npz")
    recipe = session.directory / "plan.yaml"
    recipe.write_text(
        "epochs: 1\nparts:\n- {dataset: 20, batch_size: 2, sampler: {kind: SequentialSampler}}\n"
    )
    words = [sys.executable, "-m", "monarch_py", "plan", "make", "-c", str(recipe)]
    subprocess.run([*words, "-o", str(session.directory / "plan.npz")], check=True)
    assert re.search(r"plan.npz: .* but not their names; name an index", refusal(session))
    assert not os.listdir(session.directory / "tier0"), (
        "the daemon has made directories before its refusal"
    )
