"""Counts the product's lines of code, without blank lines, comments and docstrings.

``PYTHONPATH=tests python -m support.lines`` prints the counts by folder. The product is the package
and the C code, without C functions that only tests call.
"""

from __future__ import annotations

import ast
import io
import re
import tokenize
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
FOR_TESTS = ROOT / "csrc" / "testing"
DOCUMENTED = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
LAYOUT = {
    tokenize.COMMENT,
    tokenize.NL,
    tokenize.NEWLINE,
    tokenize.INDENT,
    tokenize.DEDENT,
    tokenize.ENDMARKER,
}
# Matches a comment, or a complete string or character literal. Text inside a literal is therefore
# not taken for a comment.
TEXT_OR_COMMENT = re.compile(
    r"""(?P<text>"(?:\\.|[^"\\])*"|'(?:\\.|[^'\\])*')|//(?:\\\n|[^\n])*|/\*.*?\*/""", re.DOTALL
)


def _docstrings(text: str) -> Iterator[tuple[tuple[int, int], tuple[int, int]]]:
    """Yields the beginning and the end of each docstring, as (line, column)."""
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, DOCUMENTED) and ast.get_docstring(node, clean=False) is not None:
            said = node.body[0]
            end = (said.end_lineno or said.lineno, said.end_col_offset or 0)
            yield (said.lineno, said.col_offset), end


def of_python(text: str) -> int:
    """Returns the number of lines with code. Docstrings, comments and blank lines do not count. A
    statement that spans three lines counts as three. So does a string that spans three lines, even
    if one of these lines is blank."""
    docstrings = dict(_docstrings(text))
    used: set[int] = set()
    skipped_until = (0, 0)
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        skipped_until = max(skipped_until, docstrings.get(token.start, (0, 0)))
        if token.type not in LAYOUT and token.end > skipped_until:
            used.update(range(token.start[0], token.end[0] + 1))
    return len(used)


def of_c(text: str) -> int:
    code = TEXT_OR_COMMENT.sub(
        lambda found: found["text"] or "\n" * found[0].count("\n") or " ", text
    )
    return sum(1 for line in code.splitlines() if line.strip())


def _by_folder(top: Path, suffixes: set[str], count: Callable[[str], int]) -> Counter[str]:
    found: Counter[str] = Counter()
    for path in top.rglob("*"):
        if path.suffix in suffixes and FOR_TESTS not in path.parents:
            found[str(path.parent.relative_to(ROOT))] += count(path.read_text())
    return found


def python() -> Counter[str]:
    """Returns the number of lines with Python code in the package, by folder."""
    return _by_folder(ROOT / "monarch_py", {".py"}, of_python)


def c() -> Counter[str]:
    """Returns the number of lines with C code in the library and the daemon, by folder."""
    return _by_folder(ROOT / "csrc", {".c", ".h"}, of_c)


if __name__ == "__main__":
    for language, folders in (("Python", python()), ("C", c())):
        for folder, number in sorted(folders.items()):
            print(f"{number:8,} {folder}")
        print(f"{folders.total():8,} {language}")
