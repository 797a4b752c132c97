"""Translates a glob into a regular expression, for comparison with config.patterns.

The regular expression backtracks, so it is only for globs with few stars and for short names.
"""

from __future__ import annotations

import re

__all__ = ["glob_to_regex"]

# One step of a glob. `**/` is a single step, because it may match nothing at all. Its slash then
# matches nothing either.
_STEP = re.compile(
    r"(?P<dirs>(?:\*\*/)+) | (?P<deep>\*\*+) | (?P<star>\*) | (?P<one>\?)"
    r" | \[(?P<negate>[!^]?)(?P<set>\][^\]]*|[^\]]+)\] | \\(?P<escaped>.) | (?P<plain>[^\\\[])",
    re.VERBOSE | re.DOTALL,
)


def glob_to_regex(glob: str) -> str:
    """Returns the regular expression of a glob, for fullmatch with a relative path.

    Raises ValueError if the glob is malformed.
    """
    parts = [] if "/" in glob else ["(?:.*/)?"]
    at = 0
    while at < len(glob):
        step = _STEP.match(glob, at)
        if step is None:
            what = "an unclosed '['" if glob[at] == "[" else "a backslash with nothing behind it"
            raise ValueError(f"the pattern {glob!r} has {what}")
        # In `a**/b`, the stars continue the name that begins with `a`. So `**/` cannot match the
        # empty string here: the path must contain the slash.
        if step["dirs"] and at > 0 and glob[at - 1] != "/":
            parts.append(".*/")
        else:
            parts.append(_translate(step, glob))
        at = step.end()
    return "".join(parts)


def _translate(step: re.Match[str], glob: str) -> str:
    if step["dirs"]:
        return "(?:.*/)?"
    if step["deep"] and "/" in glob:
        return ".*"
    if step["deep"] or step["star"]:
        return "[^/]*"
    if step["one"]:
        return "[^/]"
    if step["set"] is not None:
        return _translate_set(step, glob)
    return re.escape(step["escaped"] or step["plain"])


def _translate_set(step: re.Match[str], glob: str) -> str:
    """Translates a glob's character set, such as [a-z], into a character set of a regular
    expression. Escapes each member, because `--` and `[` have a special meaning in a regular
    expression's set."""
    rest, members = step["set"], []
    while rest:
        if len(rest) >= 3 and rest[1] == "-":
            first, last, rest = rest[0], rest[2], rest[3:]
            if first > last:
                raise ValueError(f"the pattern {glob!r} has a range that runs backwards")
            members.append(f"{re.escape(first)}-{re.escape(last)}")
        else:
            members.append(re.escape(rest[0]))
            rest = rest[1:]
    # A set never matches a slash, not even a negated set.
    return f"(?!/)[{'^' if step['negate'] else ''}{''.join(members)}]"
