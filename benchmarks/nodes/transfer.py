"""Measures how daemons transfer a large file from one node's tier to another's staging area."""

from __future__ import annotations

import statistics
import sys
import time
from pathlib import Path
from types import TracebackType

import numpy as np

from benchmarks.common import Child, plain_environment
from benchmarks.nodes.testbed import GIB, MIB, Dataset, Layout, Testbed
from benchmarks.numbers import Result
from benchmarks.peers.nodes import Nodes
from monarch_py.ipc import word
from monarch_py.native import Kind, State
from monarch_py.peers.handshake import new_secret

LIMIT_S = 120
# Each line on the standard input of this program is the path of a file. The program opens the file,
# and prints the time [ns] at which the call of open has returned.
OPENER = """
import os, sys, time
for line in sys.stdin:
    os.close(os.open(line[:-1], os.O_RDONLY))
    print(time.monotonic_ns(), flush=True)
"""
# The limit on the CPU time of the sending daemon [s/GiB], without the time to compute the GMAC (the
# message authentication code) of the bytes.
OWN_LIMIT = 0.1
# (wall time, CPU time of the receiver, CPU time of the sender) [s]
Times = tuple[float, float, float]


def transfer(
    place: Path, programs: tuple[Path, Path], link_bits: float, size: int, rounds: int
) -> list[Result]:
    """Measures transfers by daemons, alternately with transfers by plain sendfile on the same link.

    size : the size of the file [bytes]
    """
    dataset = Dataset.make(place / "large", 1, size)
    layout = Layout([2 * size, 8 * MIB], 2 * size)
    (place / "transfer").mkdir()
    with (
        Nodes(2, f"{link_bits:.0f}bit") as links,
        Testbed(place / "transfer", dataset, programs, layout, rate=0, links=links) as bed,
        PlainSendfile(links, place, dataset.backing / Dataset.name(0)) as plain,
        Child([sys.executable, "-c", OPENER], bed.environment(1)) as opener,
    ):
        bed.await_catalogs()
        bed.ranks[0].ask(f"epoch {bed.list_of(0, [0])} 0")
        bed.settle()
        pairs = []
        # The first transfer opens the connections, and is not counted.
        for _ in range(rounds + 1):
            pairs.append((_ours(bed, opener), plain.times(dataset.bytes)))
            print(f"  transfer, plain sendfile [s]: {pairs[-1]}", file=sys.stderr)
        macs = [plain.mac_s(dataset.bytes) for _ in range(rounds)]
    ours, theirs = zip(*pairs[1:], strict=True)
    gib = dataset.bytes / GIB
    mac = statistics.median(macs) / gib
    ratio = statistics.median(plain[0] / mine[0] for mine, plain in zip(ours, theirs, strict=True))
    what = "transfer of a large file: time of plain sendfile / time of the daemons"

    def cpu(name: str, what: str, runs: tuple[Times, ...], i: int, limit: float | None) -> Result:
        value = statistics.median(run[i] for run in runs) / gib
        return Result(name, f"  CPU time of {what}", "s/GiB", value, limit)

    return [
        Result("transfer", what, "ratio", ratio, 0.97, rounds=rounds, is_least=True),
        cpu("received", "the daemon that gets it", ours, 1, 0.8),
        cpu("sent", "the daemon that sends it", ours, 2, OWN_LIMIT + mac),
        cpu("received_plainly", "a plain receiver, which stores nothing", theirs, 1, None),
        cpu("sent_plainly", "plain sendfile", theirs, 2, None),
        Result("mac", "  CPU time of GMAC alone", "s/GiB", mac, None),
    ]


def _cpu_s(bed: Testbed, node: int) -> float:
    """Returns the CPU time of the node's daemon, including the threads that have ended [s]. The
    resolution is 1 ns. Times in /proc have only the resolution of a clock tick."""
    daemon = bed.daemons[node]
    assert daemon is not None
    # The argument is the clock id that clock_getcpuclockid(3) would return for the process. Python
    # has a function only for the clock id of a thread.
    return time.clock_gettime(~daemon.pid << 3 | 2)


def _ours(bed: Testbed, opener: Child) -> Times:
    """Measures one transfer by daemons. The transfer begins when a program has opened the file, and
    ends when the copy is complete. No program reads the file in the meantime, so the daemons
    transfer the file block by block."""
    bed.connection(1).ask("clear")
    bed.settle()
    catalog = bed.catalog(1)
    entry = int(np.flatnonzero(catalog.entries["kind"] == Kind.FILE)[0])
    before = _cpu_s(bed, 1), _cpu_s(bed, 0)
    began_ns = opener.ask(f"{bed.mounts[1].mountpoint}/{Dataset.name(0)}")[0]
    limit = time.monotonic() + LIMIT_S
    while word.state(catalog.words[entry : entry + 1])[0] != State.PRESENT:
        if time.monotonic() > limit:
            raise TimeoutError(f"the file did not arrive within {LIMIT_S} s")
        time.sleep(0.002)
    wall = (time.monotonic_ns() - began_ns) / 1e9
    return wall, _cpu_s(bed, 1) - before[0], _cpu_s(bed, 0) - before[1]


class PlainSendfile:
    """Transfers a file between the first two nodes with sendfile and recv
    (benchmarks/peers/side.py)."""

    def __init__(self, links: Nodes, place: Path, content: Path) -> None:
        environment = plain_environment() | {"MONARCH_BENCHMARK_SECRET": new_secret().hex()}
        side = [sys.executable, "-m", "benchmarks.peers.side"]
        host = links.address(0)
        serving = links.command(0, [*side, "serve", host, str(content), "1", "1024"])
        self._serving = Child(serving, environment)
        try:
            ports = map(str, self._serving.ask("ports"))
            getting = [*side, "get", host, *ports, str(place / "copy")]
            self._getting = Child(links.command(1, getting), environment)
        except BaseException:
            self._serving.__exit__()
            raise

    def mac_s(self, size: int) -> float:
        """Returns the CPU time [s] to compute the GMAC of `size` bytes."""
        return self._getting.ask(f"mac {size}")[1] / 1e9

    def times(self, size: int) -> Times:
        (before,) = self._serving.ask("cpu")
        wall, received = self._getting.ask(f"plain {size}")
        (after,) = self._serving.ask("cpu")
        return wall / 1e9, received / 1e9, (after - before) / 1e9

    def __enter__(self) -> PlainSendfile:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._getting.__exit__()
        self._serving.__exit__()
