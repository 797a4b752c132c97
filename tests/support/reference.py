"""Generates parts of docs/ from the code: the tables of keys, and the help of commands.

``PYTHONPATH=tests python -m support.reference`` writes them into the pages: each table below a line
``<!-- keys: NAME -->``, and the commands below ``<!-- commands -->``. Tests compare the pages with
the generated text.
"""

from __future__ import annotations

import re
from pathlib import Path

from monarch_py.config import schema
from monarch_py.plan import recipe
from monarch_py.simulator import scenario
from monarch_py.yaml_files.keys import Keys, declared
from support.command_tree import leaves

DOCS = Path(__file__).parents[2] / "docs"
HEADER = "| key | value | default | meaning |\n|---|---|---|---|\n"
MODULES = {"configuration.md": schema, "plan.md": recipe, "scenarios.md": scenario}
REFERENCE, COMMANDS = DOCS / "reference.md", "<!-- commands -->"
TABLE = re.compile(r"(?<=<!-- keys: )(\w+)( -->\n\n)(?:\|.*\n)*\n*")


def table(keys: type[Keys]) -> str:
    """Returns the table of these keys in Markdown. Each inner mapping has only one row, at the end
    of the table."""
    rows = [
        f"| `{each.name}` | {each.kind.value} | {each.default} | {each.meaning} |\n"
        for each in declared(keys).values()
    ]
    for name in keys.GROUPS:
        rows.append(f"| `{name}` | mapping | none | keys for experts, see [`{name}`](#{name}) |\n")
    return HEADER + "".join(rows)


def written(page: str) -> str:
    """Returns the page, with each of its tables replaced by the one that the code declares."""

    def replaced(found: re.Match[str]) -> str:
        return f"{found[1]}{found[2]}{table(getattr(MODULES[page], found[1]))}\n"

    return TABLE.sub(replaced, (DOCS / page).read_text())


def with_commands(text: str) -> str:
    """Returns the reference page with the help of every command at its end."""
    parts = [text.partition(COMMANDS)[0] + COMMANDS]
    for path, context in leaves().items():
        parts.append(f"### {path}\n\n```text\n{context.get_help()}\n```")
    return "\n\n".join(parts) + "\n"


if __name__ == "__main__":
    REFERENCE.write_text(with_commands(REFERENCE.read_text()))
    for page in MODULES:
        (DOCS / page).write_text(written(page))
