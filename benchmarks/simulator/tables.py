"""Writes the tables of a benchmark into a page of the documentation."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path

__all__ = ["put_tables", "table"]


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """Returns the lines of a Markdown table. The first column is text, the others are numbers."""
    rule = ["---", *("--:" for _ in head[1:])]
    return ["| " + " | ".join(cells) + " |" for cells in (head, rule, *rows)]


def put_tables(page: Path, tables: Mapping[str, Sequence[str]]) -> None:
    """Replaces, for each table, the text between ``<!-- table NAME -->`` and ``<!-- end -->`` in
    the page. Does not write a table whose name is not in the page."""
    text = page.read_text()
    for name, lines in tables.items():
        place = re.compile(rf"(<!-- table {re.escape(name)} -->\n).*?(<!-- end -->)", re.DOTALL)
        body = "\n" + "\n".join(lines) + "\n\n"
        text = place.sub(lambda found, body=body: found[1] + body + found[2], text)  # type: ignore[misc]
    page.write_text(text)
