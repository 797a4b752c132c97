"""Draws a comparison as bars, as in figure 8 of the NoPFS paper (SC'21).

Each bar is a policy's time, split in proportion to the bytes from each place.
"""

from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from monarch_py.errors import MonarchError

COLOURS = {"staging": "#e2e8f0", "local": "#2b6cb0", "remote": "#63b3ed", "pfs": "#c53030"}
KINDS = (".png", ".svg", ".pdf", ".jpg", ".webp")
# Widths [inches]. BAR : the width of a bar. MARGIN : the width of everything beside the bars.
# LEAST : the least width of a figure, so that its title has room.
BAR, MARGIN, LEAST = 0.55, 1.6, 6.5


def can_draw(path: Path) -> None:
    """Checks that a picture can be written to `path`. Call this before the simulation, which takes
    long. Raises MonarchError if no picture can be written."""
    if path.suffix.lower() not in KINDS:
        raise MonarchError(
            f"{path} does not have the extension of a picture; use one of {', '.join(KINDS)}"
        )
    if not path.parent.is_dir():
        raise MonarchError(f"{path} cannot be drawn: {path.parent} does not exist; make it")
    if find_spec("matplotlib") is None:
        raise MonarchError("drawing needs matplotlib; pip install matplotlib")


def draw(document: dict[str, Any], path: Path) -> None:
    """Draws the results in a JSON document (see result.py) as a picture. The extension of `path`
    determines the picture's format.

    Each bar is a policy's total time, divided in proportion to the bytes from each place. If the
    policy `perfect` was simulated, a dotted line shows its time. Raises MonarchError if no policy
    can run in the scenario, if matplotlib is missing, or if the file cannot be written.
    """
    can_draw(path)
    from matplotlib.figure import Figure

    ran = {name: r for name, r in document["policies"].items() if "unsupported" not in r}
    if not ran:
        raise MonarchError(
            f"{path} cannot be drawn: none of these policies can run in the scenario; name others"
        )
    figure = Figure(figsize=(max(LEAST, MARGIN + BAR * len(ran)), 4.5), layout="constrained")
    axes = figure.subplots()
    _bars(axes, ran)
    if "perfect" in ran:
        axes.axhline(ran["perfect"]["total_seconds"], color="black", linewidth=0.8, linestyle=":")
    axes.set_xticks(range(len(ran)), ran, rotation=45, ha="right")
    axes.margins(x=0.01, y=0.1)
    axes.set_ylabel("time of all epochs [s]")
    axes.set_title(document["scenario"], fontsize=10, wrap=True)
    figure.legend(title="samples from", fontsize=8, loc="outside right upper")
    save(figure, path)


def save(figure: Any, path: Path) -> None:
    """Writes a matplotlib figure to `path`. Raises MonarchError if the file cannot be written."""
    try:
        figure.savefig(path, dpi=90)
    except (OSError, ValueError) as error:
        raise MonarchError(f"{path} cannot be drawn: {error}; give another file") from None


def stacked_bars(axes: Any, heights: Mapping[str, Sequence[float]], **style: Any) -> list[float]:
    """Draws stacked bars: each part of a bar stands on the part before it. Returns the total height
    of each bar.

    heights : label of a part -> the part's height in each bar
    """
    tops: list[float] = [0.0] * len(next(iter(heights.values())))
    for label, part in heights.items():
        axes.bar(range(len(part)), part, bottom=tops, label=label, **style)
        tops = [low + high for low, high in zip(tops, part, strict=True)]
    return tops


def _bars(axes: Any, ran: dict[str, Any]) -> None:
    axes.set_prop_cycle(color=list(COLOURS.values()))
    heights = {
        place: [r["share"][place] * r["total_seconds"] for r in ran.values()] for place in COLOURS
    }
    tops = stacked_bars(axes, heights, width=0.7)
    for at, result in enumerate(ran.values()):
        seconds = result["total_seconds"]
        text = f"{seconds:,.0f}" if seconds >= 1000 else f"{seconds:.4g}"
        axes.annotate(text, (at, tops[at]), ha="center", va="bottom", fontsize=7)
