"""Files that a plan needs are fetched before they are used: the tests check the order of the
fetches and the room that they take."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from cli.test_status import documented
from daemon.following import needs_torch, plan_of, train
from daemon.planned_site import (
    AREA,
    MANY,
    SEED,
    SIZE,
    Factory,
    Site,
    epochs_counted,
    late,
    plans,
    wait_followed,
)
from support.draws import sized
from support.files import Files
from support.session import MIB, Session, wait_until
from support.watch import QuotaWatch, assert_quiet

from monarch_py.demo.slowsource import SlowSource
from monarch_py.ipc import word
from monarch_py.ipc.catalog import CatalogReader
from monarch_py.plan import Plan
from monarch_py.plan.samplers import DistributedSampler


def copies_of(session: Session, names: list[str]) -> list[int]:
    """Returns, for each file, the number that the daemon gave to the file's copy, or 0 if there is
    no copy. A copy that was begun later has a higher number."""
    generation = session.connection.ask("where")["generation"]
    catalog = CatalogReader.open(session.paths, generation)
    return [int(word.copy(catalog.words[catalog.find(0, name)])) for name in names]


@needs_torch
def test_what_has_no_place_is_there_when_it_is_needed(site: Site) -> None:
    """A file for which the tier has no room is copied into the staging area before a program needs
    it. The tier holds half of the dataset, and the staging area a little more than a quarter.
    Computing takes twice as long as reading, so there is time for these copies."""
    session = site.session(site.plan())
    wait_followed(session)
    site.slow()
    compute_s = 2 * 8 * SIZE / 100e6 + 2 * 8 * 0.001
    with (
        QuotaWatch(site.directory / "area") as area,
        QuotaWatch(site.directory / "tier") as tier,
        epochs_counted(session, 1) as counted,
    ):
        done = train(session, site.root, compute_s=compute_s, torch=sized(False, True))
    assert late(counted[0], counted[-1]) <= 0.01
    assert area.most_bytes <= AREA
    assert tier.most_bytes <= int(site.bytes * 0.5 * 1.06)
    (plan,) = plans(session)
    assert set(plan) == {name for name, _ in documented("Each of `plans`")}
    assert (plan["state"], plan["epoch"], plan["position"]) == ("following", 2, 3 * MANY)
    assert plan["others"] == 0
    report = session.status()
    kept = report["tiers"][0]["files"]
    assert 0.45 * MANY <= kept <= 0.53 * MANY
    # The files in the tier were read from the source once, and all others at most once per epoch.
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
    order = Plan.load(site.directory / "plan.npz").timeline().section(0).node(0)
    names = sorted(site.files.digests)
    copies = copies_of(session, [names[unit] for unit in order])
    assert copies == sorted(copies)
    assert site.mounted.counts()["bytes_read"] <= 1.02 * site.bytes
    with epochs_counted(session, 1) as counted:
        train(session, site.root, epochs=1)
    assert counted[-1]["misses"] == counted[-1]["waits"] == 0
    assert session.status()["staging"]["staged"] == 0


class Few:
    """A daemon that follows a plan. `sizes` lists the sizes [KiB] of the plan's files in the order
    of use. The tier has room for none of these files. The staging area holds 1 MiB, of which files
    fetched ahead may take seven eighths."""

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
        self.session.wait_scanned()

    def copies(self) -> list[int]:
        return copies_of(self.session, [f"{number}.bin" for number in self.order])

    def open(self, *places: int) -> None:
        """Runs a program that opens the files at the given places of the plan's order, one right
        after the other, and keeps them open until it ends."""
        script = "import os, sys; [os.open(name, os.O_RDONLY) for name in sys.argv[1:]]"
        paths = [self.root / f"{self.order[place]}.bin" for place in places]
        self.session.python(script, *paths)


def test_a_large_file_is_not_overtaken_by_smaller_ones_that_are_used_later(
    session_factory: Factory, slow_factory: Callable[..., SlowSource], tmp_path: Path
) -> None:
    """There is no room for the third file until the first file's copy is dropped, which happens
    after a program has opened the first file. There is room for the fourth file earlier, but it
    must not be fetched before the third."""
    sizes = [400, 290, 390, 180]
    few = Few(session_factory, slow_factory(), tmp_path, sizes, rate=sized(700, 350) * 1024)
    wait_until(lambda: all(few.copies()[:2]), what="the first two")
    assert not any(few.copies()[2:])
    few.open(0)
    wait_until(lambda: all(few.copies()[1:]), what="the others")
    assert few.copies()[2] < few.copies()[3]


def test_what_was_just_opened_goes_before_what_is_used_next(
    session_factory: Factory, slow_factory: Callable[..., SlowSource], tmp_path: Path
) -> None:
    """The first three files have copies. A program opens the first two files and then the fourth,
    which needs room. The daemon drops copies of the first two files to make room. It keeps the copy
    of the third file, which the plan uses next."""
    few = Few(session_factory, slow_factory(), tmp_path, [270] * 6, rate=0)
    wait_until(lambda: all(few.copies()[:3]), what="the first three")
    few.session.wait_idle()
    third = few.copies()[2]
    few.open(0, 1, 3)
    # The copy of the fourth file may be dropped before the test sees it, so the test counts how
    # many copies were staged.
    staged = few.session.status
    wait_until(lambda: staged()["staging"]["staged"] > 3, what="a copy of the one that was opened")
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
