"""``python -m benchmarks.simulator.replay``: real runs, compared with their simulation.

A training program reads a dataset on a slow source through Monarch. In some runs, the program reads
each sample when it needs the sample. In other runs, it reads some samples ahead. The benchmark
measures the rates of the machine as `monarch calibrate` does. It records the order in which the
program reads the files, and simulates the run with this order. Then the benchmark changes the size
of the tier. The simulation predicts the new times of the epochs, and a new run measures them.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.common import Daemon, scratch, wait_until
from benchmarks.numbers import Result, describe_machine, report
from monarch_py.commands.calibrate import Calibration, calibrate
from monarch_py.config.load import load_config
from monarch_py.demo.slowsource import SlowSource, find_slowsource
from monarch_py.policies.caches import first_fit
from monarch_py.policies.view import Decision, Job
from monarch_py.simulator.engine import measure
from monarch_py.simulator.jobs import cluster_of
from monarch_py.simulator.scenario import Curve, Dataset, Rates, Scenario, StorageClass
from monarch_py.util.units import MIB

TRAINER = Path(__file__).with_name("trainer.py")
BATCH, EPOCHS = 8, 3
# For a training run that reads ahead: the number of reading threads, and the number of samples that
# are read ahead.
AHEAD = (4, 16)
# A rate that is so high that it is no limit [bytes/s].
FAST = 1e12


class Replay:
    """A machine that runs and simulates training programs. It has a slow source, a tier of variable
    size, and measured rates."""

    def __init__(self, args: argparse.Namespace, place: Path, slow: SlowSource) -> None:
        self.args, self.place, self.slow = args, place, slow
        random = np.random.default_rng(7)
        self.sizes = random.normal(args.mean, args.mean / 4, args.files).clip(args.mean / 8)
        self.sizes = self.sizes.astype(np.int64)
        for number, size in enumerate(self.sizes.tolist()):
            (slow.backing / f"{number:05d}").write_bytes(random.bytes(size))
        names = [f"{slow.mountpoint}/{number:05d}" for number in range(args.files)]
        self.list = place / "files.list"
        self.list.write_text("\n".join([*names, ""]))
        slow.rate(args.rate * 1e6)
        slow.latency(read=0.0002, open=0.0005)
        self.calibration = self._calibrate()

    def _room(self, share: float) -> int:
        # A file uses up more of a tier's quota than its size: its size is rounded up to complete
        # blocks, and its directory entry needs room too.
        return int(share * (self.sizes.sum() + 8192 * len(self.sizes)))

    def _calibrate(self) -> Calibration:
        with tempfile.TemporaryDirectory(dir=self.args.tier) as tier:
            daemon = Daemon(self.place, self.slow.mountpoint, Path(tier), self._room(1))
            return calibrate(load_config(daemon.config))

    def run(self, share: float, threads: int) -> dict[str, Any]:
        """Runs the training program with a tier that has room for `share` times the dataset."""
        with (
            tempfile.TemporaryDirectory(dir=self.args.tier) as tier,
            Daemon(self.place, self.slow.mountpoint, Path(tier), self._room(share)) as daemon,
        ):
            daemon.wait_scanned(60)
            wait_until(lambda: daemon.status()["pending"] == 0, "rest", 60)
            argv = [
                TRAINER,
                self.list,
                EPOCHS,
                BATCH,
                self.args.compute * 1e6,
                threads,
                AHEAD[1],
                1,
            ]
            done = subprocess.run(
                [sys.executable, *map(str, argv)],
                env=daemon.environment(),
                stdout=subprocess.PIPE,
                text=True,
                check=True,
            )
            said: dict[str, Any] = json.loads(done.stdout)
            said["status"] = daemon.status()["totals"]
            return said

    def simulate(self, share: float, threads: int, orders: list[list[int]]) -> list[float]:
        """Returns the simulated time of each epoch [s].

        orders : for each epoch, the files in the order in which `run` has read them
        """
        scenario = self._scenario(share, threads)
        made = [np.array(order, np.int32).reshape(1, -1, BATCH) for order in orders]
        job = Job(
            sizes=self.sizes,
            cluster=cluster_of(scenario),
            epochs=EPOCHS,
            batch=BATCH,
            orders=lambda epoch: made[epoch],
        )
        kept = first_fit(job)
        decision = Decision(staging=bool(threads), copies=kept.copies, when=kept.when, pfs=kept.pfs)
        ends = measure(scenario, job, decision).epoch_end
        return [float(seconds) for seconds in np.diff(ends, prepend=0.0)]

    def _scenario(self, share: float, threads: int) -> Scenario:
        at_once = max(1, threads)
        tier = StorageClass(
            "tier",
            int(share * self.sizes.sum()),
            at_once,
            Curve(self.calibration.read[0]),
            Curve(self.calibration.write[0]),
        )
        window = int(AHEAD[1] * self.sizes.mean())
        fast = Curve({1: FAST, at_once: FAST * at_once} if at_once > 1 else {1: FAST})
        return Scenario(
            name="replay",
            nodes=1,
            ranks_per_node=1,
            epochs=EPOCHS,
            batch_per_rank=BATCH,
            drop_last=True,
            seed=0,
            dataset=Dataset(len(self.sizes)),
            rates=Rates(self.args.compute * 1e6, FAST, FAST, FAST),
            pfs=Curve({1: float(Curve(self.calibration.source).total(at_once))}),
            classes=(StorageClass("staging", window, at_once, fast, fast), tier),
        )


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.simulator.replay")
    parser.add_argument("--files", type=int, default=320)
    parser.add_argument("--mean", type=int, default=MIB, help="size of a file [bytes]")
    parser.add_argument("--rate", type=float, default=100, help="rate of the source [MB/s]")
    parser.add_argument("--compute", type=float, default=150, help="rate of the training [MB/s]")
    parser.add_argument("--tier", type=Path, default=Path("/dev/shm"))
    parser.add_argument("--workdir", type=Path)
    args = parser.parse_args()
    binary = find_slowsource()
    if binary is None:
        sys.exit("the slow source was not built: install libfuse3-dev, and this package again")
    results: list[Result] = []
    epochs: list[dict[str, Any]] = []
    with scratch(args.workdir) as place:
        for name in ("backing", "mount"):
            (place / name).mkdir()
        with SlowSource(place / "backing", place / "mount", binary=binary) as slow:
            replay = Replay(args, place, slow)
            for threads in (0, AHEAD[0]):
                how = f"ahead, {threads} samples at a time" if threads else "in turn"
                recorded = replay.run(0.6, threads)
                for share, limit in ((0.6, 0.10), (0.3, 0.15), (1.1, 0.15)):
                    what = "recorded" if share == 0.6 else "predicted"
                    said = replay.simulate(share, threads, recorded["orders"])
                    ran = recorded if share == 0.6 else replay.run(share, threads)
                    real = ran["epoch_seconds"]
                    worst = max(abs(a / b - 1) for a, b in zip(said, real, strict=True))
                    total = abs(sum(said) / sum(real) - 1)
                    epochs.append({"how": how, "room": share, "simulated": said, "real": real})
                    text = f"reads {how}, room for {share:.0%}: error of simulated time, {what} run"
                    results.append(Result(f"{what}_{threads}_{share}", text, "", total, limit))
                    results.append(
                        Result(
                            f"{what}_{threads}_{share}_epoch",
                            "  error of the simulated time, worst epoch",
                            "",
                            worst,
                            None,
                        )
                    )
    document = {
        "benchmark": "replay",
        "machine": describe_machine(),
        "source": replay.calibration.source,
        "tier": replay.calibration.read[0],
        "epochs": epochs,
    }
    report(document, results, None)


if __name__ == "__main__":
    main()
