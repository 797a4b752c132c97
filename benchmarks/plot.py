"""``python -m benchmarks.plot FILE... [--out DIRECTORY]``: draws pictures of benchmark results.

Each FILE is the JSON output of benchmarks.overhead, benchmarks.epochs or benchmarks.first_epoch, or
of schedules, groups, staged or products in benchmarks.loaders. The picture is
DIRECTORY/<name of the benchmark>.png. Needs matplotlib.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

__all__ = [
    "draw_epochs",
    "draw_first_epoch",
    "draw_groups",
    "draw_overhead",
    "draw_products",
    "draw_schedules",
    "draw_staged",
]

OURS, PLAIN, MISSED = "#2b6cb0", "#a0aec0", "#c53030"


def draw_overhead(document: dict[str, Any], axes: Any) -> None:
    """Draws a bar for each call: its time under the library relative to its time without the
    library. Each bar has an error bar (the confidence interval) and a mark for the limit."""
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
    """Draws a bar for each epoch. Its height is the time of the epoch. The text above it shows how
    many operations and bytes the source received."""
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
    axes.set_ylabel("time [s]; above the bars: what reached the source")
    speed = document["source_bytes_per_s"] / 1e6
    size = document["bytes"] / 1e6
    axes.set_title(f"Epochs of {size:,.0f} MB, with a source of {speed:,.0f} MB/s")


def draw_first_epoch(document: dict[str, Any], axes: Any) -> None:
    """Draws the readers' throughput during the first epoch, with the library and without."""
    span = document["span_s"]
    for (what, counts), colour in zip(document["curves"].items(), (OURS, PLAIN), strict=True):
        # Each point is the mean of four spans of time, because a single span has too few reads (of
        # 256 KiB each) for a smooth curve.
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


def draw_schedules(document: dict[str, Any], panels: Any) -> None:
    """Draws two panels. The first shows the share of samples that come from other nodes, for each
    sampler. The second shows how many more samples the busiest rank of a step loads than the least
    busy rank."""
    values = {row["name"]: row for row in document["results"]}
    left, right = panels
    names = ["DistributedSampler", "LocalFirstSampler", "SolarSampler"]
    shares = [100 * values[f"share-{name}"]["value"] for name in names]
    bars = left.bar(names, shares, color=[PLAIN, OURS, OURS], width=0.6)
    left.bar_label(bars, fmt="%.1f %%")
    left.set_ylabel("%")
    left.set_title("Share of samples from other nodes\n(4 nodes with room for all)", fontsize=10)
    names = ["equal batches", "SolarSampler"]
    rows = [values[f"spread-{name}"] for name in names]
    middle = [row["value"] for row in rows]
    errors = [
        [row["value"] - row["quartiles"][0] for row in rows],
        [row["quartiles"][1] - row["value"] for row in rows],
    ]
    right.bar(names, middle, yerr=errors, color=[PLAIN, OURS], width=0.5, capsize=4)
    right.set_ylabel("samples (median and quartiles over all steps)")
    title = "Loads of a step's busiest rank\nminus those of its least busy rank"
    right.set_title(title, fontsize=10)


def draw_groups(document: dict[str, Any], panels: Any) -> None:
    """Draws how long reading, computing and waiting take per group of samples. Each source has its
    own panel."""
    for axes, (source, cases) in zip(panels, document["group_s"].items(), strict=True):
        colours = {"reading": PLAIN, "computing": OURS, "waiting": MISSED}
        for at, (what, colour) in enumerate(colours.items()):
            places = [case + 0.25 * (at - 1) for case in range(len(cases))]
            values = [1e3 * case[at] for case in cases]
            bars = axes.bar(places, values, 0.25, color=colour, label=what)
            axes.bar_label(bars, fmt="%.1f", fontsize=8)
        axes.set_xticks(range(len(cases)), ["computing takes longer", "reading takes longer"])
        axes.set_ylabel("time per group [ms]")
        axes.set_title(f"GroupLoader, {source} per request", fontsize=10)
        axes.legend()


def draw_staged(document: dict[str, Any], axes: Any) -> None:
    """Draws the processor time per sample in DataLoader and in StagedLoader."""
    (row,) = (row for row in document["results"] if row["name"] == "cpu")
    values = [row["without"] / 1e3, row["with_library"] / 1e3]
    bars = axes.barh(["DataLoader", "StagedLoader"], values, color=[PLAIN, OURS], height=0.5)
    axes.bar_label(bars, fmt=" %.0f")
    axes.invert_yaxis()
    axes.margins(x=0.1)
    axes.set_xlabel(f"processor time per sample of {document['record_bytes'] >> 10} KiB [us]")
    axes.set_title("Records in the page cache, 2 workers")


def draw_products(document: dict[str, Any], panels: Any) -> None:
    """Draws two panels. The first shows the times of both epochs on the slow source, relative to
    PyTorch's DataLoader. The second shows the processor time per sample for samples in memory."""
    values = {row["name"]: row["value"] for row in document["results"]}
    slow, present = document["runs"]
    names, (left, right) = list(document["runs"][slow]), panels
    for epoch, colour in enumerate((PLAIN, OURS)):
        ratios = [values[f"{slow} {name} {epoch + 1}"] for name in names]
        places = [at + 0.4 * (epoch - 0.5) for at in range(len(names))]
        left.barh(places, ratios, 0.4, color=colour, label=f"epoch {epoch + 1}")
    left.set_xscale("log")
    left.legend()
    left.set_title(f"Time of an epoch / {names[0]}'s time, {slow} per request", fontsize=10)
    each = 1e6 / document["samples"]
    runs = document["runs"][present].values()
    spent = [each * statistics.median(epochs[1]["cpu_s"] for epochs in found) for found in runs]
    right.barh(range(len(names)), spent, 0.6, color=OURS)
    right.set_title("Processor time per sample in memory [us], epoch 2", fontsize=10)
    for axes, labels in ((left, names), (right, [""] * len(names))):
        axes.set_yticks(range(len(names)), labels, fontsize=8)
        axes.invert_yaxis()


# For each benchmark, the function that draws it, and the number of panels.
DRAWN: dict[str, tuple[Callable[[dict[str, Any], Any], None], int]] = {
    "overhead": (draw_overhead, 1),
    "epochs": (draw_epochs, 1),
    "first_epoch": (draw_first_epoch, 1),
    "loaders.schedules": (draw_schedules, 2),
    "loaders.groups": (draw_groups, 2),
    "loaders.staged": (draw_staged, 1),
    "loaders.products": (draw_products, 2),
}


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.plot", description=__doc__)
    parser.add_argument("file", type=Path, nargs="+", help="JSON of a benchmark")
    parser.add_argument("--out", type=Path, default=Path("docs/img"), help="where pictures go")
    args = parser.parse_args()
    try:
        from matplotlib.figure import Figure
    except ImportError:
        sys.exit("benchmarks.plot: matplotlib is missing: install it to draw")
    args.out.mkdir(parents=True, exist_ok=True)
    for file in args.file:
        document = json.loads(file.read_text())
        name = document.get("benchmark")
        if name not in DRAWN:
            sys.exit(f"benchmarks.plot: {file} is not the output of one of {', '.join(DRAWN)}")
        draw, panels = DRAWN[name]
        figure = Figure(figsize=(8 if panels == 1 else 10, 4.5), layout="constrained")
        draw(document, figure.subplots(1, panels))
        picture = args.out / f"{name.replace('.', '_')}.png"
        figure.savefig(picture, dpi=120)
        print(picture)
    return 0


if __name__ == "__main__":
    sys.exit(main())
