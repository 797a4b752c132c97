"""Compares real runs of several nodes with their simulation.

The simulator gets the same files and hashes of files as the real run, and the same orders in which
the ranks read the files. It uses the policies that the daemons follow (prediction.py). The rates of
the source, the links and the tiers were measured before the run, without Monarch. No parameter is
fitted to the real run.
"""

from __future__ import annotations

import os
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.common import Child, plain_environment, write_list
from benchmarks.nodes.prediction import Orders, Rates, Run, Simulated
from benchmarks.nodes.testbed import BLOCK, Dataset, Epoch, Testbed
from benchmarks.nodes.transfer import PlainSendfile
from benchmarks.numbers import Result
from benchmarks.peers.nodes import Nodes

# The duration of one measurement of a link [s], and the number of measurements.
LINK_S, LINK_ROUNDS = 1.0, 3
LIMIT = 0.1


def measure_rates(
    place: Path, dataset: Dataset, reader: Path, link_bits: float, source: Epoch
) -> Rates:
    """Returns the rates of the source, of a node's link and of a tier. Measures the rate of a link
    with plain sendfile. Measures the rate of a tier by running the reader on ordinary files in
    memory. Computes the rate of the source from an earlier epoch.

    source : the earlier epoch, in which all nodes read the source without daemons
    """
    content = place / "link"
    size = int(link_bits / 8 * LINK_S)
    content.write_bytes(os.urandom(size))
    with (
        Nodes(2, f"{link_bits:.0f}bit") as links,
        PlainSendfile(links, place, content) as plain,
    ):
        link = statistics.median(size / plain.times(size)[0] for _ in range(LINK_ROUNDS))
    content.unlink()
    names = [str(dataset.backing / Dataset.name(n)) for n in range(len(dataset.sizes))]
    with Child([reader, 1, BLOCK], plain_environment()) as child:
        listed = write_list(place / "plain", names)
        tier = dataset.bytes / (child.ask(f"epoch {listed} 0")[0] / 1e9)
    return Rates(source.bytes / source.seconds, link, tier)


@dataclass(frozen=True)
class Replayed:
    """The results of a real run and of its simulation.

    real, simulated : the results of each epoch
    bytes : the number of bytes that all ranks together read in all epochs
    """

    real: list[Simulated]
    simulated: list[Simulated]
    bytes: int

    @property
    def seconds(self) -> float:
        """Returns the ratio of simulated to real time for the whole run."""
        real, simulated = (sum(e.seconds for e in each) for each in (self.real, self.simulated))
        return simulated / real

    @property
    def worst(self) -> float:
        """Returns the ratio of simulated to real time for the epoch in which this ratio differs
        most from 1."""
        ratios = [s.seconds / r.seconds for s, r in zip(self.simulated, self.real, strict=True)]
        return max(ratios, key=lambda ratio: abs(ratio - 1))

    def apart(self, origin: str) -> float:
        """Returns how many more bytes came from an origin in the real run than in the simulated
        run, as a share of all bytes read. The value is negative if the real run had fewer bytes.

        origin : "source" or "peers"
        """
        real, simulated = (
            sum(getattr(e, origin) for e in each) for each in (self.real, self.simulated)
        )
        return float(real - simulated) / self.bytes

    def said(self) -> dict[str, Any]:
        """Returns the numbers for the JSON: the time of each epoch [s], and the shares of the
        epoch's bytes that came from the source and from peers."""
        epoch = self.bytes / len(self.real)
        said: dict[str, Any] = {}
        for name, epochs in (("real", self.real), ("simulated", self.simulated)):
            said[name] = [round(e.seconds, 3) for e in epochs]
            said[f"{name}_source"] = [round(e.source / epoch, 4) for e in epochs]
            said[f"{name}_peers"] = [round(e.peers / epoch, 4) for e in epochs]
        return said | {"seconds": self.seconds, "worst": self.worst}


def replay(bed: Testbed, rates: Rates, orders: Sequence[Orders]) -> Replayed:
    """Runs the epochs on the testbed, and simulates the same epochs."""
    run = Run(bed.dataset, bed.layout, orders, rates, bed.hashes())
    epochs = bed.epochs(orders)
    real = [Simulated(e.seconds, e.did("served"), e.did("bytes_from_peers")) for e in epochs]
    # Daemons with a plan start to fetch files before the ranks start, as fast as the source allows.
    # So add the time and the bytes of this early fetch to the first epoch.
    ahead = epochs[0].before
    real[0] = Simulated(
        real[0].seconds + ahead["served"] / rates.source,
        real[0].source + ahead["served"],
        real[0].peers + ahead["bytes_from_peers"],
    )
    simulated = run.by_plan() if bed.layout.planned else run.by_hash()
    return Replayed(real, simulated, len(orders) * bed.dataset.bytes)


def lines_of(name: str, runs: Sequence[Replayed]) -> list[Result]:
    """Returns the lines of the table. Each value is the median over the runs."""
    seconds = statistics.median(run.seconds for run in runs)
    worst = statistics.median(run.worst for run in runs)
    apart = {
        origin: statistics.median(run.apart(origin) for run in runs)
        for origin in ("source", "peers")
    }
    lines = [
        (f"replay_{name}", f"{name}: error of the simulated time", abs(seconds - 1), LIMIT),
        (f"replay_{name}_epoch", "  the same, worst epoch", abs(worst - 1), LIMIT),
        (f"replay_{name}_source", "  error of the bytes from the source", apart["source"], None),
        (f"replay_{name}_peers", "  error of the bytes from peers", apart["peers"], None),
    ]
    return [Result(key, what, "", value, limit) for key, what, value, limit in lines]
