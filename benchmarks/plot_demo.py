"""Runs `monarch demo` and draws its output: the picture at the top of README.md.

    python -m benchmarks.plot_demo [docs/img/demo.svg]

Prints the numbers as JSON. Needs matplotlib. Also needs FUSE, because the demo cannot count
operations without it.
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import sys
from dataclasses import asdict, dataclass
from pathlib import Path

PICTURE = Path(__file__).parents[1] / "docs" / "img" / "demo.svg"
WITHOUT, WITH, INK, PALE = "#9aa5b1", "#1463c4", "#1c2733", "#5d6b7a"


@dataclass(frozen=True, slots=True)
class Row:
    """One line of the demo's table: an epoch without and with Monarch."""

    epoch: int
    seconds_without: float
    seconds_with: float
    operations_without: int
    operations_with: int


def run_demo() -> list[Row]:
    """Runs the demo, and returns its table. Raises SystemExit if the demo fails, or if it cannot
    count the operations at the source."""
    command = [sys.executable, "-m", "monarch_py", "demo"]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False)
    if done.returncode != 0:
        raise SystemExit(f"the demo ended with status {done.returncode}")
    rows = []
    for line in done.stdout.splitlines():
        cells = re.split(" {2,}", line.strip())
        if len(cells) == 7 and cells[0].isdigit():
            operations = [int(cell.replace(",", "")) for cell in cells[5:]]
            rows.append(Row(int(cells[0]), float(cells[1]), float(cells[2]), *operations))
    if not rows:
        raise SystemExit(f"the demo could not count operations:\n{done.stdout}")
    return rows


def draw(rows: list[Row], picture: Path) -> None:
    """Draws two panels. For each epoch, a panel has two bars: without and with Monarch."""
    import matplotlib

    matplotlib.use("svg")
    from matplotlib import pyplot as plt

    # Matplotlib uses the salt for the ids in the SVG file. With a fixed salt, the same numbers give
    # the same file. So the file changes in git only if the numbers change.
    plt.rcParams.update({"svg.hashsalt": "monarch", "font.size": 11, "text.color": INK})
    panels = [
        ("Seconds per epoch", "seconds", "{:.2f}"),
        ("Operations that reached the source", "operations", "{:,}"),
    ]
    figure, axes = plt.subplots(1, 2, figsize=(9.6, 3.5), layout="constrained")
    for axis, (title, unit, form) in zip(axes, panels, strict=True):
        for shift, name, colour in ((-0.2, "without", WITHOUT), (0.2, "with", WITH)):
            values = [getattr(row, f"{unit}_{name}") for row in rows]
            places = [row.epoch + shift for row in rows]
            bars = axis.bar(places, values, 0.38, color=colour, label=f"{name} Monarch")
            labels = [form.format(value) for value in values]
            axis.bar_label(bars, labels, padding=2, fontsize=10, color=INK)
        axis.set_title(title, loc="left", fontsize=12, fontweight="bold")
        axis.set_xticks([row.epoch for row in rows], [f"epoch {row.epoch}" for row in rows])
        axis.set_yticks([])
        axis.tick_params(length=0, colors=PALE)
        axis.spines[["top", "left", "right"]].set_visible(False)
        axis.spines["bottom"].set_color(PALE)
        axis.margins(y=0.12)
    # Put the legend below the bars, so that it covers no number.
    axes[0].legend(frameon=False, loc="upper left", bbox_to_anchor=(0, -0.1), ncols=2, fontsize=10)
    picture.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(picture, metadata={"Date": None})
    plt.close(figure)


def main() -> None:
    parser = argparse.ArgumentParser(description="draw what `monarch demo` measures")
    parser.add_argument("picture", nargs="?", type=Path, default=PICTURE)
    picture = parser.parse_args().picture
    rows = run_demo()
    draw(rows, picture)
    print(json.dumps([asdict(row) for row in rows], indent=1))


if __name__ == "__main__":
    main()
