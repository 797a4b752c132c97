"""Prints the commands' output, with tables that fit the terminal.

The markup of the package rich is switched off, because a path may contain square brackets. If
standard output is not a terminal, a table is plain text with one line per row, even if the lines
are long. On a terminal, a table that is too wide is printed as a list.
"""

from collections.abc import Sequence
from typing import Any

import click
from rich.console import Console, RenderableType
from rich.measure import Measurement
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from monarch_py.util.quoting import quoted


def console() -> Console:
    """Returns a rich console for standard output. If standard output is not a terminal, the console
    does not break long lines."""
    made = Console(highlight=False, markup=False, emoji=False)
    if not made.is_terminal:
        made.width = 10_000
    return made


def show(what: RenderableType, *, is_folded: bool = False) -> None:
    """Prints `what` without the trailing blanks that rich adds to lines.

    is_folded : if true, rich does not break long lines, and the terminal wraps them
    """
    out = console()
    with out.capture() as captured:
        out.print(what, soft_wrap=is_folded)
    for line in captured.get().splitlines():
        click.echo(line.rstrip(" "))


def print_table(
    title: str, columns: Sequence[str], rows: Sequence[Sequence[Any]], *, left: int = 1
) -> None:
    """Prints a table. A cell that is None is printed as an empty cell. A column in which all cells
    are empty is not printed. A text with control characters is quoted.

    left : the number of text columns, which come first and are aligned to the left. The other
        columns contain numbers
    """
    cells = [["" if cell is None else quoted(str(cell)) for cell in row] for row in rows]
    kept = [i for i in range(len(columns)) if any(row[i] for row in cells)] or [0]
    table = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False, header_style="bold")
    for i in kept:
        table.add_column(columns[i], justify="left" if i < left else "right", no_wrap=True)
    for row in cells:
        table.add_row(*(row[i] for i in kept))
    out = console()
    if title:
        show(Text(title, style="bold"))
    wide = Measurement.get(out, out.options.update(max_width=10_000), table).maximum
    if wide <= out.width:
        show(table)
    else:
        _print_list([columns[i] for i in kept], [[row[i] for i in kept] for row in cells])


def _print_list(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Prints a table as a list. The first cell of each row has a line of its own. The other cells
    follow below this line, each with the name of its column."""
    for first, *others in rows:
        click.echo(first)
        cells = [
            Text.assemble((f"{column} ", "dim"), cell.replace(" ", "\u00a0"))
            for column, cell in zip(columns[1:], others, strict=True)
            if cell
        ]
        show(Padding(Text(", ").join(cells), (0, 0, 0, 2)))
