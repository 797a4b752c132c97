"""``python -m benchmarks.peers``: transfers between nodes, compared with sendfile on the same link.

The benchmark needs root. It uses two network namespaces as nodes. Each node has a link with the
rate --rate. The same bytes are transferred alternately in two ways, and each pair of transfers
gives one ratio. In a plain transfer, the sender calls sendfile, and the receiver calls recv and
drops the bytes. In the other transfer, the receiver uses the client that daemons use. It fetches
blocks, verifies the checksum of every block, and writes the blocks into memory or into a file on
tmpfs.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.common import Child, plain_environment, scratch
from benchmarks.numbers import Result, describe_machine, paired, report
from benchmarks.peers.nodes import Nodes, why_no_nodes
from monarch_py.peers.handshake import new_secret

MIB, GIB = 1 << 20, 1 << 30
# (wall time, CPU time of the receiver, CPU time of the sender) [ns]
Times = tuple[int, int, int]


class Ends:
    """The two processes of a measurement: the sender and the receiver."""

    def __init__(self, serving: Child, getting: Child) -> None:
        self._serving, self._getting = serving, getting

    def measure(self, line: str) -> Times:
        before = self._serving.ask("cpu")[0]
        wall, getter = self._getting.ask(line)
        return wall, getter, self._serving.ask("cpu")[0] - before

    def pairs(self, ours: str, plain: str, rounds: int) -> list[tuple[Times, Times]]:
        """Measures the two kinds of transfer alternately. Returns pairs of times (ours, plain). The
        first pair, which only warms up the processes, is not returned.

        ours, plain : the lines that start each kind of transfer
        """
        self.measure(ours)
        self.measure(plain)
        found = []
        for number in range(rounds):
            if number % 2:
                theirs = self.measure(plain)
                found.append((self.measure(ours), theirs))
            else:
                mine = self.measure(ours)
                found.append((mine, self.measure(plain)))
        return found


def per_gib(
    name: str, what: str, times: Sequence[int], n_bytes: int, limit: float | None
) -> Result:
    """Returns a Result: the CPU time per GiB [s]. The value is the median of all rounds.

    times : the CPU time of each round [ns]
    """
    values = [time / 1e9 / n_bytes * GIB for time in times]
    return Result(name, what, "s/GiB", statistics.median(values), limit, rounds=len(values))


# The limit on CPU time [s/GiB]. For the sender, the limit applies to the CPU time minus the time to
# compute the GMAC (the message authentication code). For the receiver, the CPU time of the plain
# receiver is subtracted too.
OWN_LIMIT = 0.1


def large(ends: Ends, size: int, rounds: int, *, has_limits: bool) -> list[Result]:
    """Transfers one file of `size` bytes, into memory and into a file."""
    macs = [ends.measure(f"mac {size}")[1] for _ in range(rounds)]
    mac = per_gib("mac", "CPU time of GMAC alone", macs, size, None)
    limit = OWN_LIMIT + mac.value if has_limits else None
    results = [mac]
    for way, where in (("memory", "memory"), ("file", "a file on tmpfs")):
        pairs = ends.pairs(f"{way} {size}", f"plain {size}", rounds)
        results.append(
            paired(
                f"wall_{way}",
                f"large file into {where}: time of the transfer / time of a plain sendfile",
                [(ours[0], plain[0]) for ours, plain in pairs],
                limit=1 / 0.97 if has_limits else None,
                operations=1,
            )
        )
        for verb, end, column, bound in (
            ("received", "receiver", 1, None),
            ("sent", "sender", 2, limit),
        ):
            results.append(
                per_gib(
                    f"{verb}_{way}",
                    f"  CPU time of the {end}",
                    [ours[column] for ours, _ in pairs],
                    size,
                    bound,
                )
            )
            plain_times = [plain[column] for _, plain in pairs]
            results.append(
                per_gib(
                    f"{verb}_plain_{way}", f"  CPU time of the plain {end}", plain_times, size, None
                )
            )
        more = [ours[1] - plain[1] for ours, plain in pairs]
        # Only transfers into memory have a limit, because writing to a file is not part of the
        # transfer protocol.
        bound = limit if way == "memory" else None
        what = "  CPU time of the receiver minus that of the plain receiver"
        results.append(per_gib(f"received_more_{way}", what, more, size, bound))
    return results


def others(ends: Ends, args: argparse.Namespace, size: int) -> list[Result]:
    """Measures transfers of a file whose checksums are not known yet, and of many small files."""
    unknown = [ends.measure(f"memory {size} 1") for _ in range(args.rounds)]
    small_bytes = args.small_kib << 10
    line = f"small {small_bytes} {args.small_files}"
    small = [ends.measure(line) for _ in range(args.rounds)]
    plain = [ends.measure(f"plain {size}") for _ in range(args.rounds)]
    rate = statistics.median(size / wall for wall, _, _ in plain)
    shares = [args.small_files * small_bytes / wall / rate for wall, _, _ in small]
    return [
        per_gib(
            "sent_unknown",
            "CPU time of the sender, for a file whose checksums are not known yet",
            [served for _, _, served in unknown],
            size,
            None,
        ),
        Result(
            "small_rate",
            f"throughput of many files of {args.small_kib} KiB / throughput of plain sendfile",
            "ratio",
            statistics.median(shares),
            None,
        ),
        Result(
            "small_files",
            f"  files of {args.small_kib} KiB per second",
            "1/s",
            statistics.median(args.small_files / wall * 1e9 for wall, _, _ in small),
            None,
        ),
    ]


def run(args: argparse.Namespace, place: Path, rate: str | None) -> list[Result]:
    size = args.mib * MIB
    content = place / "content"
    content.write_bytes(os.urandom(size))
    environment = plain_environment() | {"MONARCH_BENCHMARK_SECRET": new_secret().hex()}
    side = [sys.executable, "-m", "benchmarks.peers.side"]
    with Nodes(2, rate) as nodes:
        host = nodes.address(0)
        sharing = ["serve", host, str(content), str(args.small_files), str(args.small_kib << 10)]
        with Child(nodes.command(0, [*side, *sharing]), environment) as serving:
            ports = serving.ask("ports")
            getting = ["get", host, *map(str, ports), str(place / "copy")]
            with Child(nodes.command(1, [*side, *getting]), environment) as getter:
                ends = Ends(serving, getter)
                results = large(ends, size, args.rounds, has_limits=rate is not None)
                return results + others(ends, args, size)


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.peers", description=__doc__)
    parser.add_argument("--rate", default="1gbit", help="rate of each link; default 1gbit")
    parser.add_argument("--unlimited", action="store_true", help="also over links without a limit")
    parser.add_argument("--mib", type=int, default=256, help="the large file; default 256 MiB")
    parser.add_argument("--rounds", type=int, default=7, help="pairs of transfers; default 7")
    parser.add_argument("--small-files", type=int, default=1000)
    parser.add_argument("--small-kib", type=int, default=110)
    parser.add_argument("--json", type=Path, help="write the JSON here, not to standard output")
    return parser.parse_args()


def main() -> int:
    args = parse()
    missing = why_no_nodes()
    if missing:
        print(f"benchmarks.peers: {missing}", file=sys.stderr)
        return 1
    document: dict[str, Any] = {
        "benchmark": "peers",
        "machine": describe_machine(),
        "rate": args.rate,
        "bytes": args.mib * MIB,
    }
    # Use files on tmpfs, so that the link is measured and not a disk.
    with scratch(Path("/dev/shm")) as place:
        results = run(args, place, args.rate)
        if args.unlimited:
            free = run(args, place, None)
            document["unlimited"] = [result.as_dict() for result in free]
            print("over links without a limit:", file=sys.stderr)
            report({}, free, place / "unlimited.json")
    return 0 if report(document, results, args.json) else 1


if __name__ == "__main__":
    sys.exit(main())
