"""Which files of a source are meant: globs on paths, compiled once, asked a million times."""

from __future__ import annotations

import re
from collections.abc import Sequence

__all__ = ["PathFilter", "glob_to_regex"]

# One step of a glob. `**/` is taken together with its slash, because it also stands for nothing.
_STEP = re.compile(
    r"(?P<dirs>(?:\*\*/)+) | (?P<deep>\*\*+) | (?P<star>\*) | (?P<one>\?)"
    r" | \[(?P<negate>[!^]?)(?P<set>\][^\]]*|[^\]]+)\] | \\(?P<escaped>.) | (?P<plain>[^\\\[])",
    re.VERBOSE | re.DOTALL,
)


class PathFilter:
    """Says of paths relative to a source whether they are meant.

    A path is meant if a glob of `include` matches it (no glob: every path) and none of `exclude`.
    A glob with a slash is compared with the whole relative path, one without with the base name.
    ``*`` and ``?`` do not cross a slash, ``**`` does, and ``**/`` also stands for no directory;
    ``[a-z]`` and ``[!a-z]`` stand for one character; a backslash takes the next one literally.
    Names that begin with a dot are nothing special. Raises ValueError, with one sentence, for a
    glob that cannot be read or can never match.
    """

    __slots__ = ("_exclude", "_include")

    def __init__(self, include: Sequence[str] = (), exclude: Sequence[str] = ()) -> None:
        everything = any(glob in ("*", "**", "**/*") for glob in include)
        wanted, unwanted = _compile(include), _compile(exclude)
        self._include = None if everything else wanted
        self._exclude = unwanted

    @property
    def trivial(self) -> bool:
        """True when every path is meant, so that the caller need not ask."""
        return self._include is None and self._exclude is None

    def matches(self, relpath: str) -> bool:
        """Whether `relpath`, relative to the source and without a leading slash, is meant."""
        if self._include is not None and self._include.fullmatch(relpath) is None:
            return False
        return self._exclude is None or self._exclude.fullmatch(relpath) is None


def glob_to_regex(glob: str) -> str:
    """The regular expression, for fullmatch on a relative path, of one glob.

    Raises ValueError, with one sentence, for a glob that cannot be read or can never match.
    """
    _refuse_hopeless(glob)
    parts = [] if "/" in glob else ["(?:.*/)?"]
    at = 0
    while at < len(glob):
        step = _STEP.match(glob, at)
        if step is None:
            what = "an unclosed '['" if glob[at] == "[" else "a backslash with nothing behind it"
            raise ValueError(f"the pattern {glob!r} has {what}")
        # `a**/b` means that ** is glued to a name; its slash is then a slash.
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
    """A set of characters, built from its members: in a regex, `--` and `[` would mean more."""
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
    # A set never crosses a slash, not even a negated one.
    return f"(?!/)[{'^' if step['negate'] else ''}{''.join(members)}]"


def _refuse_hopeless(glob: str) -> None:
    """Refuse globs that are well formed but can match no relative path of a file."""
    if not glob:
        raise ValueError("a pattern is empty")
    if glob.startswith("/"):
        raise ValueError(f"the pattern {glob!r} begins with '/', but paths are below the source")
    if glob.endswith("/"):
        raise ValueError(f"the pattern {glob!r} names a directory, but only files are compared")
    if any(part in ("", ".", "..") for part in glob.split("/")):
        raise ValueError(f"the pattern {glob!r} has an empty part, '.' or '..' between its slashes")


def _compile(globs: Sequence[str]) -> re.Pattern[str] | None:
    """One expression for all of `globs`; None for no glob."""
    if not globs:
        return None
    # DOTALL: a name may hold a newline.
    return re.compile("|".join(f"(?:{glob_to_regex(glob)})" for glob in globs), re.DOTALL)
