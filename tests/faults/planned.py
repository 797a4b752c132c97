"""A daemon that follows the plan of a training run. Files for which its tiers have no room go
through a staging area on the disk."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from support.epoch import Reader, build_reader
from support.session import MIB, Session, wait_until
from trials.reading import CALL_LIMIT_S

from faults.classes import CallClass
from faults.scenario import END_LIMIT_S, SIZES, Site
from monarch_py.plan import Plan, PlanPart
from monarch_py.plan.index import Index
from monarch_py.plan.loader import Loader
from monarch_py.plan.samplers import DistributedSampler

__all__ = ["PlannedSite"]

EPOCHS, CHUNK = 2, 64 << 10
# A training run reads no empty file.
SEEDS = [seed for seed, size in SIZES.items() if size]
DISK_BYTES, AREA_BYTES = 2 * MIB, 4 * MIB
SETTLED = {"following", "dropped"}


class PlannedSite(Site):
    """A site with one role, `planned`: a daemon that follows a plan."""

    disk_bytes = DISK_BYTES

    def __init__(self, faulter: Path, reader: Path) -> None:
        super().__init__(faulter, reader)
        self._epoch_reader = build_reader(self.directory)
        index = Index.of(
            "files", self.source, list(map(str, SEEDS)), [SIZES[seed] for seed in SEEDS]
        )
        self._loader = Loader(DistributedSampler(len(SEEDS), 1, 11), 1, 2)
        self._has_followed = False
        self._plan = self.directory / "plan.npz"
        Plan((index,), (PlanPart("training", 0, self._loader),), EPOCHS, 1).save(self._plan)

    def classes(self, role: str) -> list[CallClass]:
        found = super().classes(role)
        assert self._has_followed
        return found

    def _settings(self) -> dict[str, Any]:
        area = self.directory / "area"
        area.mkdir(exist_ok=True)
        staging = {"mount_point": str(area), "max_storage_quota": AREA_BYTES}
        return {"plan": str(self._plan), "staging": staging}

    def _use(self, session: Session, prefix: Sequence[str], words: Sequence[str]) -> None:
        """Waits until the daemon follows the plan, has dropped it or has ended. Then reads the
        files of each epoch in the order of the plan."""
        wait_until(lambda: is_settled(session), timeout=END_LIMIT_S, what="the plan")
        self._has_followed = states(session) == {"following"}
        for epoch in range(EPOCHS):
            seeds = [SEEDS[at] for at in self._loader.ranks(epoch)[0]]
            with Reader(
                self._epoch_reader,
                session,
                "read",
                CHUNK,
                1,
                self.source,
                seeds,
                MONARCH_WARNED="1",
            ) as reader:
                found = reader.end(END_LIMIT_S)
            assert found["longest_s"] < CALL_LIMIT_S, found


def states(session: Session) -> set[str]:
    """Returns the states of the session's plans; an empty set if the daemon does not answer."""
    with suppress(Exception):
        return {plan["state"] for plan in session.status()["plans"]}
    return set()


def is_settled(session: Session) -> bool:
    assert session.daemon is not None
    found = states(session)
    return session.daemon.poll() is not None or (bool(found) and found <= SETTLED)
