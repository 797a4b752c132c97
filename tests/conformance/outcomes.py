"""What a test-suite says of each of its tests, and in what two runs of it differ."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from itertools import zip_longest
from pathlib import Path
from xml.etree import ElementTree

Outcomes = dict[str, str]


def read_junit(path: Path, root: Path) -> Outcomes:
    """Name of each test -> how it ended; a reason to skip is a part of it, a failure's text is not
    (it has addresses and times)."""
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
    # A test of subtests, or of a teardown that fails too, has more than one line.
    return {name: ", ".join(sorted(ends)) for name, ends in found.items()}


def unlike(without: Mapping[str, str], library: Mapping[str, str]) -> list[str]:
    """One line for each name that two runs do not agree about."""
    return [
        f"{name}\n  without: {without.get(name, '(not there)')}"
        f"\n  library: {library.get(name, '(not there)')}"
        for name in sorted(without.keys() | library.keys())
        if without.get(name) != library.get(name)
    ]


def difference(without: str, library: str) -> str:
    """The first lines in which two texts differ; empty if they are equal."""
    pairs = zip_longest(without.splitlines(), library.splitlines(), fillvalue="(nothing)")
    found = [
        f"line {number}\n  without: {one}\n  library: {two}"
        for number, (one, two) in enumerate(pairs, start=1)
        if one != two
    ]
    return "\n".join([*found[:4], f"{len(found)} lines differ"]) if found else ""
