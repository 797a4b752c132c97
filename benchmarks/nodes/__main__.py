"""``python -m benchmarks.nodes [ROW ...]``: daemons of several nodes and one source.

Every node has a mount of the slow source, a daemon and a reader process. The readers run during all
epochs, and begin each epoch together. All mounts together have one rate. In rows that depend on the
links between nodes, every node is a network namespace. --slow divides the rates of the source and
of the links by the same factor, so that a machine with few cores can run more nodes. Needs FUSE,
and root for the namespaces.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from pathlib import Path
from typing import Any

from benchmarks.common import build, scratch
from benchmarks.nodes.rows import Rows
from benchmarks.numbers import Result, describe_machine, report
from benchmarks.peers.nodes import why_no_nodes
from monarch_py.demo.slowsource import find_slowsource, why_unavailable

ROWS = ("once", "epochs", "waited", "balance", "killed", "replay", "transfer", "loaders")


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.nodes", description=__doc__)
    parser.add_argument("rows", nargs="*", choices=[*ROWS, []], help="by default all")
    parser.add_argument(
        "--nodes", type=int, nargs="+", default=[2, 4, 8], help="numbers of nodes for `once`"
    )
    parser.add_argument("--mib", type=int, default=1024, help="size of the dataset [MiB]")
    parser.add_argument("--file-kib", type=int, default=1024, help="mean size of a file [KiB]")
    parser.add_argument("--rate", type=float, default=200, help="rate of the source [MB/s]")
    parser.add_argument(
        "--link", type=float, default=1000, help="rate of each node's link [Mbit/s]"
    )
    parser.add_argument("--slow", type=float, default=1, help="divides all rates")
    parser.add_argument("--rounds", type=int, default=3, help="runs of each measurement")
    parser.add_argument("--large-mib", type=int, default=256, help="the file of `transfer` [MiB]")
    parser.add_argument("--loaders-mib", type=int, default=256, help="dataset of `loaders` [MiB]")
    parser.add_argument("--dir", type=Path, default=Path("/dev/shm"), help="where all files go")
    parser.add_argument("--json", type=Path, help="write the JSON here, not to standard output")
    parser.add_argument("--check", action="store_true", help="exit status 1 if a limit is missed")
    return parser.parse_args()


def main() -> int:
    args = parse()
    slowsource = find_slowsource()
    problem = why_unavailable() or why_no_nodes()
    if slowsource is None or problem:
        sys.exit(f"benchmarks.nodes: {problem}")
    started, machine = time.monotonic(), describe_machine()
    results: list[Result] = []
    with scratch(args.dir) as place:
        reader = build(Path(__file__).with_name("reader.c"), place, "-pthread")
        rows = Rows(args, place, (slowsource, reader))
        for name in args.rows or ROWS:
            results += getattr(rows, name)()
    print(f"  {time.monotonic() - started:.0f} s in all", file=sys.stderr)
    document: dict[str, Any] = {
        "benchmark": "nodes",
        "machine": machine | {"load_1min_after": os.getloadavg()[0]},
        "bytes": rows.dataset.bytes,
        "source_bytes_per_s": rows.rate,
        "link_bits_per_s": rows.link_bits,
        "runs": rows.said,
    }
    met = report(document, results, args.json)
    return 1 if args.check and not met else 0


if __name__ == "__main__":
    sys.exit(main())
