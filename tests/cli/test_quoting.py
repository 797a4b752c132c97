"""Names with control characters are quoted in output for people, and unchanged in output for
programs."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from cli.conftest import Factory

from monarch_py.util.quoting import quoted

NAMES = [
    "two\nlines",
    "\x1b[31mred",
    "tab\tand'quote\\",
    "nel\x85",
    "sep\u2028\u2029",
    "$'x'",
    "\x7f",
]
PLAIN = ["a b", "it's", "back\\slash", "ü", "日本", "$x", "[bold]"]


def test_bash_reads_what_is_quoted() -> None:
    words = " ".join(map(quoted, NAMES))
    done = subprocess.run(
        ["bash", "-c", f"printf '%s\\0' {words}"],
        env={"LC_ALL": "C.UTF-8"},
        capture_output=True,
        check=True,
    )
    assert done.stdout.decode().split("\0")[:-1] == NAMES
    assert all(quoted(name).isprintable() for name in NAMES)


@pytest.mark.parametrize("name", PLAIN)
def test_plain_names_stay(name: str) -> None:
    assert quoted(name) == name


def test_commands_quote_names(session_factory: Factory, tmp_path: Path) -> None:
    source = tmp_path / "data"
    source.mkdir()
    for name in (*NAMES, *PLAIN):
        (source / name).write_bytes(b"content")
    session = session_factory(source, prefetch="none").start()
    session.wait_scanned()
    paths = [str(source / name) for name in (*NAMES, *PLAIN)]

    lines = session.monarch("ls").stdout.split("\n")[:-1]
    assert {line[line.index("/data/") :] for line in lines} == {
        quoted(path)[quoted(path).index("/data/") :] for path in paths
    }
    assert all(line.isprintable() for line in lines)
    assert {each["path"] for each in json.loads(session.monarch("ls", "--json").stdout)} == set(
        paths
    )
    asked = session.monarch("ls", str(source / "no\nfile"))
    assert f"monarch: $'{source}/no\\nfile': " in asked.stderr

    hold = "import sys; open('/proc/self/comm', 'w').write('my\\njob '); print(flush=True)"
    hold += "; kept = [open(path) for path in sys.argv[1:]]; print(flush=True); sys.stdin.read()"
    with subprocess.Popen(
        [sys.executable, "-c", hold, *paths],
        env=session.env(preload=False),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        assert process.stdout.read(2) == b"\n\n"
        shown = session.monarch("status", "--open").stdout
        rows = json.loads(session.monarch("status", "--open", "--json").stdout)["open"]
        process.stdin.close()
    assert {(row["path"], row["command"]) for row in rows} == {(p, "my\njob ") for p in paths}
    below = shown.partition("Open files\n")[2].split("\n")[1:-1]
    assert len(below) == len(paths)
    assert all(line.isprintable() for line in below)
    assert all(f"{quoted(path)} " in shown for path in paths)
    assert shown.count("$'my\\njob '") == len(paths)
