"""Which files of a source are meant: globs on paths, compiled once, asked a million times.

The globs of one list are one finite automaton, whose deterministic form is made state by state as
paths need it. A path costs one look-up per character, whatever the globs are: a regular expression
would backtrack, and `*a*a*a*b` would keep the scan busy for hours over one long name.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import reduce
from operator import getitem

__all__ = ["PathFilter", "check_glob"]

# One step of a glob. `**/` is taken together with its slash, because it also stands for nothing.
_STEP = re.compile(
    r"(?P<dirs>(?:\*\*/)+) | (?P<deep>\*\*+) | (?P<star>\*) | (?P<one>\?)"
    r" | \[(?P<negate>[!^]?)(?P<set>\][^\]]*|[^\]]+)\] | \\(?P<escaped>.) | (?P<plain>[^\\\[])",
    re.VERBOSE | re.DOTALL,
)

# The transitions that are kept [count], some 100 bytes each: past it they are all forgotten and
# made anew. Real names need a few hundred.
_MOST_TRANSITIONS = 20_000


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
        if self._include is not None and not self._include.matches(relpath):
            return False
        return self._exclude is None or not self._exclude.matches(relpath)


def check_glob(glob: str) -> None:
    """Raises ValueError, with one sentence, for a glob that cannot be read or can never match."""
    list(_parts(glob))


def _compile(globs: Sequence[str]) -> _Automaton | None:
    """None for no glob."""
    return _Automaton([list(_parts(glob)) for glob in globs]) if globs else None


# --- one glob ------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Part:
    """One position of a glob.

    takes : whether it consumes this character
    loops : it consumes any number of them, also none; otherwise exactly one
    skips : it consumes nothing, and stands for what follows it or for none of the next two
    """

    takes: Callable[[str], bool]
    loops: bool = False
    skips: bool = False


def _anything(_: str) -> bool:
    return True


def _within_a_name(char: str) -> bool:
    return char != "/"


def _exactly(wanted: str) -> Callable[[str], bool]:
    return lambda char: char == wanted


_DEEP, _STAR = _Part(_anything, loops=True), _Part(_within_a_name, loops=True)
_SLASH = _Part(_exactly("/"))
# `**/`: any directories, or none.
_DIRECTORIES = (_Part(_anything, skips=True), _DEEP, _SLASH)


def _parts(glob: str) -> Iterator[_Part]:
    """ValueError for a glob that cannot be read or can never match."""
    _refuse_hopeless(glob)
    if "/" not in glob:
        yield from _DIRECTORIES
    at = 0
    while at < len(glob):
        step = _STEP.match(glob, at)
        if step is None:
            what = "an unclosed '['" if glob[at] == "[" else "a backslash with nothing behind it"
            raise ValueError(f"the pattern {glob!r} has {what}")
        # `a**/b` means that ** is glued to a name; its slash is then a slash.
        if step["dirs"] and at > 0 and glob[at - 1] != "/":
            yield from (_DEEP, _SLASH)
        elif step["dirs"]:
            yield from _DIRECTORIES
        else:
            yield _part(step, glob)
        at = step.end()


def _part(step: re.Match[str], glob: str) -> _Part:
    if step["deep"] and "/" in glob:
        return _DEEP
    if step["deep"] or step["star"]:
        return _STAR
    if step["one"]:
        return _Part(_within_a_name)
    if step["set"] is not None:
        return _set(step, glob)
    return _Part(_exactly(step["escaped"] or step["plain"]))


def _set(step: re.Match[str], glob: str) -> _Part:
    rest, negate = step["set"], bool(step["negate"])
    ranges: list[tuple[str, str]] = []
    while rest:
        is_range = len(rest) >= 3 and rest[1] == "-"
        ranges.append((rest[0], rest[2]) if is_range else (rest[0], rest[0]))
        if ranges[-1][0] > ranges[-1][1]:
            raise ValueError(f"the pattern {glob!r} has a range that runs backwards")
        rest = rest[3:] if is_range else rest[1:]
    # A set never crosses a slash, not even a negated one.
    return _Part(lambda char: char != "/" and any(a <= char <= b for a, b in ranges) is not negate)


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


# --- all globs of a list -------------------------------------------------------------------------


class _State(dict[str, "_State"]):
    """A deterministic state: where each character leads, found out when it first comes.

    positions : the parts that may come next, one bit each;  matches : a glob may end here
    """

    __slots__ = ("automaton", "matches", "positions")

    def __init__(self, automaton: _Automaton, positions: int) -> None:
        super().__init__()
        self.automaton, self.positions = automaton, positions
        self.matches = bool(positions & automaton.ends)

    def __missing__(self, char: str) -> _State:
        return self.automaton.follow(self, char)


class _Automaton:
    """Of several globs: matches what any of them does.

    Position i stands before part i; behind the parts of each glob is one more, its end.
    """

    def __init__(self, globs: Sequence[Sequence[_Part]]) -> None:
        self.parts: list[_Part | None] = []
        self.ends = self._loops = self._skips = first = 0
        for glob in globs:
            first |= 1 << len(self.parts)
            for part in glob:
                self._loops |= part.loops << len(self.parts)
                self._skips |= part.skips << len(self.parts)
                self.parts.append(part)
            self.ends |= 1 << len(self.parts)
            self.parts.append(None)
        self._first = self._reached(first)
        self._forget()

    def matches(self, path: str) -> bool:
        return reduce(getitem, path, self._start).matches

    def _forget(self) -> None:
        self._states: dict[int, _State] = {}
        self._transitions = 0
        self._start = self._state(self._first)

    def _state(self, positions: int) -> _State:
        return self._states.setdefault(positions, _State(self, positions))

    def _reached(self, positions: int) -> int:
        """These and the positions behind what may stand for nothing."""
        while True:
            more = positions | (positions & (self._loops | self._skips)) << 1
            more |= (positions & self._skips) << 3
            if more == positions:
                return positions
            positions = more

    def follow(self, state: _State, char: str) -> _State:
        """Where `char` leads from `state`, which will know it from now on."""
        stay = move = 0
        for number, part in enumerate(self.parts):
            bit = 1 << number
            if part is not None and state.positions & bit and not part.skips and part.takes(char):
                stay |= bit if part.loops else 0
                move |= 0 if part.loops else bit
        if self._transitions >= _MOST_TRANSITIONS:
            for old in self._states.values():
                old.clear()
            self._forget()
        self._transitions += 1
        state[char] = self._state(self._reached(stay | move << 1))
        return state[char]
