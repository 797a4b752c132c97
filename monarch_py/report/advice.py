"""Suggests changes that would have made a run faster, and estimates the effect of each change with
the simulator.

The simulator needs a scenario, which is made from the run's measurements. Values that a run cannot
measure are assumed. The advice lists each assumption.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import msgspec
import numpy as np

from monarch_py.arrays import Floats
from monarch_py.policies.named import POLICIES
from monarch_py.report.recorded import Recorded, Tier
from monarch_py.report.summary import rounded_up
from monarch_py.simulator.engine import simulate
from monarch_py.simulator.scenario import (
    Curve,
    Dataset,
    Rates,
    Scenario,
    SizeDistribution,
    StorageClass,
)
from monarch_py.util.units import GIB, MIB, counted, format_size

# The largest number of files, and of accesses, in a simulation. With these limits, one simulation
# takes less than a second. A larger run is simulated with fewer files, and with tiers that are
# smaller by the same factor. So each tier holds the same share of the files (docs/simulator.md).
MOST_FILES, MOST_ACCESSES = 10_000, 100_000
# A run with more than MOST_NODES nodes, or with files of more than MOST_MEAN bytes on average, is
# not simulated.
MOST_NODES, MOST_MEAN = 64, 1e13
# A report does not show how far the program reads ahead. It is assumed that a batch has BATCH
# files, and that each reading thread fetches AHEAD batches before they are needed.
BATCH, AHEAD = 8, 2
# Assumed rates of memory and of an SSD [bytes/s]. A run cannot measure them, because programs read
# copies directly through the kernel. UNLIMITED is a rate so high that it has no influence.
TIER_RATES = {"ram": 4.0 * GIB, "ssd": 1.0 * GIB}
UNLIMITED = 1e15
# If at least this share of the bytes in an interval of the run came from copies, it is assumed that
# the source did not slow the training in this interval.
UNDISTURBED = 0.95
# A change is advised only if it saves at least this share of the run's time.
WORTH = 0.05
# The share of the available memory that a new tier may take.
MEMORY_SHARE = 0.5
# An advised quota of a tier is at most this share of the space that copies can have: the bytes that
# they take now plus the free bytes of the file system.
DISK_SHARE = 0.9


@dataclass(frozen=True, slots=True)
class Change:
    """A change that would have made the run faster.

    what : the change, in words;  seconds : the simulated time of the run with this change [s]
    """

    what: str
    seconds: float


@dataclass(frozen=True, slots=True)
class Advice:
    """The changes that would have made the run faster.

    measured : the time of the run [s];  simulated : the simulated time of the unchanged run [s]
    changes : the changes, the best first
    assumptions : the assumptions of the simulation, each as a text
    """

    measured: float
    simulated: float
    changes: Sequence[Change]
    assumptions: Sequence[str]

    def as_dict(self) -> dict[str, Any]:
        """Returns the advice as a dict of types that JSON can represent."""
        return {
            "measured_seconds": self.measured,
            "simulated_seconds": self.simulated,
            "changes": [{"what": c.what, "simulated_seconds": c.seconds} for c in self.changes],
            "assumptions": list(self.assumptions),
        }


@dataclass(frozen=True, slots=True)
class _Machine:
    """The settings with which a run is simulated.

    tiers : the usable tiers, in the order of the configuration
    readers : how many threads of programs read at the same time
    policy : the name of the simulator's policy
    """

    tiers: tuple[Tier, ...]
    readers: int
    policy: str


def typical_rate(amounts: Floats, seconds: Floats) -> float:
    """Returns the rate [bytes/s] at which most of the bytes arrived; 0 if no bytes arrived. The
    result is the mean of the intervals' rates, weighted by the bytes in each interval. So intervals
    with few bytes have little influence.

    amounts, seconds : (n,) the number of bytes in each interval, and the interval's length [s]
    """
    total = float(amounts.sum())
    return float((amounts * amounts / seconds).sum()) / total if total else 0.0


def undisturbed_rate(run: Recorded) -> float:
    """Returns the rate [bytes/s] at which the training read in the undisturbed intervals of the
    run: those in which nearly all bytes came from copies. Returns 0 if these intervals contain only
    a small part of the run's bytes."""
    opened = run.counted["bytes_from_tier"] + run.counted["bytes_from_source"]
    lengths = np.diff(run.seconds)
    is_free = (
        (run.counted["bytes_from_tier"] >= UNDISTURBED * opened)
        & (run.source_bytes <= (1 - UNDISTURBED) * opened)
        & (run.counted["wait_seconds"] <= (1 - UNDISTURBED) * lengths)
    )
    # `is_free` may select only a few intervals, for example the first and the last. If the selected
    # intervals contain only a small part of the run's bytes, their rate is not the speed of the
    # training.
    if opened[is_free].sum() < WORTH * opened.sum():
        return 0.0
    return typical_rate(opened[is_free], lengths[is_free])


def advise(run: Recorded, *, epochs: int | None = None, compute: float | None = None) -> Advice:
    """Returns the changes with which the simulated run is at least 5 % faster. Also returns the
    advice to use fewer readers, if `_fewer_readers` yields it; this change need not save time.

    epochs : the number of epochs of the training; None if it is not known
    compute : the rate [bytes/s] at which the training reads if nothing delays it; None if it is not
        known
    """
    model = _Model(run, epochs, compute)
    if model.problem:
        return Advice(run.length, 0.0, (), (model.problem,))
    now = model.machine()
    simulated = model.seconds(now)
    changes = [Change(what, model.seconds(other)) for what, other in model.changes(now)]
    changes = [c for c in changes if c.seconds <= (1 - WORTH) * simulated]
    changes.sort(key=lambda change: change.seconds)
    changes += _fewer_readers(run, model, now, simulated)
    return Advice(run.length, simulated, changes, model.assumptions)


def _fewer_readers(
    run: Recorded, model: "_Model", now: _Machine, simulated: float
) -> Iterator[Change]:
    """Yields the advice to halve the number of readers (threads that read at the same time), if two
    conditions hold. First, on average, at least half of the readers were waiting. Second, the
    simulated run with half of the readers takes at most 5 % longer."""
    half = now.readers // 2
    if not half or run.totals["wait_seconds"] / run.length < half:
        return
    seconds = model.seconds(replace(now, readers=half))
    if seconds <= (1 + WORTH) * simulated:
        what = f"use about {counted(half, 'worker')} in place of {now.readers}"
        yield Change(f"{what}: the other workers would only wait for copies", seconds)


def saved(advice: Advice) -> list[list[str]]:
    """Returns a row of a table for each change: the change, the simulated time of the run with this
    change, and the share of the run's time that the change saves."""
    return [
        [c.what, f"{c.seconds:,.1f} s", percent(max(0.0, 1 - c.seconds / advice.simulated))]
        for c in advice.changes
    ]


def percent(share: float) -> str:
    return f"{100 * share:.0f} %"


def compared(advice: Advice) -> str:
    """Returns a sentence that compares the measured and the simulated time of the unchanged run."""
    if not advice.simulated:
        return "Nothing was simulated."
    changed = ", and the times above are simulated with one change each" if advice.changes else ""
    return (
        f"The run took {advice.measured:,.1f} s. Its simulated time is {advice.simulated:,.1f} s"
        f" without a change{changed}."
    )


class _Model:
    """Makes scenarios from a run's measurements, and simulates them."""

    def __init__(self, run: Recorded, epochs: int | None, compute: float | None) -> None:
        self._run = run
        found = run.epochs(epochs)
        self._epochs = max(1, len(found))
        lengths = np.diff(run.seconds)
        self._source = typical_rate(run.source_bytes, lengths)
        self._network = typical_rate(run.counted["bytes_from_peers"], lengths)
        self._undisturbed = undisturbed_rate(run)
        self._compute = compute or self._undisturbed
        self.problem = self._problem(has_epochs=bool(found))
        self._scale = min(1.0, self._sampled() / max(1, run.files))
        self.assumptions = tuple(self._told(is_given=compute is not None))

    def _problem(self, *, has_epochs: bool) -> str:
        """Returns why the run cannot be simulated; "" if it can be simulated."""
        run = self._run
        if not (run.files and 0 < run.bytes / run.files <= MOST_MEAN):
            return "the sources have no files, or the sizes in the report cannot be right"
        if not has_epochs:
            return "programs opened no files, or the number of epochs is not known: give --epochs"
        if run.report.other_jobs:
            return "other jobs used the daemon too, and their reads cannot be separated"
        if not self._source:
            return "no bytes came from the source in this run, so its rate is not known"
        if run.nodes > MOST_NODES:
            return f"runs of more than {MOST_NODES} nodes are not simulated here"
        return ""

    def _sampled(self) -> int:
        most = min(MOST_FILES, MOST_ACCESSES // self._epochs)
        return max(BATCH * self._run.nodes, min(self._run.files, most))

    def machine(self) -> _Machine:
        """Returns the machine as it was during the run, without any change."""
        usable = tuple(t for t in self._run.report.tiers if t.usable and t.quota_bytes)
        policy = self._kept_policy()
        if policy == "hash" and self._run.is_planned:
            policy = "planned"
        if self._run.report.prefetch == "none" or not usable:
            policy = "staging-buffer"
        return _Machine(usable, max(1, self._run.readers), policy)

    def changes(self, now: _Machine) -> Iterator[tuple[str, _Machine]]:
        """Yields, for each possible change, a sentence and the machine with this change.

        now : the machine without any change
        """
        run, kept = self._run, self._kept_policy()
        size = run.bytes // run.nodes + run.files // run.nodes * 4096
        if run.report.prefetch == "none" and now.tiers:
            yield "set prefetch to auto, so that copies are made", replace(now, policy=kept)
        if now.tiers and sum(t.quota_bytes for t in now.tiers) < size:
            yield from self._larger(now, size)
        room = min(size, int(MEMORY_SHARE * run.memory_bytes))
        if room >= MIB and all(tier.kind != "ram" for tier in now.tiers):
            what = f"put a RAM tier of {rounded_up(room)} (on a tmpfs) before the other tiers"
            policy = now.policy if now.tiers else kept
            yield what, replace(now, tiers=(_ram_tier(room), *now.tiers), policy=policy)
        ordered = tuple(sorted(now.tiers, key=lambda tier: tier.kind != "ram"))
        if ordered != now.tiers:
            names = ", ".join(tier.mount_point for tier in ordered)
            yield f"order the tiers by speed: {names}", replace(now, tiers=ordered)
        if now.policy == "hash":
            what = "give the daemons a plan of the sampler's order (see `monarch plan make`)"
            yield what, replace(now, policy="planned")

    def _larger(self, now: _Machine, size: int) -> Iterator[tuple[str, _Machine]]:
        """Yields the change that raises the quota of the last tier, if the tier's file system has
        room for more copies.

        now : the machine without any change
        size : how much room a node needs for all copies that it keeps [bytes]
        """
        *others, last = now.tiers
        needed = size - sum(t.quota_bytes for t in others)
        room = next(
            room
            for room, tier in zip(self._run.report.rooms, self._run.report.tiers, strict=True)
            if tier is last
        )
        if last.kind == "ram":
            room = min(room, last.used_bytes + self._run.memory_bytes)
        if (quota := min(needed, int(DISK_SHARE * room))) <= last.quota_bytes:
            return
        why = "so that all files have room" if quota == needed else "the most that fits on its disk"
        what = f"raise max_storage_quota of {last.mount_point} to {rounded_up(quota)}, {why}"
        larger = (*others, msgspec.structs.replace(last, quota_bytes=quota))
        yield what, replace(now, tiers=larger)

    def _kept_policy(self) -> str:
        """Returns the name of the policy that a daemon uses if it has no plan."""
        return "first-fit" if self._run.nodes == 1 else "hash"

    def seconds(self, machine: _Machine) -> float:
        """Returns the simulated time of the whole run on a machine [s]."""
        result = simulate(self._scenario(machine), POLICIES[machine.policy])
        return result.total_seconds / self._scale

    def _scenario(self, machine: _Machine) -> Scenario:
        run, scale, readers = self._run, self._scale, machine.readers
        nodes, mean = run.nodes, run.bytes / run.files
        staging = StorageClass(
            name="staging",
            capacity_bytes=max(1, round(readers * AHEAD * BATCH * mean)),
            threads=readers,
            read=Curve({readers: UNLIMITED}),
            write=Curve({readers: UNLIMITED}),
        )
        classes = [self._class(n, tier, scale, readers) for n, tier in enumerate(machine.tiers)]
        files = max(1, round(run.files * scale))
        return Scenario(
            name="the run",
            nodes=nodes,
            epochs=self._epochs,
            batch_per_rank=max(1, min(BATCH, files // nodes)),
            drop_last=False,
            dataset=Dataset(files, SizeDistribution(mean=mean)),
            rates=Rates(
                compute=self._compute or UNLIMITED,
                preprocess=UNLIMITED,
                network=self._network or TIER_RATES["ssd"],
                pfs_link=UNLIMITED,
            ),
            pfs=Curve({n: n * self._source for n in (1, nodes)}),
            classes=(staging, *classes),
        )

    def _class(self, number: int, tier: Tier, scale: float, readers: int) -> StorageClass:
        rate = max(self._undisturbed, TIER_RATES.get(tier.kind, TIER_RATES["ssd"]))
        curve = Curve({readers: rate})
        capacity = max(1, round(tier.quota_bytes * scale))
        return StorageClass(f"tier{number}", capacity, readers, curve, curve)

    def _told(self, *, is_given: bool) -> Iterator[str]:
        run = self._run
        yield (
            f"{counted(self._epochs, 'epoch')} of {counted(run.files, 'file')} of"
            f" {format_size(round(run.bytes / max(1, run.files)))} each (the mean), in a new random"
            " order in each epoch"
        )
        yield (
            f"this node reads the source at {_rate(self._source)}, the rate at which most of the"
            " run's bytes came"
        )
        if self._compute:
            how = "as given" if is_given else "as it did while nearly all bytes came from copies"
            yield f"the training reads {_rate(self._compute)} if nothing delays it, {how}"
        else:
            yield (
                "the training computes nothing (its own speed is not known, because the source"
                " always delayed it); so the gains may be smaller than shown here (give --compute)"
            )
        kinds = {tier.kind for tier in run.report.tiers} | {"ram"}
        rates = [f"{kind} gives {_rate(TIER_RATES[kind])}" for kind in TIER_RATES if kind in kinds]
        yield (
            f"the tiers' rates were not measured; it is assumed that {', '.join(rates)}, or as much"
            " as copies gave in this run if that is more"
        )
        if run.nodes > 1:
            link = _rate(self._network or TIER_RATES["ssd"])
            how = "as measured in this run" if self._network else "an assumption"
            yield f"all {run.nodes} nodes are like this one, and have the same rate at the source"
            yield f"a link between nodes gives {link}, {how}"
        least = format_size(run.memory_bytes)
        yield f"a RAM tier may take half of {least}; that much memory was free throughout the run"
        yield (
            f"the daemon saw {counted(run.readers, 'thread')} read at the same time; it is assumed"
            f" that each reads {AHEAD * BATCH} files ahead, and that decoding takes no time"
        )


def _ram_tier(quota_bytes: int) -> Tier:
    empty = {"used_bytes": 0, "files": 0}
    return Tier("a RAM tier", usable=True, quota_bytes=quota_bytes, kind="ram", **empty)


def _rate(rate: float) -> str:
    return f"{format_size(round(rate))}/s"
