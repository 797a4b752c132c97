"""A session that follows plans over a slow source, and functions that read what its daemon reports
about the plans."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from daemon.following import plan_of
from support.files import Files
from support.session import Session, wait_until

from monarch_py.demo.slowsource import SlowSource

Factory = Callable[..., Session]
MANY, SIZE, SEED = 600, 50_000, 11
# The quota of the staging area [bytes]: a little more than a quarter of the dataset's size.
AREA = MANY * SIZE * 7 // 25


class Site:
    """A dataset behind a slow source, and a session whose tier holds a part of the dataset."""

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
        area: int = AREA,
        **more: Any,
    ) -> Session:
        """Starts a daemon and waits until it has scanned the source.

        share : the part of the dataset that the tier has room for"""
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


def plans(session: Session) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = session.status()["plans"]
    return found


def wait_followed(session: Session) -> None:
    states = {"following"}
    wait_until(lambda: {p["state"] for p in plans(session)} == states, what="the plan's files")


@contextmanager
def epochs_counted(session: Session, epochs: int) -> Iterator[list[dict[str, Any]]]:
    """Yields a list to which the daemon's counters are appended: at the end of each of the plan's
    first `epochs` epochs, and once more at the end of the context."""
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
    """Returns the number of opens that found no copy plus the number of waits for copies, divided
    by the number of all opens. Considers only what happened between the counts `before` and
    `after`."""
    opens = after["opens"] - before["opens"]
    waited = after["waits"] - before["waits"] + after["misses"] - before["misses"]
    print(f"{waited} of {opens} waited")
    return float(waited / opens)


def wait_dropped(session: Session) -> None:
    wait_until(lambda: plans(session)[0]["state"] == "dropped", what="the drop")
