"""Selects files of a source by comparing their paths with globs.

The globs of one list are compiled into one regular expression, which is used for many paths. In a
plain translation, each star would try all lengths: `*a*a*a*b` would take hours for one long name.
Here each star, except the last, takes as few characters as possible, and no other length is tried.
No match is missed, because a longer star only leaves less of the name for the rest of the glob.
"""

import re
from collections.abc import Iterator, Sequence
from itertools import count

# Matches one step of a glob. In the step `**/`, the slash is included: if `**/` matches no
# directory, the path has no slash at this place either.
_STEP = re.compile(
    r"(?P<dirs>(?:\*\*/)+) | (?P<deep>\*\*+) | (?P<star>\*) | (?P<one>\?)"
    r" | \[(?P<negate>[!^]?)(?P<set>\][^\]]*|[^\]]+)\] | \\(?P<escaped>.) | (?P<plain>[^\\\[])",
    re.VERBOSE | re.DOTALL,
)
# Regular expressions. _STAR: any characters except slashes. _DEEP: any characters. _DIRECTORIES:
# any number of complete names, each followed by a slash.
_STAR, _DEEP, _DIRECTORIES = "[^/]*", ".*", "(?:[^/]*/)*"


class PathFilter:
    """Selects paths relative to a source.

    A path is selected if a glob of `include` matches it and no glob of `exclude` matches it. An
    empty `include` selects every path. A glob with a slash is compared with the whole relative
    path, and a glob without a slash with the base name. ``*`` and ``?`` do not match a slash.
    ``**`` matches slashes too. ``**/`` matches any number of directories, or none. ``[a-z]`` and
    ``[!a-z]`` match one character. A backslash makes the next character literal. Names that begin
    with a dot are not special.

    The constructor raises ValueError if a glob cannot be parsed or can never match. The message is
    one sentence.
    """

    __slots__ = ("_exclude", "_include")

    def __init__(self, include: Sequence[str] = (), exclude: Sequence[str] = ()) -> None:
        everything = any(glob in ("*", "**", "**/*") for glob in include)
        wanted, self._exclude = _compile(include), _compile(exclude)
        self._include = None if everything else wanted

    @property
    def trivial(self) -> bool:
        """Whether every path is selected, so that `matches` need not be called."""
        return self._include is None and self._exclude is None

    def matches(self, relpath: str) -> bool:
        """Whether `relpath`, relative to the source and without a leading slash, is selected."""
        if self._include is not None and self._include.fullmatch(relpath) is None:
            return False
        return self._exclude is None or self._exclude.fullmatch(relpath) is None


def checked_glob(glob: str) -> str:
    """Checks a glob, and returns it unchanged. Raises ValueError, with a one-sentence message, if
    the glob cannot be parsed or can never match."""
    list(_parts(glob))
    return glob


def _compile(globs: Sequence[str]) -> re.Pattern[str] | None:
    """Returns one regular expression for all globs; None if there is no glob."""
    numbers = count()
    whole = "|".join(_expression(_parts(glob), numbers) for glob in globs)
    return re.compile(whole, re.DOTALL) if globs else None


def _expression(parts: Iterator[str], numbers: Iterator[int]) -> str:
    """Returns the regular expression of a glob, for `fullmatch`.

    parts : the glob's steps, as `_parts` yields them
    """
    # Each `**` and each `**/` of the glob begins a new block. A block is a list of pairs. A pair is
    # a star and the regular expression of the text up to the next star. The first pair has an empty
    # star, for the text before the first star.
    blocks = [[("", "")]]
    for part in parts:
        if part in (_DEEP, _DIRECTORIES):
            blocks.append([(part, "")])
        elif part == _STAR:
            blocks[-1].append((part, ""))
        else:
            star, fixed = blocks[-1][-1]
            blocks[-1][-1] = (star, fixed + part)
    text = "".join(_block(block, numbers, is_last=False) for block in blocks[:-1])
    return text + _block(blocks[-1], numbers, is_last=True)


def _block(block: list[tuple[str, str]], numbers: Iterator[int], *, is_last: bool) -> str:
    (star, fixed), *inner = block
    # The last star may take any number of characters, because the text after it must match at the
    # end of the path.
    tail = "".join(inner.pop()) if is_last and inner else ""
    text = "".join(_earliest(f"{each}?{after}", numbers) for each, after in inner) + tail
    if is_last or not star:
        return f"{star}{fixed}{text}"
    return _earliest(f"{star}?{fixed}{text}", numbers)


def _earliest(text: str, numbers: Iterator[int]) -> str:
    """Returns an atomic group of `text`: after the group's first match, no other match of the group
    is tried. Python before 3.11 has no atomic groups. So the group is written as a look-ahead and a
    back-reference."""
    name = f"g{next(numbers)}"
    return f"(?=(?P<{name}>{text}))(?P={name})"


def _parts(glob: str) -> Iterator[str]:
    """Yields each step of a glob as a regular expression. Raises ValueError for a glob that cannot
    be parsed or can never match."""
    _refuse_hopeless(glob)
    if "/" not in glob:
        yield _DIRECTORIES
    at = 0
    while at < len(glob):
        step = _STEP.match(glob, at)
        if step is None:
            what = "an unclosed '['" if glob[at] == "[" else "a backslash at its end"
            raise ValueError(f"the pattern {glob!r} has {what}")
        # In `a**/b`, `**` is a part of a name, so the slash after it is an ordinary slash.
        if step["dirs"] and at > 0 and glob[at - 1] != "/":
            yield from (_DEEP, "/")
        else:
            yield _part(step, glob)
        at = step.end()


def _part(step: re.Match[str], glob: str) -> str:
    if step["dirs"]:
        return _DIRECTORIES
    if step["deep"] and "/" in glob:
        return _DEEP
    if step["deep"] or step["star"]:
        return _STAR
    if step["one"]:
        return "[^/]"
    if step["set"] is not None:
        return _set(step, glob)
    return re.escape(step["escaped"] or step["plain"])


def _set(step: re.Match[str], glob: str) -> str:
    """Returns the regular expression of a set such as `[a-z]`. The set's text cannot be used as it
    is, because `--` and `[` are special in a regular expression."""
    rest, members = step["set"], ""
    while rest:
        is_range = len(rest) >= 3 and rest[1] == "-"
        first, last = rest[0], rest[2 if is_range else 0]
        if first > last:
            raise ValueError(f"the pattern {glob!r} has a range that runs backwards")
        members += f"{re.escape(first)}-{re.escape(last)}"
        rest = rest[3:] if is_range else rest[1:]
    # A set never matches a slash, even if it is negated.
    return f"(?!/)[{'^' if step['negate'] else ''}{members}]"


def _refuse_hopeless(glob: str) -> None:
    """Raises ValueError if a glob is well formed but cannot match the relative path of any file."""
    if not glob:
        raise ValueError("a pattern is empty")
    if glob.startswith("/"):
        raise ValueError(
            f"the pattern {glob!r} begins with '/', but must match a path relative to the source"
        )
    if glob.endswith("/"):
        raise ValueError(f"the pattern {glob!r} names a directory, but only files are compared")
    if any(part in ("", ".", "..") for part in glob.split("/")):
        raise ValueError(f"the pattern {glob!r} has an empty part, '.' or '..' between its slashes")
