"""The documentation agrees with the code, as far as a program can check it."""

from __future__ import annotations

import io
import re
import tokenize
from pathlib import Path

import pytest
from support import files_table

import monarch_py
from monarch_py.config.schema import SYSTEM_SWITCH_FILE

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", ROOT / "CHANGELOG.md", *sorted((ROOT / "docs").glob("*.md"))]


def anchors(page: Path) -> set[str]:
    """Returns the anchors of a page's headings: in lower case, without punctuation, with dashes for
    spaces."""
    headings = re.findall(r"^#+ (.*)$", page.read_text(), re.M)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_link_leads_somewhere(page: Path) -> None:
    text = re.sub(r"^```.*?^```", "", page.read_text(), flags=re.M | re.S)
    for target in re.findall(r"\]\(([^)\s]+)\)", text):
        name, _, anchor = target.partition("#")
        assert "://" not in name, f"{target}: pages must not link to the web"
        there = page.parent / name if name else page
        assert there.exists(), target
        assert not anchor or anchor in anchors(there), target


def test_transparency_lists_what_is_interposed() -> None:
    header = (ROOT / "csrc/preload/process/calls.h").read_text()
    calls = re.findall(r"^ +X\((\w+), ", header, re.M)
    sources = [path.read_text() for path in sorted((ROOT / "csrc/preload/calls").glob("*.c"))]
    twins = re.findall(r"^TWIN\((\w+), \w+\)", "\n".join(sources), re.M)
    assert len(calls) > 50
    assert len(twins) > 10
    page = (ROOT / "docs" / "transparency.md").read_text()
    table = page.partition("## Interposed functions")[2].partition("\n- ")[0].partition("|---|")[2]
    listed = re.findall(r"`(\w+)`", table)
    assert sorted(listed) == sorted(set(calls) | set(twins))


def test_the_tests_of_the_traps_exist() -> None:
    page = (ROOT / "docs" / "contributing.md").read_text()
    named = set(re.findall(r"`(test_\w+)`", page.partition("### Traps")[2]))
    files = (ROOT / "tests").rglob("test_*.py")
    written = {name for file in files for name in re.findall(r"def (test_\w+)", file.read_text())}
    assert len(named) > 30
    assert named <= written


def test_the_walkthroughs_name_functions_where_they_are() -> None:
    rows = re.findall(
        r"^\| .* \| `(\S+)` \| (.*) \|$", (ROOT / "docs/walkthrough.md").read_text(), re.M
    )
    assert len(rows) > 25
    for file, functions in rows:
        define = r"(?:def|class) %s\b" if file.endswith(".py") else r"^\w.*\b%s\("
        code = (ROOT / file).read_text()
        for name in re.findall(r"`(\w+)`", functions):
            assert re.search(define % name, code, re.M), f"{file} has no {name}"


def test_the_scale_of_many_nodes_counts_messages_as_they_are() -> None:
    wire = (ROOT / "csrc" / "peers" / "wire.h").read_text()
    sizes = dict(re.findall(r"sizeof\(struct monarch_peer_(\w+)\) == (\d+)", wire))
    request, frame = int(sizes["request"]), int(sizes["frame"])
    said = f"({request} bytes) and its answer's three frames ({frame} each, {3 * frame})"
    assert said in (ROOT / "docs" / "scale.md").read_text()


def test_the_changelog_begins_with_this_version() -> None:
    first = re.search(r"^## (\d\S*)", (ROOT / "CHANGELOG.md").read_text(), re.M)
    assert first is not None
    assert first[1] == monarch_py.__version__


def test_the_version_is_written_twice_and_the_same() -> None:
    found = re.search(r'^version = "(.*)"$', (ROOT / "pyproject.toml").read_text(), re.M)
    assert found is not None
    assert found[1] == monarch_py.__version__


def test_the_readmes_install_command_names_extras_that_exist() -> None:
    found = re.search(r"pip install -e '\.\[([\w,]+)\]'", (ROOT / "README.md").read_text())
    assert found is not None
    project = (ROOT / "pyproject.toml").read_text()
    table = project.partition("[project.optional-dependencies]")[2].partition("\n[")[0]
    assert set(found[1].split(",")) <= set(re.findall(r"^(\w+) = \[", table, re.M))


def test_the_administrators_switch_is_where_the_page_says() -> None:
    assert f"touch {SYSTEM_SWITCH_FILE} " in (ROOT / "docs" / "administrators.md").read_text()


@pytest.fixture(scope="module")
def rows() -> dict[str, list[tuple[str, str]]]:
    return files_table.rows()


def test_the_table_of_files_is_what_the_files_say(
    rows: dict[str, list[tuple[str, str]]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(files_table, "rows", lambda: rows)
    assert files_table.PAGE.read_text() == files_table.page(), (
        "write it anew: PYTHONPATH=tests python -m support.files_table"
    )


def test_every_file_says_what_it_is(rows: dict[str, list[tuple[str, str]]]) -> None:
    silent = [
        f"{folder}/{name}"
        for folder, files in rows.items()
        for name, sentence in files
        if not sentence
    ]
    assert silent == []


# Names that must not be used again. The words in use are in docs/architecture.md.
RETIRED = {
    "Ahead", "Card", "Chosen", "Client", "Course", "Follower", "Here", "Holdings", "Homes", "Keeps",
    "KeepsAll", "Neighbours", "Placing", "Teller", "Told", "Unmet", "Wanted", "Way",
}  # fmt: skip


def test_names_that_were_given_up_do_not_come_back() -> None:
    found = []
    for path in (ROOT / "monarch_py").rglob("*.py"):
        text = path.read_text()
        if RETIRED.isdisjoint(re.findall(r"\w+", text)):
            continue
        tokens = tokenize.generate_tokens(io.StringIO(text).readline)
        names = {token.string for token in tokens if token.type == tokenize.NAME}
        found += [f"{path}: {name}" for name in sorted(names & RETIRED)]
    for page in (ROOT / "docs").glob("*.md"):
        said = " ".join(re.findall(r"`([^`\n]+)`", page.read_text()))
        found += [f"{page}: {name}" for name in sorted(set(re.findall(r"\w+", said)) & RETIRED)]
    assert found == []


# Names of C code that were given up and must not come back: RETIRED_IN_C lists complete names, and
# RETIRED_WORDS_IN_C lists words that no name may contain.
RETIRED_IN_C = {"TRACK_HELD", "monarch_held", "monarch_track_hold", "wait_held", "way", "ways"}
RETIRED_WORDS_IN_C = {"turn", "turns", "companion", "companions"}


def test_c_names_that_were_given_up_do_not_come_back() -> None:
    found = []
    for path in [*(ROOT / "csrc").rglob("*.[ch]"), *(ROOT / "tests/interleavings").glob("*.[ch]")]:
        code = re.sub(r'/\*.*?\*/|"(?:[^"\\\n]|\\.)*"', " ", path.read_text(), flags=re.S)
        for name in sorted(set(re.findall(r"[A-Za-z_]\w+", code))):
            if name in RETIRED_IN_C or RETIRED_WORDS_IN_C & set(name.lower().split("_")):
                found.append(f"{path}: {name}")
    assert found == []
