"""The measurements on nodes that share a source. Each measurement returns lines of the table."""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from benchmarks.nodes.compared import compared
from benchmarks.nodes.prediction import Rates, killed_epoch, later_epochs
from benchmarks.nodes.replay import lines_of, measure_rates, replay
from benchmarks.nodes.testbed import MIB, Dataset, Epoch, Layout, Testbed
from benchmarks.nodes.transfer import transfer
from benchmarks.numbers import Result
from benchmarks.peers.nodes import Nodes

# SPARE and JUST are sizes of a node's tier, relative to the node's share of the dataset. With
# SPARE, the tier is larger than necessary. With JUST, the tier is just large enough. It is a little
# larger than the share, because names of files and partly used blocks need room too. STAGING is the
# size of the staging area, relative to the dataset.
SPARE, JUST, STAGING = 1.05, 1.02, 0.04
EPOCHS = 5


class Rows:
    """The measurements, and the dataset and rates that they share."""

    def __init__(self, args: argparse.Namespace, place: Path, programs: tuple[Path, Path]) -> None:
        self.args, self.place, self.programs = args, place, programs
        self.rate = args.rate * 1e6 / args.slow
        self.link_bits = args.link * 1e6 / args.slow
        mean = int(args.file_kib * 1024)
        self.dataset = Dataset.make(place / "backing", args.mib * MIB // mean, mean)
        self.said: list[dict[str, Any]] = []

    @property
    def rates(self) -> Rates:
        """The rates of the source and of the links, as configured (not measured)."""
        return Rates(self.rate, self.link_bits / 8)

    # --- runs -----------------------------------------------------------------------------------

    def layout(self, nodes: int, *, spare: float = SPARE, **more: Any) -> Layout:
        tier = int(self.dataset.bytes * spare / nodes)
        return Layout([tier] * nodes, int(self.dataset.bytes * STAGING), **more)

    @contextmanager
    def testbed(self, layout: Layout, *, linked: bool = False) -> Iterator[Testbed]:
        """Yields a testbed.

        linked : whether each node with a daemon gets its own network link, with a limited rate
        """
        run = self.place / "run"
        run.mkdir()
        try:
            needs_links = linked and layout.has_daemons
            rate = f"{self.link_bits:.0f}bit"
            with (
                Nodes(len(layout.tiers), rate) if needs_links else nullcontext() as links,
                Testbed(
                    run, self.dataset, self.programs, layout, rate=self.rate, links=links
                ) as bed,
            ):
                bed.await_catalogs()
                yield bed
        finally:
            shutil.rmtree(run, ignore_errors=True)

    def tell(self, what: str, **said: Any) -> None:
        """Prints a line for the user, and adds it to the JSON."""
        said = {key: round(v, 4) if isinstance(v, float) else v for key, v in said.items()}
        said["load"] = round(os.getloadavg()[0], 1)
        print(f"  {what}: {json.dumps(said)}", file=sys.stderr, flush=True)
        self.said.append({"what": what, **said})

    # --- the first epoch ------------------------------------------------------------------------

    def once(self) -> list[Result]:
        """Measures the first epoch on several nodes. The tiers of all nodes together have room for
        the dataset."""
        results: list[Result] = []
        for nodes in self.args.nodes:
            for how, orders in (
                ("everything", self.dataset.everything),
                ("its share", self.dataset.shares),
            ):
                runs = [self._first_epoch(nodes, orders) for _ in range(self.args.rounds)]
                for served, ratio in runs:
                    self.tell(f"{nodes} nodes, {how}", served=served, ratio=ratio)
                name, where = f"{nodes}_{how.split()[-1]}", f"{nodes} nodes, each reads {how}"
                served = max(run[0] for run in runs)
                ratio = statistics.median(run[1] for run in runs)
                what = "  time of the first epoch / time to send the dataset at the source's rate"
                results += [
                    Result(
                        f"served_{name}",
                        f"{where}: bytes from the source / dataset",
                        "",
                        served,
                        1.02,
                    ),
                    Result(f"first_{name}", what, "", ratio, 1.15),
                ]
        return results

    def _first_epoch(
        self, nodes: int, orders: Callable[[int, int], list[list[int]]]
    ) -> tuple[float, float]:
        with self.testbed(self.layout(nodes, keep_pages=True)) as bed:
            epoch = bed.epoch(orders(nodes, 0))
            bed.settle()
            served = bed.counts()["served"] - epoch.before["served"]
        return served / self.dataset.bytes, epoch.seconds / (self.dataset.bytes / self.rate)

    # --- later epochs ---------------------------------------------------------------------------

    def configurations(self) -> dict[str, Layout]:
        """Returns a dictionary that maps the name of each compared testbed to its Layout. Each
        testbed has four nodes. The tier of each node has room for a quarter of the dataset."""
        return {
            "source only": self.layout(4, has_daemons=False),
            "hash": self.layout(4, spare=JUST),
            "plan": self.layout(4, spare=JUST, planned=EPOCHS),
        }

    def epochs(self) -> list[Result]:
        """Measures epochs on four nodes. The tier of each node holds a quarter of the dataset."""
        names = list(self.configurations())
        seconds: dict[str, list[float]] = {name: [] for name in names}
        remote: dict[str, list[float]] = {name: [] for name in names}
        for _ in range(self.args.rounds):
            for name, layout in self.configurations().items():
                epochs = self._epochs(layout)
                seconds[name].append(sum(epoch.seconds for epoch in epochs[1:]))
                read = sum(epoch.bytes for epoch in epochs[1:])
                from_peers = sum(epoch.did("bytes_from_peers") for epoch in epochs[1:])
                remote[name].append(from_peers / read)
                self.tell(
                    name,
                    epochs=[round(epoch.seconds, 3) for epoch in epochs],
                    served=sum(epoch.did("served") for epoch in epochs[1:]) / read,
                    remote=remote[name][-1],
                    longest=max(epoch.longest_s for epoch in epochs),
                )
        results = []
        for name, words, least, most in (
            ("hash", "owners by hash", 2.6, None),
            ("plan", "a plan", 4.0, 0.52),
        ):
            pairs = zip(seconds["source only"], seconds[name], strict=True)
            value = statistics.median(plain / ours for plain, ours in pairs)
            results.append(
                least_of(
                    name, f"4 nodes, epochs 2-5: time without Monarch / with {words}", value, least
                )
            )
            value = statistics.median(remote[name])
            what = f"  bytes from peers / all bytes read, with {words}"
            results.append(Result(f"remote_{name}", what, "", value, most))
        pairs = zip(seconds["hash"], seconds["plan"], strict=True)
        value = statistics.median(mine / plan for mine, plan in pairs)
        results.append(
            least_of(
                "plan_hash",
                "4 nodes, epochs 2-5: time with owners by hash / with a plan",
                value,
                1.25,
            )
        )
        return results + self._simulated()

    def _epochs(self, layout: Layout, compute_ns: int = 0, count: int = EPOCHS) -> list[Epoch]:
        with self.testbed(layout, linked=True) as bed:
            return bed.epochs([self.dataset.shares(4, n) for n in range(count)], compute_ns)

    def _simulated(self) -> list[Result]:
        results = []
        for epochs, least in ((5, None), (90, 1.05)):
            layout = self.configurations()["plan"]
            hashed, planned = later_epochs(self.dataset, layout, self.rates, epochs)
            what = f"4 simulated nodes, epochs 2-{epochs}: time with owners by hash / with a plan"
            results.append(least_of(f"simulated_{epochs}", what, hashed / planned, least))
        return results

    # --- waiting --------------------------------------------------------------------------------

    def waited(self) -> list[Result]:
        """Measures the share of opens that find no complete copy, on every testbed of
        `configurations` except the one without daemons. For each file, the ranks compute twice as
        long as they read."""
        results = []
        for name, layout in self.configurations().items():
            if not layout.has_daemons:
                continue
            transfer = self._epochs(layout, count=2)[-1].seconds
            files = len(self.dataset.sizes) // 4
            compute_ns = int(2e9 * transfer / files * layout.threads)
            epochs = self._epochs(layout, compute_ns, count=4)[1:]
            missed = sum(e.did("misses") for e in epochs) / sum(e.did("opens") for e in epochs)
            self.tell(name, transfer=transfer, epochs=[e.seconds for e in epochs], missed=missed)
            most = 0.01 if name == "plan" else None
            what = (
                f"computing takes twice as long as reading, {name}: share of opens without a"
                " complete copy"
            )
            results.append(Result(f"waited_{name}", what, "", missed, most))
        return results

    # --- balance --------------------------------------------------------------------------------

    def balance(self) -> list[Result]:
        """Measures four ranks, which all run on node 0 of two nodes. Some files of each rank are
        missing on node 0: only node 1 has a copy. The number of missing files differs between the
        ranks.

        There are three variants. In the first, the daemon divides its threads equally among the
        ranks. In the second and third, ranks with more missing files get more threads. In the first
        and second, all missing files come from node 1. Few threads fetch from other nodes, so these
        threads are a bottleneck. In the third, the threads that read the source fetch missing files
        too, so there are enough threads.
        """
        results = []
        for name, is_on, fetch, most in (
            ("equal shares of threads", False, "holders", None),
            ("shares by misses", True, "holders", 1.15),
            ("shares by misses, source too", True, "fastest", None),
        ):
            settings = {"tuning": {"balance_ranks": is_on}, "peers": {"fetch": fetch}}
            layout = replace(self.layout(2), rank_nodes=[0] * 4, settings=settings)
            times = [self._unequal_epoch(layout, name) for _ in range(self.args.rounds)]
            ratio = statistics.median(max(t) / statistics.mean(t) for t in times)
            key = f"balance_{'after' if is_on else 'before'}_{fetch}"
            what = f"ranks with unequal misses, {name}: I/O time of the slowest rank / mean"
            results.append(Result(key, what, "", ratio, most))
            slowest = statistics.median(max(t) for t in times)
            results.append(
                Result(f"{key}_slowest", "  I/O time of the slowest rank", "s", slowest, None)
            )
        return results

    def _unequal_epoch(self, layout: Layout, name: str) -> list[float]:
        """Returns, for each rank, the time [s] until its last file has arrived. The ranks compute
        nothing."""
        with self.testbed(layout, linked=True) as bed:
            bed.epoch(self.dataset.shares(4, 0))
            bed.settle()
            orders = unequal(bed, [0.2, 0.4, 0.6, 0.8])
            epoch = bed.epoch(orders)
            shares = [rank["share"] for rank in bed.status(0)["ranks"]]
        times = [rank.wall_ns / 1e9 for rank in epoch.ranks]
        files = [len(order) for order in orders]
        self.tell(f"unequal misses, {name}", seconds=times, files=files, shares=shares)
        return times

    # --- one daemon killed ----------------------------------------------------------------------

    def killed(self) -> list[Result]:
        """Kills one of four daemons with SIGKILL in the middle of an epoch."""
        layout, expected = self.layout(4, spare=JUST), self._digests()
        longest, ratio, differing = [], [], 0
        predicted = killed_epoch(self.dataset, layout, self.rates)
        for _ in range(self.args.rounds):
            with self.testbed(layout, linked=True) as bed:
                epochs = [bed.epoch(self.dataset.shares(4, n)) for n in range(2)]
                bed.begin(self.dataset.shares(4, 2))
                timer = threading.Timer(epochs[1].seconds / 2, bed.kill, (3,))
                timer.start()
                epochs.append(bed.end())
                timer.join()
                epochs.append(bed.epoch(self.dataset.shares(4, 3)))
            differing += sum(e.digests != d for e, d in zip(epochs, expected, strict=True))
            longest.append(max(epoch.longest_s for epoch in epochs[2:]))
            ratio.append(max(epoch.seconds for epoch in epochs[2:]) / predicted)
            self.tell(
                "killed",
                epochs=[round(epoch.seconds, 3) for epoch in epochs],
                longest=[round(epoch.longest_s, 3) for epoch in epochs],
                predicted=predicted,
            )
        what = "  slower of the epoch with the kill and the next one: time / simulated time"
        return [
            Result(
                "killed_results",
                "one of four daemons killed: epochs that returned wrong bytes",
                "",
                differing,
                0,
            ),
            Result("killed_epoch", what, "", statistics.median(ratio), 1.1),
            Result("killed_wait", "  longest single read", "s", max(longest), 2),
        ]

    # --- comparison with the simulator ----------------------------------------------------------

    def replay(self) -> list[Result]:
        """Compares real epochs with simulated epochs of the same accesses. The simulation uses
        rates that were measured without Monarch. In the simulated policies, a node that lacks a
        file always requests it from a node that holds it, even if the source is idle. The daemons
        are configured to do the same."""
        layouts = self.configurations()
        plain = layouts.pop("source only")
        with self.testbed(plain) as bed:
            source = bed.epoch(self.dataset.shares(4, 0))
        rates = measure_rates(self.place, self.dataset, self.programs[1], self.link_bits, source)
        self.tell("measured", **asdict(rates))
        orders = [self.dataset.shares(4, number) for number in range(EPOCHS)]
        results = []
        for name, each in layouts.items():
            runs = []
            layout = replace(each, settings={**each.settings, "peers": {"fetch": "holders"}})
            for _ in range(self.args.rounds):
                with self.testbed(layout, linked=True) as bed:
                    runs.append(replay(bed, rates, orders))
                self.tell(f"replayed, {name}", **runs[-1].said())
            results += lines_of(name, runs)
        return results

    # --- one large file -------------------------------------------------------------------------

    def transfer(self) -> list[Result]:
        size, rounds = self.args.large_mib * MIB, 2 * self.args.rounds - 1
        return transfer(self.place, self.programs, self.link_bits, size, rounds)

    def loaders(self) -> list[Result]:
        """Compares Monarch with other loaders."""
        mib = self.args.loaders_mib
        return compared(self.place, self.programs, self.rate, self.link_bits, mib, 128)

    def _digests(self) -> list[list[int]]:
        """Returns, for each epoch, the correct digest of the bytes that each rank reads. To compute
        the digests, the ranks read the source without daemons and without a limit on the rate."""
        with self.testbed(self.layout(4, has_daemons=False)) as bed:
            for mount in bed.mounts:
                mount.rate(0)
            return [bed.epoch(self.dataset.shares(4, n)).digests for n in range(4)]


def least_of(name: str, what: str, value: float, limit: float | None) -> Result:
    return Result(name, what, "ratio", value, limit, is_least=True)


def unequal(bed: Testbed, shares: Sequence[float]) -> list[list[int]]:
    """Returns, for each rank of node 0, the files that the rank reads. All ranks read the same
    number of files.

    shares : for each rank, the share of its files that have a copy only on the other node
    """
    here = bed.kept(0)
    there = [number for number in range(len(bed.dataset.sizes)) if number not in here]
    near = sorted(here)
    each = int(min(len(near), len(there)) / (sum(shares)))
    orders = []
    for share in shares:
        far = int(each * share)
        mine, near = near[: each - far], near[each - far :]
        theirs, there = there[:far], there[far:]
        # Mix the files of this node and those of the other node evenly.
        orders.append(sorted(mine + theirs, key=lambda number: (number * 2654435761) % (1 << 32)))
    return orders
