"""Reads the outcome of each test from the report of a test suite, and compares two runs."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from itertools import zip_longest
from pathlib import Path
from xml.etree import ElementTree

Outcomes = dict[str, str]


def read_junit(path: Path, root: Path) -> Outcomes:
    """Returns the outcome of each test in a JUnit report. An outcome includes the reason of a skip,
    but not the text of a failure, which contains addresses and times."""
    found: dict[str, list[str]] = defaultdict(list)
    for case in ElementTree.parse(path).getroot().iter("testcase"):
        name = f"{case.get('classname') or ''}::{case.get('name')}".replace(str(root), "ROOT")
        ended = "passed"
        for child in case:
            if child.tag in ("failure", "error"):
                ended = child.tag
            elif child.tag == "skipped":
                reason = child.get("message") or child.text or ""
                ended = f"skipped: {reason.replace(str(root), 'ROOT')}"
        found[name].append(ended)
    # The report has more than one entry for a test with subtests, or with a failure in its
    # teardown.
    return {name: ", ".join(sorted(ends)) for name, ends in found.items()}


def unlike(without: Mapping[str, str], library: Mapping[str, str]) -> list[str]:
    """Returns one text for each name whose values differ between the two runs."""
    return [
        f"{name}\n  without: {without.get(name, '(not there)')}"
        f"\n  library: {library.get(name, '(not there)')}"
        for name in sorted(without.keys() | library.keys())
        if without.get(name) != library.get(name)
    ]


def difference(without: str, library: str) -> str:
    """Returns a text that shows the first four lines in which two texts differ, and says how many
    lines differ. The text is empty if the two texts are equal."""
    pairs = zip_longest(without.splitlines(), library.splitlines(), fillvalue="(nothing)")
    found = [
        f"line {number}\n  without: {one}\n  library: {two}"
        for number, (one, two) in enumerate(pairs, start=1)
        if one != two
    ]
    return "\n".join([*found[:4], f"{len(found)} lines differ"]) if found else ""
