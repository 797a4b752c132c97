"""The daemon follows plans while DataLoaders read with the library, from a slow source that counts
operations. Tests that do not depend on the order of torch's own loader use a stand-in, which starts
sooner than torch's loader."""

from __future__ import annotations

import os
import threading
from pathlib import Path
from typing import Any

import pytest
from daemon.following import needs_torch, plan_of, train
from daemon.planned_site import (
    AREA,
    MANY,
    Factory,
    Site,
    epochs_counted,
    plans,
    wait_followed,
)
from support.draws import sized
from support.files import Files
from support.session import wait_until

from monarch_py.plan import Plan
from monarch_py.plan.index import Index
from monarch_py.plan.recipe import read_plan
from monarch_py.plan.samplers import DistributedSampler


@pytest.mark.parametrize(
    ("in_order", "torch"),
    [
        (False, False),
        pytest.param(False, True, marks=[needs_torch, pytest.mark.long]),
        pytest.param(True, True, marks=[needs_torch, pytest.mark.long]),
    ],
)
def test_eight_workers_out_of_order_are_followed(site: Site, in_order: bool, torch: bool) -> None:
    about: dict[str, Any] = {"workers": 8, "prefetch_factor": 4, "batch": 2, "epochs": 2}
    session = site.session(site.plan(**about))
    wait_followed(session)
    # If a file is opened twice between two turns of the daemon's loop, the daemon sees only one
    # open. On a busy machine, a turn may come late, because the daemon waits for a processor. So an
    # epoch must take longer than such a delay: it takes at least 0.6 s here.
    done = train(
        session,
        site.root,
        in_order=in_order,
        strays=3,
        persistent=True,
        torch=torch,
        compute_s=0.002,
        **about,
    )
    wait_until(lambda: plans(session)[0]["position"] >= 2 * MANY * 0.95, what="the end of the plan")
    (plan,) = plans(session)
    assert plan["state"] == "following"
    assert plan["fitting"] >= 2 * MANY * 0.95
    assert len({each["digest"] for each in done}) == 1
    assert "not followed" not in session.log.read_text()


@pytest.mark.parametrize("is_announced", [True, False])
def test_the_next_job_of_a_plan_with_short_epochs_is_found(site: Site, is_announced: bool) -> None:
    """The plan does not contain the number of workers, and its epochs have 30 batches. A job reads
    the whole plan. The next job begins with the first epoch again. The daemon learns of the next
    job from `monarch run`. Without this command, the daemon notices that all processes of the first
    job have ended, and that files are opened again."""
    session = site.session(site.plan(batch=20, workers=None, epochs=2))
    wait_followed(session)
    train(session, site.root, batch=20, epochs=2, compute_s=0.03)
    wait_until(lambda: plans(session)[0]["position"] >= 1.9 * MANY, what="the end of the plan")
    if is_announced:
        assert session.monarch("run", "--", "true").returncode == 0
        wait_until(lambda: plans(session)[0]["position"] == 0, what="the plan's beginning")
    train(session, site.root, batch=20, epochs=1, compute_s=0.15)
    (plan,) = plans(session)
    assert plan["state"] == "following"
    assert 0.8 * MANY <= plan["position"] <= 1.1 * MANY


# This test runs only with --long, because test_tracker.py and nodes/test_planned_failures.py cover
# this case in every run.
@pytest.mark.long
def test_a_job_that_is_restarted_in_a_later_epoch_finds_its_place(site: Site) -> None:
    session = site.session(site.plan(epochs=6), share=0.3)
    wait_followed(session)
    train(session, site.root, epochs=1, limit=20, compute_s=0.01)
    with epochs_counted(session, 6):
        train(session, site.root, first=4, epochs=6, compute_s=0.01)
    wait_until(lambda: plans(session)[0]["position"] == 6 * MANY, what="the end of the plan")
    (plan,) = plans(session)
    assert plan["state"] == "following"
    train(session, site.root, first=2, epochs=3, compute_s=0.01)
    (plan,) = plans(session)
    assert (plan["state"], plan["epoch"]) == ("following", 2)
    assert "not followed" not in session.log.read_text()


# This test needs --long. Without --long, test_ranks_read.py tests ranks that follow a plan.
@pytest.mark.parametrize("torch", [False, pytest.param(True, marks=[needs_torch])])
@pytest.mark.long
def test_two_ranks_on_one_node(site: Site, torch: bool) -> None:
    about: dict[str, Any] = {"ranks": 2, "epochs": 2}
    session = site.session(site.plan(**about))
    wait_followed(session)
    train(session, site.root, compute_s=0.02, torch=torch, **about)
    wait_until(lambda: plans(session)[0]["position"] == 2 * MANY, what="the end of the plan")
    (plan,) = plans(session)
    assert (plan["state"], plan["position"]) == ("following", 2 * MANY)
    assert plan["others"] <= 0.02 * 2 * MANY


# This test needs --long. Without --long, test_tracker.py tests plans of several jobs, and the next
# test here runs several jobs.
@pytest.mark.long
def test_two_jobs_with_a_plan_each(site: Site) -> None:
    files = [
        plan_of(site.files, site.root, site.directory / f"{seed}.npz", seed=seed, epochs=2)
        for seed in (1, 2)
    ]
    session = site.session(files, area=AREA * 3 // 4)
    wait_followed(session)
    site.slow()
    threads = [
        threading.Thread(
            target=train,
            args=(session, site.root),
            kwargs={"seed": seed, "epochs": 2, "compute_s": 0.03},
        )
        for seed in (1, 2)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for plan in plans(session):
        assert plan["state"] == "following"
        assert plan["position"] >= 2 * MANY * 0.9
    totals = session.totals()
    assert totals["misses"] + totals["waits"] <= 0.05 * totals["opens"]


def test_jobs_with_one_plan_are_as_many_as_it_is_named(site: Site) -> None:
    """A plan that the configuration names three times is followed for three jobs, as in a search
    for hyperparameters. Each job begins while the previous job is in its first epoch."""
    session = site.session([site.plan(epochs=2)] * 3, area=AREA * 3 // 4)
    wait_followed(session)
    about = {"epochs": 2, "compute_s": sized(0.04, 0.06)}
    threads = [
        threading.Thread(target=train, args=(session, site.root), kwargs=about) for _ in range(3)
    ]
    for number, thread in enumerate(threads):
        thread.start()
        begun = number + 1
        wait_until(
            lambda begun=begun: (
                sum((p["position"] or 0) > MANY // 6 for p in plans(session)) == begun
            ),  # type: ignore[misc]
            what="a job in its first epoch",
        )
    for thread in threads:
        thread.join()
    for plan in plans(session):
        assert plan["state"] == "following"
        assert plan["position"] >= 2 * MANY * 0.9
    assert "not followed" not in session.log.read_text()


def test_a_description_is_followed_like_a_plan(session_factory: Factory, tmp_path: Path) -> None:
    """The configuration names plan.yaml. No command has made a plan from it."""
    files = Files(tmp_path / "source").add_many(80, 2000)
    names = sorted(files.digests)
    Index.of("files", files.root, names, [2000] * len(names)).save(tmp_path / "index.npz")
    recipe = tmp_path / "plan.yaml"
    sampler = "sampler: {kind: DistributedSampler, seed: 5}"
    part = f"{{dataset: {tmp_path}/index.npz, batch_size: 4, {sampler}}}"
    recipe.write_text(f"epochs: 2\nparts:\n- {part}\n")
    session = session_factory(files.root, plan=str(recipe)).start()
    wait_followed(session)
    wait_until(lambda: session.status()["tiers"][0]["files"] == len(names), what="all copies")
    order = read_plan(recipe).timeline().section(0).node(0)
    assert order.tolist() == list(DistributedSampler(len(names), 1, 5).epoch(0))
    read = "import sys\nfor path in sys.argv[1:]: open(path, 'rb').read()"
    session.python(read, *(str(files.root / names[unit]) for unit in order))
    wait_until(lambda: plans(session)[0]["position"] >= len(names) * 0.9, what="the epoch's end")
    assert plans(session)[0]["others"] == 0


def test_a_plan_for_more_nodes_than_one_is_followed_with_a_warning(
    session_factory: Factory, tmp_path: Path
) -> None:
    files = Files(tmp_path / "source").add_many(60, 1000)
    plan = plan_of(files, files.root, tmp_path / "plan.npz", nodes=2, ranks=2)
    session = session_factory(files.root, plan=str(plan)).start()
    warning = "is for 2 nodes, but this daemon works alone: it follows only the accesses of node 0"
    wait_until(lambda: warning in session.log.read_text(), what="the warning")


def test_links_stand_for_their_files(session_factory: Factory, tmp_path: Path) -> None:
    """A plan may name files by symbolic links: a link in the same directory or in another one, a
    path through a link to a directory, or a link to a link."""
    files = Files(tmp_path / "source").add_many(80, 2000)
    root, plain = files.root, sorted(files.digests)
    (root / "links").mkdir()
    (root / "behind").symlink_to("links")
    names = plain[:20]
    for number, name in enumerate(plain[20:]):
        link = root / "links" / f"{number}"
        link.symlink_to(root / name if number % 2 else os.path.join("..", name))
        names.append(f"links/{number}" if number < 20 else f"behind/{number}")
    (root / "twice").symlink_to("behind/59")
    names[-1] = "twice"
    plan = plan_of(files, root, tmp_path / "plan.npz", epochs=2, names=names)
    session = session_factory(root, plan=str(plan)).start()
    session.wait_scanned()
    wait_followed(session)
    wait_until(lambda: session.status()["tiers"][0]["files"] == len(plain), what="all copies")
    order = [str(root / names[unit]) for unit in Plan.load(plan).timeline().section(0).node(0)]
    read = "import sys\nfor path in sys.argv[1:]: open(path, 'rb').read()"
    session.python(read, *order)
    wait_until(lambda: plans(session)[0]["position"] >= len(plain) * 0.9, what="the epoch's end")
    assert plans(session)[0]["others"] == 0
    assert session.totals()["misses"] == 0


def test_a_link_that_leads_out_of_the_sources_is_a_file_that_is_missing(
    session_factory: Factory, tmp_path: Path
) -> None:
    files = Files(tmp_path / "source").add_many(50, 2000)
    (tmp_path / "outside").write_bytes(b"x" * 2000)
    (files.root / "out").symlink_to(tmp_path / "outside")
    names = [*sorted(files.digests), "out"]
    plan = plan_of(files, files.root, tmp_path / "plan.npz", names=names)
    session = session_factory(files.root, plan=str(plan)).start()
    wait_until(lambda: plans(session)[0]["state"] == "dropped", what="the drop")
    assert plans(session)[0]["why"].startswith("1 of 51 files")
