"""Drawing a comparison as NoPFS does (SC'21, figure 8): times as bars, stacked by where bytes come
from."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from monarch_py.errors import MonarchError

__all__ = ["draw"]

COLOURS = {"staging": "#e2e8f0", "local": "#2b6cb0", "remote": "#63b3ed", "pfs": "#c53030"}


def draw(document: dict[str, Any], path: Path) -> None:
    """Writes the picture of a document (`result`) to a file whose ending says which kind.

    Each bar is a policy's total time, parted by the share of the bytes from each place; the line is
    the time of the policy `perfect`, if it is among them. MonarchError without matplotlib, or where
    the file cannot be written.
    """
    try:
        from matplotlib.figure import Figure
    except ImportError:
        raise MonarchError("drawing needs matplotlib; pip install 'monarch-py[plots]'") from None
    ran = {name: r for name, r in document["policies"].items() if "unsupported" not in r}
    figure = Figure(figsize=(1.5 + 0.9 * max(len(ran), 3), 4.5), layout="constrained")
    axes = figure.subplots()
    bottoms = [0.0] * len(ran)
    for place, colour in COLOURS.items():
        heights = [r["share"][place] * r["total_seconds"] for r in ran.values()]
        axes.bar(range(len(ran)), heights, bottom=bottoms, color=colour, label=place, width=0.7)
        bottoms = [a + b for a, b in zip(bottoms, heights, strict=True)]
    for at, result in enumerate(ran.values()):
        axes.annotate(
            f"{result['total_seconds']:.4g}",
            (at, bottoms[at]),
            ha="center",
            va="bottom",
            fontsize=8,
        )
    if "perfect" in ran:
        axes.axhline(ran["perfect"]["total_seconds"], color="black", linewidth=0.8, linestyle=":")
    axes.set_xticks(range(len(ran)), ran, rotation=45, ha="right")
    axes.set_ylabel("time of all epochs [s]")
    axes.set_title(document["scenario"], fontsize=10)
    axes.legend(title="samples from", fontsize=8)
    try:
        figure.savefig(path, dpi=120)
    except (OSError, ValueError) as error:
        raise MonarchError(f"{path} cannot be drawn: {error}") from None
