"""The product does not grow unnoticed.

Whoever needs more lines than these raises the limit in the same change, and says why.
"""

from __future__ import annotations

from collections import Counter

import pytest
from support import lines

# Lines of code, by `PYTHONPATH=tests python -m support.lines`.
# Loaders and packs are 4,550 lines of Python and 900 of C among them. With 270 of these, ranks
# compare what they deal by, states and arguments are checked, and errors have sentences.
# For users of a site's module there are 80 lines: hints that work there, and output on narrow
# terminals. The sums of copies have 75 lines of C for AVX2 and for registers: a copy's processor
# time is mostly that of its pages, its bytes and its sum.
# Commands start without numpy, for 70 lines of Python, mostly second lines of imports.
# A tier's directory in a block group of its own is 35 lines: ext4 needs twenty times as long for a
# file where many were just removed. The loop's haste for names is 20 lines, and a first epoch of
# small files takes a third less time.
# Includes and declarations of functions that were moved to where they belong are 41 lines of C.
# With 27 lines of Python and 19 of C the engine stages files by itself: where tiers do not hold
# everything, the loop took more processor time than everything else together. The loop lets the
# engine order fills only when that is due, for 6 lines: a first epoch of four nodes takes a twelfth
# less time. A command that an older daemon answers has a line of its own.
MOST_PYTHON = 25_775
MOST_C = 19_994

PYTHON = '''\
"""A docstring
of two lines."""

# a comment
x = """not a docstring

but three lines"""


class Point: "a docstring behind code"


def f() -> None:
    """One

    more."""
    "no docstring: a second string"
    return (  # a comment behind code
        1,

        2,
    )
'''
C = r"""
/* a comment
 * of two lines */
#define X 1 /* a macro */
// a comment \
that goes on
char *s = "/* no comment */"; // one behind code
char quote = '"'; /* a character
*/ char c; /* */
int /* inside
       */ n = 1;
"""


def test_lines_of_python() -> None:
    assert lines.of_python(PYTHON) == 3 + 1 + 1 + 1 + 4


def test_lines_of_c() -> None:
    assert lines.of_c(C) == 6


@pytest.fixture(scope="module")
def counted() -> dict[str, Counter[str]]:
    """The product's lines by folder, in each language."""
    return {"python": lines.python(), "c": lines.c()}


def test_the_product_is_counted(counted: dict[str, Counter[str]]) -> None:
    assert {"monarch_py", "monarch_py/daemon/fill"} < set(counted["python"])
    assert "csrc/preload/fill" in counted["c"]
    assert "csrc/testing" not in counted["c"]


@pytest.mark.parametrize(("language", "most"), [("python", MOST_PYTHON), ("c", MOST_C)])
def test_the_product_stays_within_its_limits(
    counted: dict[str, Counter[str]], language: str, most: int
) -> None:
    assert counted[language].total() <= most
