"""Following a plan: real DataLoaders under the library, over a slow source that counts."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from cli.test_status import documented
from daemon.following import plan_of, train
from support.files import Files, check_all
from support.session import MIB, Session, wait_until
from support.watch import QuotaWatch, assert_quiet

from monarch_py.catalog import CatalogReader
from monarch_py.config import load_config
from monarch_py.daemon.server import Daemon
from monarch_py.demo.slowsource import SlowSource
from monarch_py.native import copy_of
from monarch_py.plan import Plan
from monarch_py.plan.samplers import DistributedSampler

Factory = Callable[..., Session]
MANY, SIZE, SEED = 600, 50_000, 11


class Site:
    """A dataset behind a slow source, and a session whose tier holds a part of it."""

    def __init__(
        self, factory: Factory, mounted: SlowSource, directory: Path, files: int = MANY
    ) -> None:
        self.factory, self.mounted, self.directory = factory, mounted, directory
        self.files = Files(mounted.backing).add_many(files, SIZE)
        self.bytes = files * SIZE
        self.root = mounted.mountpoint

    def session(
        self,
        plan: Path | list[Path] | None,
        *,
        share: float = 0.5,
        area: int = 8 * MIB,
        **more: Any,
    ) -> Session:
        """A daemon that has scanned the source; `share` : of the dataset that the tier holds."""
        places = [self.directory / name for name in ("tier", "area")]
        for place in places:
            place.mkdir(exist_ok=True)
        tiers = [{"mount_point": places[0], "max_storage_quota": int(self.bytes * share * 1.06)}]
        staging = {"mount_point": str(places[1]), "max_storage_quota": area}
        more["plan"] = list(map(str, plan)) if isinstance(plan, list) else str(plan)
        session = self.factory(self.root, tiers=tiers, staging=staging, **more).start()
        session.wait_scanned()
        self.mounted.reset()
        return session

    def plan(self, **about: Any) -> Path:
        return plan_of(self.files, self.root, self.directory / "plan.npz", **about)

    def slow(self, rate: float = 100e6) -> None:
        self.mounted.latency(open=0.0005, read=0.0005)
        self.mounted.rate(rate)


@pytest.fixture
def site(session_factory: Factory, slow_factory: Callable[..., SlowSource], tmp_path: Path) -> Site:
    return Site(session_factory, slow_factory(), tmp_path)


def plans(session: Session) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = session.status()["plans"]
    return found


def wait_followed(session: Session) -> None:
    states = {"following"}
    wait_until(lambda: {p["state"] for p in plans(session)} == states, what="the plan's files")


@contextmanager
def epochs_counted(session: Session, epochs: int) -> Iterator[list[dict[str, Any]]]:
    """The daemon's counters as soon as its plan says that an epoch has begun, and at the end."""
    counted: list[dict[str, Any]] = []
    end = threading.Event()

    def watch() -> None:
        while not end.is_set() and len(counted) < epochs:
            (plan,) = plans(session)
            if plan["position"] is not None and plan["position"] >= MANY * (len(counted) + 1):
                counted.append(session.totals())
            end.wait(0.005)

    thread = threading.Thread(target=watch)
    thread.start()
    try:
        yield counted
    finally:
        end.set()
        thread.join()
        counted.append(session.totals())


def late(before: dict[str, Any], after: dict[str, Any]) -> float:
    """The share of opens that found no copy, or of reads that waited for one."""
    opens = after["opens"] - before["opens"]
    waited = after["waits"] - before["waits"] + after["misses"] - before["misses"]
    print(f"{waited} of {opens} waited")
    return float(waited / opens)


# --- fetched before it is needed ----------------------------------------------------------------


def test_what_has_no_place_is_there_when_it_is_needed(site: Site) -> None:
    """The tier holds half of the dataset, the area a fifth; compute takes twice the transfer."""
    session = site.session(site.plan())
    wait_followed(session)
    site.slow()
    compute_s = 2 * 8 * SIZE / 100e6 + 2 * 8 * 0.001
    with (
        QuotaWatch(site.directory / "area") as area,
        QuotaWatch(site.directory / "tier") as tier,
        epochs_counted(session, 1) as counted,
    ):
        done = train(session, site.root, compute_s=compute_s)
    assert late(counted[0], counted[-1]) <= 0.01
    assert area.most_bytes <= 8 * MIB
    assert tier.most_bytes <= int(site.bytes * 0.5 * 1.06)
    (plan,) = plans(session)
    assert set(plan) == {name for name, _ in documented("Each of `plans`")}
    assert (plan["state"], plan["epoch"], plan["position"]) == ("following", 2, 3 * MANY)
    assert plan["others"] == 0
    report = session.status()
    kept = report["tiers"][0]["files"]
    assert 0.45 * MANY <= kept <= 0.53 * MANY
    # What is kept was read once, all else once an epoch at most.
    served = site.mounted.counts()["bytes_read"] / site.bytes
    assert served <= (kept + 3 * (MANY - kept)) / MANY * 1.02
    without = train(session, site.root, preload=False, epochs=1)
    assert {each["digest"] for each in done} == {without[0]["digest"]}
    assert_quiet(session)


def test_with_room_for_everything_it_is_fetched_in_the_order_of_use(site: Site) -> None:
    session = site.session(site.plan(), share=1.1, shared_tpool_size=1)
    wait_until(
        lambda: session.status()["sources"][0]["present"] == MANY, what="copies of everything"
    )
    (place,) = (site.directory / "tier").glob("monarch-*/c")
    assert len(list(place.iterdir())) == MANY
    assert site.mounted.counts()["bytes_read"] <= 1.02 * site.bytes
    with epochs_counted(session, 1) as counted:
        train(session, site.root, epochs=1)
    assert counted[-1]["misses"] == counted[-1]["waits"] == 0
    assert session.status()["staging"]["staged"] == 0


class Few:
    """Files of these sizes [KiB], in the order of a plan that a daemon follows. The tier holds none
    of them, the area 1 MiB, of which what is fetched ahead may take seven eighths."""

    def __init__(
        self, factory: Factory, mounted: SlowSource, directory: Path, sizes: list[int], rate: float
    ) -> None:
        self.root = mounted.mountpoint
        self.order = DistributedSampler(len(sizes), 1, SEED).epoch(0).tolist()
        files = Files(mounted.backing)
        for number, size in zip(self.order, sizes, strict=True):
            files.add(f"{number}.bin", size * 1024)
        mounted.rate(rate)
        for name in ("tier", "area"):
            (directory / name).mkdir()
        plan = plan_of(files, self.root, directory / "plan.npz", seed=SEED, epochs=1)
        self.session = factory(
            self.root,
            tiers=[{"mount_point": directory / "tier", "max_storage_quota": 128 * 1024}],
            staging={"mount_point": str(directory / "area"), "max_storage_quota": MIB},
            plan=str(plan),
        ).start()

    def copies(self) -> list[int]:
        """Of each file the number of its copy, 0 for none: the later it was begun, the higher."""
        generation = self.session.client.ask("where")["generation"]
        catalog = CatalogReader.open(self.session.paths, generation)
        entries = [catalog.find(0, f"{number}.bin") for number in self.order]
        return [int(copy_of(catalog.words[entry])) for entry in entries]

    def open(self, *places: int) -> None:
        """One program, these files one right after the other."""
        script = "import os, sys; [os.open(name, os.O_RDONLY) for name in sys.argv[1:]]"
        paths = [self.root / f"{self.order[place]}.bin" for place in places]
        self.session.python(script, *paths)


def test_a_large_file_is_not_overtaken_by_smaller_ones_that_are_used_later(
    session_factory: Factory, slow_factory: Callable[..., SlowSource], tmp_path: Path
) -> None:
    """The third one in the plan has room when the first, which is opened but not there yet, has
    gone; the fourth would have at once."""
    sizes = [400, 290, 390, 180]
    few = Few(session_factory, slow_factory(), tmp_path, sizes, rate=350 * 1024)
    wait_until(lambda: all(few.copies()[:2]), what="the first two")
    assert not any(few.copies()[2:])
    few.open(0)
    wait_until(lambda: all(few.copies()[1:]), what="the others")
    assert few.copies()[2] < few.copies()[3]


def test_what_was_just_opened_goes_before_what_is_used_next(
    session_factory: Factory, slow_factory: Callable[..., SlowSource], tmp_path: Path
) -> None:
    """A program has opened the first two, of which nobody tells, and then one that needs room."""
    few = Few(session_factory, slow_factory(), tmp_path, [270] * 6, rate=0)
    wait_until(lambda: all(few.copies()[:3]), what="the first three")
    few.session.wait_idle()
    third = few.copies()[2]
    few.open(0, 1, 3)
    wait_until(lambda: few.copies()[3], what="the one that was opened")
    assert few.copies()[2] == third


def test_readers_come_before_what_is_fetched_ahead(site: Site) -> None:
    site.slow(rate=5e6)
    session = site.session(site.plan(), share=1.1)
    wait_until(lambda: session.totals()["fills"] > 5, what="the first copies")
    last = site.root / sorted(site.files.digests)[-1]
    script = "import sys; print(len(open(sys.argv[1], 'rb').read()))"
    assert session.python(script, last) == f"{SIZE}\n"
    assert session.totals()["fills"] < MANY / 2
    assert session.totals()["fallbacks"] == 0


def test_links_stand_for_their_files(session_factory: Factory, tmp_path: Path) -> None:
    """A link to a file, one in another directory, a file behind a link to its directory, and links
    to links."""
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


def test_a_plan_that_cannot_be_worked_out_ends_itself_and_nothing_else(
    monkeypatch: pytest.MonkeyPatch, session_factory: Factory, tmp_path: Path
) -> None:
    """What its thread raises would otherwise end the daemon's loop."""
    files = Files(tmp_path / "source").add_many(50, 1000)
    plan = plan_of(files, files.root, tmp_path / "plan.npz", epochs=3)
    session = session_factory(files.root, plan=str(plan))
    monkeypatch.setenv("MONARCH_SHM", str(session.shm))
    session.paths.make()
    daemon = Daemon(load_config(session.config), session.paths)
    try:
        before = daemon.filler.keeps
        wait_until(lambda: [daemon._turn()] and daemon.planned._placed, what="the plan's files")
        assert daemon.filler.keeps is not before
        (course,) = daemon.planned.courses
        monkeypatch.setattr(course, "step", lambda: 1 / 0)
        daemon._turn()
        assert course.state == "dropped"
        assert daemon.filler.keeps is before
        daemon._turn()
    finally:
        daemon._close()


# --- a right plan is followed -------------------------------------------------------------------


@pytest.mark.parametrize("in_order", [True, False])
def test_eight_workers_out_of_order_are_followed(site: Site, in_order: bool) -> None:
    about: dict[str, Any] = {"workers": 8, "prefetch_factor": 4, "batch": 2, "epochs": 2}
    session = site.session(site.plan(**about))
    wait_followed(session)
    done = train(session, site.root, in_order=in_order, strays=3, persistent=True, **about)
    # A file that is opened twice between two turns of the daemon's loop is seen once.
    wait_until(lambda: plans(session)[0]["position"] >= 2 * MANY * 0.95, what="the end of the plan")
    (plan,) = plans(session)
    assert plan["state"] == "following"
    assert plan["fitting"] >= 2 * MANY * 0.95
    assert len({each["digest"] for each in done}) == 1
    assert "not followed" not in session.log.read_text()


def test_a_job_that_is_restarted_in_a_later_epoch_finds_its_place(site: Site) -> None:
    session = site.session(site.plan(epochs=6), share=0.3)
    wait_followed(session)
    train(session, site.root, epochs=1, limit=20, compute_s=0.01)
    with epochs_counted(session, 6):
        train(session, site.root, first=4, epochs=6, compute_s=0.01)
    (plan,) = plans(session)
    assert (plan["state"], plan["position"]) == ("following", 6 * MANY)
    train(session, site.root, first=2, epochs=3, compute_s=0.01)
    (plan,) = plans(session)
    assert (plan["state"], plan["epoch"]) == ("following", 2)
    assert "not followed" not in session.log.read_text()


def test_two_ranks_on_one_node(site: Site) -> None:
    about: dict[str, Any] = {"ranks": 2, "epochs": 2}
    session = site.session(site.plan(**about))
    wait_followed(session)
    train(session, site.root, compute_s=0.02, **about)
    wait_until(lambda: plans(session)[0]["position"] == 2 * MANY, what="the end of the plan")
    (plan,) = plans(session)
    assert (plan["state"], plan["position"]) == ("following", 2 * MANY)
    assert plan["others"] <= 0.02 * 2 * MANY


def test_two_jobs_with_a_plan_each(site: Site) -> None:
    files = [
        plan_of(site.files, site.root, site.directory / f"{seed}.npz", seed=seed, epochs=2)
        for seed in (1, 2)
    ]
    session = site.session(files, area=6 * MIB)
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


# --- a wrong plan is dropped --------------------------------------------------------------------


# Opens files at a pace at which it is seen in which order.
OPEN = """
import os, sys, time
for path in sys.argv[1:]:
    os.close(os.open(path, os.O_RDONLY))
    time.sleep(0.003)
"""


def wait_dropped(session: Session) -> None:
    wait_until(lambda: plans(session)[0]["state"] == "dropped", what="the drop")


def assert_dropped(session: Session, why: str, jobs: int = 1) -> None:
    """With one warning for each job at most, and for one at least."""
    (plan,) = plans(session)
    assert plan["state"] == "dropped"
    assert re.search(why, plan["why"])
    warnings = re.findall(r".* is not followed any more: .*", session.log.read_text())
    assert 1 <= len(warnings) <= jobs
    assert all(re.search(why, warning) for warning in warnings)


def test_a_plan_with_another_seed_is_dropped_within_100_accesses(site: Site) -> None:
    session = site.session(site.plan(seed=12))
    wait_followed(session)
    train(session, site.root, seed=11, epochs=1, limit=10, compute_s=0.05)
    wait_until(lambda: plans(session)[0]["state"] == "dropped", what="the end of the plan")
    assert session.totals()["opens"] <= 100 + 4 * 8, "it read ahead until it was noticed"
    assert_dropped(session, r"of the last \d+ files that were opened \d+ were others")
    # What was before goes on: files are placed as they come.
    check_all(session, site.files, site.root)
    session.wait_idle()
    train(session, site.root, seed=11, epochs=2)
    wait_dropped(session)
    assert_dropped(session, "were others", jobs=3)
    assert session.status()["tiers"][0]["files"] >= 0.45 * MANY
    assert_quiet(session)


def test_a_plan_that_was_dropped_is_tried_again(site: Site) -> None:
    """With the next job, whether it says so or opens files, and when there is another plan."""
    plan = site.plan(seed=12)
    order, names = Plan.load(plan).timeline().section(0).node(0), sorted(site.files.digests)
    right = [str(site.root / names[unit]) for unit in order]
    wrong = list(np.random.default_rng(1).permutation(right)[: MANY // 2])
    session = site.session(plan)
    wait_followed(session)
    session.python(OPEN, *wrong)
    wait_dropped(session)
    session.python(OPEN, *right)
    wait_followed(session)
    assert plans(session)[0]["position"] > MANY // 2
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
        wait_followed(session)  # while that job is there
        job.communicate()
    site.plan(seed=14)
    session.monarch("run", "--", "true")
    order = Plan.load(plan).timeline().section(0).node(0)
    session.python(OPEN, *(str(site.root / names[unit]) for unit in order))
    wait_followed(session)
    assert plans(session)[0]["position"] > MANY // 2
    # What the last of those jobs still had to open does not fit the plan that came meanwhile.
    assert session.log.read_text().count("is not followed any more") in (3, 4)


def test_a_plan_for_a_dataset_that_has_changed_is_dropped(site: Site) -> None:
    plan = site.plan()
    site.files.add("f00007", SIZE - 1)
    site.files.path("f00008").unlink()
    del site.files.digests["f00008"]
    session = site.session(plan)
    wait_until(lambda: plans(session)[0]["state"] == "dropped", what="the look at the dataset")
    assert_dropped(session, f"2 of {MANY} files in .* are gone or others now")
    check_all(session, site.files, site.root)


def test_a_plan_for_files_elsewhere_is_dropped(site: Site, tmp_path: Path) -> None:
    plan = plan_of(site.files, tmp_path / "elsewhere", tmp_path / "plan.npz")
    session = site.session(plan)
    wait_until(lambda: plans(session)[0]["state"] == "dropped", what="the look at the dataset")
    assert_dropped(session, "elsewhere lies in no source")


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
        lambda: {plan["state"] for plan in plans(session)} == {"dropped"}, what="the third seed"
    )


# --- what cannot be followed --------------------------------------------------------------------


def refusal(session: Session) -> str:
    done = session.monarch("serve")
    assert done.returncode == 2
    (line,) = done.stderr.splitlines()
    return line


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"plan": "not_there.npz"}, r"tiers.yaml:\d+: plan: .*not_there.npz' is not a file; make"),
        ({"plan": ["tiers.yaml"]}, r"tiers.yaml: not a plan .*; make one with `monarch plan make`"),
        ({"plan": [[]]}, r"tiers.yaml:\d+: plan\[0\]: must be a file, but is .*; name what"),
        ({"plan": "tiers.yaml", "prefetch": "none"}, r"plan: with 'prefetch: none' .*; remove one"),
    ],
)
def test_what_is_no_plan_is_refused(
    session_factory: Factory, tree: Path, settings: dict[str, Any], said: str
) -> None:
    session = session_factory(tree, **settings)
    assert re.search(said, refusal(session))


def test_a_plan_without_names_is_refused(session_factory: Factory, tree: Path) -> None:
    session = session_factory(tree, plan="plan.npz")
    recipe = session.directory / "plan.yaml"
    recipe.write_text(
        "epochs: 1\nparts:\n- {dataset: 20, batch_size: 2, sampler: {kind: SequentialSampler}}\n"
    )
    words = [sys.executable, "-m", "monarch_py", "plan", "make", "-c", str(recipe)]
    subprocess.run([*words, "-o", str(session.directory / "plan.npz")], check=True)
    assert re.search(r"plan.npz: .* names are not known; make it from an index", refusal(session))
    assert not os.listdir(session.directory / "tier0"), "nothing was begun"
