"""The figures of `monarch report`, each with its numbers as a table.

The drawings are SVG. Text and axes have the colour of the page's text, so that they can be read on
a dark page and on a light page.
"""

import io
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from monarch_py.arrays import Floats
from monarch_py.report.recorded import Recorded
from monarch_py.util.units import MIB, format_size

# SIZE: the width and the height of a figure [inches]. LETTERS: its font size [points]. With these
# values, a phone shows the labels in a figure as large as the text of the page.
SIZE, LETTERS = (4.8, 3.0), 11
# The colour of text and axes in a drawing. `_svg` replaces it by the colour of the page's text.
INK = "#010203"
# Colours that are visible on white and on black, and dash patterns for colour-blind readers.
STYLES = (("#3b82f6", "-"), ("#e8590c", "--"), ("#2f9e44", ":"))
# Matches identifiers that matplotlib writes into a drawing. Nothing refers to these identifiers,
# and several drawings on one page would have the same ones. So `_svg` removes them.
NUMBERED = re.compile(r' id="[A-Za-z0-9.]+_\d+"')
# Metadata that matplotlib would write into each drawing. `_svg` leaves it out.
METADATA = ("Creator", "Date", "Format", "Type")
# The number of cells in a row of the heat map. A cell is a group of files, and the largest report
# has 2,000 groups.
ROW_GROUPS = 50


@dataclass(frozen=True, slots=True)
class Figure:
    """A figure of the page.

    title : the heading;  text : an explanation of what the figure shows
    svg : the drawing; "" if there is none
    columns, rows : the table with the numbers of the drawing
    """

    title: str
    text: str
    svg: str
    columns: Sequence[str]
    rows: Sequence[Sequence[str]]


def figures_of(run: Recorded, epochs: int | None = None) -> list[Figure]:
    """Returns the figures of a run.

    epochs : the number of epochs of the run; None if it is not known
    """
    return [_throughput(run), _waits(run), _hit_ratios(run, epochs), _files(run)]


def _drawing() -> tuple[Any, Any]:
    """Returns an empty figure of matplotlib, and its axes."""
    from matplotlib.figure import Figure as Drawing

    drawing = Drawing(figsize=SIZE, layout="constrained")
    drawing.patch.set_visible(False)
    axes = drawing.subplots()
    axes.patch.set_visible(False)
    axes.spines[["top", "right"]].set_visible(False)
    return drawing, axes


def _svg(drawing: Any) -> str:
    out = io.StringIO()
    drawing.savefig(out, format="svg", metadata=dict.fromkeys(METADATA))
    text = out.getvalue()
    return NUMBERED.sub("", text[text.index("<svg") :].replace(INK, "currentColor"))


def _style() -> Any:
    from matplotlib import rc_context

    colours = ("text.color", "axes.edgecolor", "axes.labelcolor", "xtick.color", "ytick.color")
    settings: Any = dict.fromkeys(colours, INK)
    # Write text as SVG text, not as outlines of letters. With the fixed salt, matplotlib generates
    # the same identifiers each time, so the same report always results in the same file.
    settings |= {"font.size": LETTERS, "svg.fonttype": "none", "svg.hashsalt": "monarch"}
    return rc_context(settings)


def _time_unit(seconds: float) -> tuple[float, str]:
    """Returns the unit of time for the figures of a run that took `seconds`: the length of the unit
    [s], and the unit's name."""
    if seconds < 600:
        return 1.0, "s"
    return (60.0, "min") if seconds < 3 * 3600 else (3600.0, "h")


def _lines(run: Recorded, label: str, series: Mapping[str, Floats]) -> str:
    """Draws lines over the time of the run, and returns the drawing as SVG.

    label : the label of the vertical axis
    series : name of a line -> its value in each interval of the run
    """
    unit, name = _time_unit(run.length)
    with _style():
        drawing, axes = _drawing()
        for (title, values), (colour, dash) in zip(series.items(), STYLES, strict=False):
            style = {"color": colour, "linestyle": dash, "linewidth": 1.6, "label": title}
            axes.stairs(values, run.seconds / unit, baseline=None, **style)
        axes.set(xlabel=f"time of the run [{name}]", ylabel=label, xlim=(0, run.length / unit))
        axes.set_ylim(bottom=0)
        if len(series) > 1:
            drawing.legend(loc="outside upper center", ncols=len(series), frameon=False)
        return _svg(drawing)


def _over_time(run: Recorded, series: Mapping[str, Floats]) -> list[list[str]]:
    starts = [f"{start:.1f}" for start in run.seconds[:-1]]
    columns = [[f"{value:.2f}" for value in values] for values in series.values()]
    return [list(row) for row in zip(starts, *columns, strict=True)]


def _throughput(run: Recorded) -> Figure:
    lengths = np.diff(run.seconds)
    series = {
        "copies": run.counted["bytes_from_tier"] / lengths / MIB,
        "the source": run.source_bytes / lengths / MIB,
    }
    if run.nodes > 1:
        series["other nodes"] = run.counted["bytes_from_peers"] / lengths / MIB
    text = (
        "Bytes per second by origin. For the source"
        + (" and other nodes" if run.nodes > 1 else "")
        + ", the figure shows the bytes that this node read. Reads of copies are not counted,"
        " because the kernel serves them. So for copies, the figure shows the sizes of the files"
        " that programs opened."
    )
    columns = ["from [s]", *(f"{name} [MiB/s]" for name in series)]
    svg = _lines(run, "MiB/s", series)
    return Figure("Throughput", text, svg, columns, _over_time(run, series))


def _waits(run: Recorded) -> Figure:
    series = {"threads": run.counted["wait_seconds"] / np.diff(run.seconds)}
    total = run.totals["wait_seconds"]
    text = (
        "The average number of threads that waited for a part of a copy that was being made. They"
        f" waited {total:,.1f} s in all. The time of reads from the source is not included."
    )
    svg = _lines(run, "waiting threads", series)
    return Figure("Stalls", text, svg, ["from [s]", "waiting threads"], _over_time(run, series))


def _hit_ratios(run: Recorded, given: int | None) -> Figure:
    title, columns = "Hit ratio", ["epoch", "hit ratio", "opens", "time [s]"]
    epochs = run.epochs(given)
    if not epochs:
        text = "The number of epochs cannot be derived from the opens of this run; give --epochs."
        return Figure(title, text, "", columns, [])
    if given is None and run.is_planned:
        how = "The plan defines the epochs"
    elif given is None:
        how = "An epoch is as many opens as there are files; if that is wrong, give --epochs"
    else:
        how = "All epochs have equally many opens"
    text = f"The share of opens that got a copy, by epoch. {how}."
    rows = [
        [str(n), f"{100 * e.hit_ratio:.1f} %", f"{e.opens:,.0f}", f"{e.seconds:.1f}"]
        for n, e in enumerate(epochs)
    ]
    return Figure(title, text, _bars([100 * e.hit_ratio for e in epochs]), columns, rows)


def _bars(heights: Sequence[float]) -> str:
    from matplotlib.ticker import MaxNLocator

    with _style():
        drawing, axes = _drawing()
        axes.bar(range(len(heights)), heights, color=STYLES[0][0])
        axes.set(xlabel="epoch", ylabel="opens that got a copy [%]", ylim=(0, 100))
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
        return _svg(drawing)


def _files(run: Recorded) -> Figure:
    files, report = run.report.files, run.report
    names = [tier.mount_point for tier in report.tiers]
    names += ["staging area"] if report.staging else []
    columns = ["row", "first file", "files", "size", *names]
    if not files.count:
        return Figure("Files", "The daemon knew no file.", "", columns, [])
    sizes, copied = np.array(files.bytes, float), np.array(files.copied_bytes, float)
    counts = np.array(files.count)
    width = min(ROW_GROUPS, len(counts))
    starts = np.arange(0, len(counts), width)
    group = "file" if counts.max() == 1 else f"group of up to {counts.max():,} files"
    text = (
        f"Each cell is a {group}. The cells are sorted by name, row by row. The lighter a cell is,"
        " the more of its bytes had a copy at the end of the run. The table names each copy's tier."
    )
    rows = []
    for row, start in enumerate(starts):
        part = slice(start, start + width)
        size = sizes[part].sum()
        shares = [f"{100 * c[part].sum() / size:.0f} %" if size else "-" for c in copied]
        first = f"{report.sources[files.source[start]].path}/{files.first[start]}"
        number = f"{counts[part].sum():,}"
        rows.append([str(row + 1), first, number, format_size(int(size)), *shares])
    share = np.divide(copied.sum(axis=0), sizes, out=np.ones(len(sizes)), where=sizes > 0)
    return Figure("Files", text, _heat_map(share, width), columns, rows)


def _heat_map(share: Floats, width: int) -> str:
    """Draws a heat map, and returns the drawing as SVG.

    share : (n,) the value of each cell, row by row, from 0 to 1;  width : the number of cells in a
        row
    """
    cells = np.full(-(-len(share) // width) * width, np.nan)
    cells[: len(share)] = share
    with _style():
        drawing, axes = _drawing()
        grid = 100 * cells.reshape(-1, width)
        extent = (0.5, width + 0.5, len(grid) + 0.5, 0.5)
        image = axes.imshow(
            grid, vmin=0, vmax=100, aspect="auto", interpolation="none", extent=extent
        )
        axes.set(xlabel="group", ylabel="row")
        drawing.colorbar(image, label="bytes with a copy [%]")
        return _svg(drawing)
