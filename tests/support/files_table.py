"""The table of files in docs/files.md: each file with the first sentence of its own description.

PYTHONPATH=tests python -m support.files_table    rewrites the page
"""

from __future__ import annotations

import ast
import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
LONG = 110
PAGE = ROOT / "docs" / "files.md"
HEAD = """# Files

Each file with the first sentence of its own description. A C file and the header of the same name
are one row. [Architecture](architecture.md) says how the files work together.
`PYTHONPATH=tests python -m support.files_table` writes this page.
"""


def first_sentence(text: str) -> str:
    """Returns the first sentence of `text` on one line. If the sentence is long and has a colon,
    returns only the part before the colon."""
    words = " ".join(text.split("\n\n")[0].split())
    sentence = re.split(r"(?<=[^.])\.(?=\s|$)", words, maxsplit=1)[0].rstrip(":")
    return sentence.split(": ")[0] if len(sentence) > LONG else sentence


def of_python(path: Path) -> str:
    return first_sentence(ast.get_docstring(ast.parse(path.read_text())) or "")


def of_c(paths: list[Path]) -> str:
    """Returns the first sentence of the comment with which the header begins. If there is no such
    comment, takes the comment with which the C file begins."""
    for path in sorted(paths, reverse=True):
        if found := re.match(r"/\*(.*?)\*/", path.read_text(), re.DOTALL):
            return first_sentence(re.sub(r"\n \*", "\n", found[1]))
    return ""


def rows() -> dict[str, list[tuple[str, str]]]:
    """Returns, by folder, the files' names and their descriptions."""
    found: dict[str, list[tuple[str, str]]] = {}
    components: dict[Path, list[Path]] = {}
    for path in (ROOT / "csrc").rglob("*.[ch]"):
        components.setdefault(path.with_suffix(""), []).append(path)
    said = {stem: of_c(paths) for stem, paths in components.items()}
    said |= {path: of_python(path) for path in (ROOT / "monarch_py").rglob("*.py")}
    for path, sentence in said.items():
        ends = "".join(sorted(p.suffix[1:] for p in components.get(path, [])))
        name = (
            f"{path.name}.[{ends}]" if len(ends) > 1 else f"{path.name}{'.' if ends else ''}{ends}"
        )
        folder = str(path.parent.relative_to(ROOT))
        found.setdefault(folder, []).append((name, sentence))
    return {folder: sorted(found[folder]) for folder in sorted(found)}


def page() -> str:
    parts = [HEAD]
    for folder, files in rows().items():
        lines = [f"| `{name}` | {sentence} |" for name, sentence in files]
        parts.append(
            "\n".join([f"## `{folder}`", "", "| file | what it is |", "|---|---|", *lines])
        )
    return "\n\n".join(parts).replace("\n\n\n", "\n\n") + "\n"


if __name__ == "__main__":
    PAGE.write_text(page())
