"""Tests patterns: which paths they match, which patterns are refused, and whether they match the
same paths as slow reference implementations."""

from __future__ import annotations

import re
import time

import pytest
from config.backtracking import glob_to_regex
from hypothesis import given, settings
from hypothesis import strategies as st
from support.draws import examples

from monarch_py.config import patterns
from monarch_py.config.patterns import PathFilter

MATCHES = [
    ("*.tar", ["a.tar", "x/y/a.tar", ".tar"], ["a.tar.gz", "a.tar/b"]),
    ("train-?", ["train-1", "x/train-1"], ["train-12", "train-/"]),
    ("train/*.tar", ["train/a.tar"], ["train/x/a.tar", "x/train/a.tar", "a.tar"]),
    ("train/**", ["train/a", "train/x/y/a"], ["train", "x/train/a"]),
    ("train/**/*.tar", ["train/a.tar", "train/x/y/a.tar"], ["a.tar", "trainx/a.tar"]),
    ("**/val/*", ["val/a", "x/y/val/a"], ["val/x/a", "xval/a"]),
    ("**/**/a", ["a", "x/a", "x/y/z/a"], ["xa"]),
    ("x**/a", ["x/a", "x1/y/a"], ["xa", "y/x/a"]),
    ("a**b", ["ab", "acb", "x/a-b"], ["a/b"]),
    ("[a-c]1", ["a1", "x/c1"], ["d1", "-1"]),
    ("[!a-c]1", ["d1"], ["a1"]),
    ("x/[!a]b", ["x/cb"], ["x/ab", "x//b"]),
    ("[]-]", ["]", "-"], ["a"]),
    ("[+--]", ["+", ",", "-"], ["b", "."]),
    ("[&&^~|]", ["&", "^", "~"], ["a"]),
    (r"\*\[", ["*["], ["a["]),
    ("a.b", ["a.b"], ["axb"]),
    ("*\n*", ["a\nb"], ["ab"]),
]


@pytest.mark.parametrize(("glob", "meant", "others"), MATCHES)
def test_a_glob_matches(glob: str, meant: list[str], others: list[str]) -> None:
    matches = PathFilter([glob]).matches
    assert [path for path in meant if not matches(path)] == []
    assert [path for path in others if matches(path)] == []


def test_exclude_wins_over_include() -> None:
    chosen = PathFilter(include=["train/**", "*.idx"], exclude=["*.tmp", "train/old/**"])
    paths = ["train/a", "a.idx", "train/a.tmp", "train/old/a", "val/a"]
    assert [path for path in paths if chosen.matches(path)] == ["train/a", "a.idx"]


@pytest.mark.parametrize(
    ("include", "exclude", "trivial"),
    [
        ([], [], True),
        (["a", "**"], [], True),
        (["*"], ["*.tmp"], False),
        (["*.tar"], [], False),
        ([], ["*"], False),
    ],
)
def test_trivial_means_that_everything_matches(
    include: list[str], exclude: list[str], trivial: bool
) -> None:
    assert PathFilter(include, exclude).trivial is trivial


@pytest.mark.parametrize(
    ("glob", "problem"),
    [
        ("", "empty"),
        ("/a", "begins with '/'"),
        ("a/", "directory"),
        ("a//b", "empty part"),
        ("./a", "empty part"),
        ("a/../b", "'..'"),
        ("[a", "unclosed '['"),
        ("[]", "unclosed '['"),
        ("[z-a]", "backwards"),
        ("a\\", "backslash"),
    ],
)
@pytest.mark.parametrize("where", ["include", "exclude"])
def test_a_bad_glob_is_refused(glob: str, problem: str, where: str) -> None:
    with pytest.raises(ValueError, match=re.escape(problem)):
        PathFilter(**{where: ["**", glob]})


def agrees(glob: str, path: str) -> bool:
    """Returns whether a glob of `*`, `?`, `**` and names matches the path. This reference
    implementation is slow: it compares one character at a time."""
    if not glob:
        return not path
    if glob.startswith("**/"):
        below = [path[i + 1 :] for i, char in enumerate(path) if char == "/"]
        return any(agrees(glob[3:], rest) for rest in [path, *below])
    if glob.startswith("**"):
        return any(agrees(glob[2:], path[i:]) for i in range(len(path) + 1))
    if glob.startswith("*"):
        name_end = (path + "/").index("/")
        return any(agrees(glob[1:], path[i:]) for i in range(name_end + 1))
    fits = path[:1] not in ("", "/") if glob[0] == "?" else path[:1] == glob[0]
    return fits and agrees(glob[1:], path[1:])


NAME = st.text("ab.", min_size=1, max_size=3).filter(lambda name: name not in (".", ".."))
PATH = st.lists(NAME, min_size=1, max_size=4).map("/".join)
PART = st.text("ab.*?", min_size=1, max_size=3).filter(
    lambda part: part not in (".", "..") and "**" not in part
)
DEEP_GLOB = st.lists(PART | st.just("**"), min_size=2, max_size=4).map("/".join)


@settings(max_examples=examples(40))
@given(glob=DEEP_GLOB, path=PATH)
def test_globs_with_a_slash_agree_with_the_second_opinion(glob: str, path: str) -> None:
    assert PathFilter([glob]).matches(path) == agrees(glob, path)


@settings(max_examples=examples(40))
@given(glob=PART, path=PATH)
def test_globs_without_a_slash_see_the_base_name_alone(glob: str, path: str) -> None:
    assert PathFilter([glob]).matches(path) == agrees(glob, path.rpartition("/")[2])


@settings(max_examples=examples(40))
@given(include=st.lists(PART, max_size=3), exclude=st.lists(PART, max_size=3), path=PATH)
def test_a_filter_is_the_sum_of_its_globs(
    include: list[str], exclude: list[str], path: str
) -> None:
    def any_of(globs: list[str]) -> bool:
        return any(PathFilter([glob]).matches(path) for glob in globs)

    expected = (not include or any_of(include)) and not any_of(exclude)
    assert PathFilter(include, exclude).matches(path) == expected


@settings(max_examples=examples(40))
@given(path=st.text(min_size=1).map(lambda text: text.replace("/", "_")))
def test_an_escaped_name_matches_itself(path: str) -> None:
    literal = "".join(f"\\{char}" if char in "*?[\\" else char for char in path)
    if literal not in (".", ".."):
        assert PathFilter([literal]).matches(path)
        assert not PathFilter([literal]).matches(path + "x")


# --- no backtracking ----------------------------------------------------------------------------

# All kinds of steps of a glob. They contain only a few different characters, so that random
# paths often match.
STEP = st.sampled_from(
    [
        "a",
        "b",
        "-",
        "*",
        "**",
        "**/",
        "?",
        "[ab]",
        "[!a]",
        "[^b-]",
        "[]a]",
        "[a-c]",
        r"\*",
        r"\a",
        "/",
    ]
)
ANY_GLOB = st.lists(STEP, min_size=1, max_size=7).map("".join)
ANY_PATH = st.lists(st.text("abc-]*.\n", min_size=1, max_size=4), min_size=1, max_size=4).map(
    "/".join
)


def is_refused(glob: str) -> bool:
    try:
        patterns.checked_glob(glob)
    except ValueError:
        return True
    return False


@settings(max_examples=examples(40))
@given(
    globs=st.lists(ANY_GLOB.filter(lambda glob: not is_refused(glob)), min_size=1, max_size=3),
    paths=st.lists(ANY_PATH, min_size=1, max_size=8),
)
def test_it_agrees_with_a_plain_translation(globs: list[str], paths: list[str]) -> None:
    regex = re.compile("|".join(f"(?:{glob_to_regex(glob)})" for glob in globs), re.DOTALL)
    chosen = PathFilter(exclude=globs)
    assert [chosen.matches(path) for path in paths] == [not regex.fullmatch(path) for path in paths]


@pytest.mark.parametrize(
    "glob", ["*a*a*a*a*a*b", "**a**a**a**a/b", "x/**/*a*a*a*a*b", "*?*?*?*?*?*b"]
)
def test_many_stars_over_long_names_take_no_time(glob: str) -> None:
    """Globs with many stars match many long names in less than 2 s. A plain translation into a
    regular expression would need about 200**5 steps for one of these names."""
    chosen = PathFilter([glob])
    names = ["x/" + "a" * 200 + str(number) for number in range(200)]
    began = time.process_time()
    assert not any(chosen.matches(name) for name in names)
    assert time.process_time() - began < 2
