"""``python -m benchmarks.plot FILE... [--out DIRECTORY]``: pictures of the benchmarks' JSON.

Each FILE is what benchmarks.overhead, benchmarks.epochs or benchmarks.first_epoch printed; the
picture is DIRECTORY/<name of the benchmark>.png. Needs matplotlib.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

__all__ = ["draw_epochs", "draw_first_epoch", "draw_overhead"]

OURS, PLAIN, MISSED = "#2b6cb0", "#a0aec0", "#c53030"


def draw_overhead(document: dict[str, Any], axes: Any) -> None:
    """A bar a call: its time under the library over that without it, with the bounds of the median
    and, as a mark, the limit."""
    rows = [r for r in document["results"] if r["unit"] == "ratio"][::-1]
    values = [row["value"] for row in rows]
    errors = [
        [row["value"] - row["ci95"][0] for row in rows],
        [row["ci95"][1] - row["value"] for row in rows],
    ]
    colours = [MISSED if row["met"] is False else OURS for row in rows]
    axes.barh(range(len(rows)), values, xerr=errors, color=colours, height=0.6)
    for at, row in enumerate(rows):
        if row["limit"] is not None:
            axes.plot([row["limit"]] * 2, [at - 0.4, at + 0.4], color="black", linewidth=1.5)
    axes.axvline(1, color=PLAIN, linewidth=1)
    axes.set_yticks(range(len(rows)), [row["what"] for row in rows])
    axes.set_xlabel("time under the library / time without it (black: limit)")
    axes.set_title(f"What a call costs, {document['files']:,} files")


def draw_epochs(document: dict[str, Any], axes: Any) -> None:
    """A bar an epoch with its seconds, and what reached the source written on it."""
    rows = document["epochs"]
    colours = [PLAIN, *[OURS] * (len(rows) - 1)]
    axes.bar(range(len(rows)), [row["seconds"] for row in rows], color=colours, width=0.6)
    for at, row in enumerate(rows):
        source = row["source"]
        operations = sum(n for kind, n in source.items() if not kind.startswith("bytes_"))
        text = f"{operations:,} operations\n{source.get('bytes_read', 0) / 1e6:,.0f} MB"
        axes.annotate(text, (at, row["seconds"]), ha="center", va="bottom", fontsize=8)
    labels = [row["what"].replace(", ", ",\n") for row in rows]
    axes.set_xticks(range(len(rows)), labels, fontsize=8)
    axes.margins(y=0.2)
    axes.set_ylabel("seconds; above: what reached the source")
    speed = document["source_bytes_per_s"] / 1e6
    size = document["bytes"] / 1e6
    axes.set_title(f"{size:,.0f} MB on a source of {speed:,.0f} MB/s")


def draw_first_epoch(document: dict[str, Any], axes: Any) -> None:
    """What the readers got in each moment of the first epoch, with the library and without."""
    span = document["span_s"]
    for (what, counts), colour in zip(document["curves"].items(), (OURS, PLAIN), strict=True):
        # Four spans at a time: reads of 256 KiB make single ones ragged.
        sums = [sum(counts[at : at + 4]) / 4 for at in range(len(counts))]
        times = [(at + 2) * span for at in range(len(counts))]
        axes.plot(times, [each / span / 1e6 for each in sums], color=colour, label=what)
    speed = document["source_bytes_per_s"] / 1e6
    axes.axhline(speed, color="black", linewidth=1, linestyle=":", label="the source's rate")
    axes.set_ylim(bottom=0)
    axes.set_xlabel("seconds since the start")
    axes.set_ylabel("MB/s")
    axes.legend(loc="lower center")
    axes.set_title(f"The first epoch: 8 readers, {document['bytes'] / 1e6:,.0f} MB")


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.plot", description=__doc__)
    parser.add_argument("file", type=Path, nargs="+", help="JSON of a benchmark")
    parser.add_argument("--out", type=Path, default=Path("docs/img"), help="where pictures go")
    args = parser.parse_args()
    try:
        from matplotlib.figure import Figure
    except ImportError:
        sys.exit("benchmarks.plot: matplotlib is missing: install it to draw")
    draw = {
        "overhead": draw_overhead,
        "epochs": draw_epochs,
        "first_epoch": draw_first_epoch,
    }
    args.out.mkdir(parents=True, exist_ok=True)
    for file in args.file:
        document = json.loads(file.read_text())
        name = document.get("benchmark")
        if name not in draw:
            sys.exit(f"benchmarks.plot: {file} is of none of the benchmarks {', '.join(draw)}")
        figure = Figure(figsize=(8, 4.5), layout="constrained")
        draw[name](document, figure.subplots())
        figure.savefig(args.out / f"{name}.png", dpi=120)
        print(args.out / f"{name}.png")
    return 0


if __name__ == "__main__":
    sys.exit(main())
