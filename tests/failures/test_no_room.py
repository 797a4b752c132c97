"""A process has too little address space for the segments of a daemon. Even so, the files that it
changes are recorded as changed, so that no process reads their old copies."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from support.files import Files
from support.session import Session, wait_until
from support.steps import Steps
from support.watch import assert_quiet, settle

COUNT, SIZE = 20, 3000
# An address space [bytes] that suffices for a shell and the library, but not for a session's
# segments.
LITTLE = 9_000_000
# A program that runs in steps. In its first step, before a new daemon starts, it limits its address
# space to the size that it already uses. In each further step, it makes the change that the test
# names.
CHANGE = """
import resource
root, word = sys.argv[1], step()
with open("/proc/self/statm") as file:
    size = int(file.read().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (size, size))
word = step()
while word:
    kind, name = word.split(":")
    if kind == "rewrite":
        fd = os.open(root + "/" + name, os.O_WRONLY)
        os.write(fd, b"rewritten")
        os.close(fd)
    else:
        os.rename(root + "/" + name, root + "/" + name + ".old")
        os.rename(root + "/" + name + ".new", root + "/" + name)
    word = step()
"""
FIRST = "import sys; print(open(sys.argv[1], 'rb').read(9).decode('latin-1'))"


def first_bytes(session: Session, path: Path) -> str:
    return session.python(FIRST, path).strip()


@pytest.fixture(scope="module")
def trees(tmp_path_factory: pytest.TempPathFactory) -> list[Files]:
    """Returns two trees of old files, one for each test. The first also has two directories."""
    place = tmp_path_factory.mktemp("no_room")
    made = [Files(place / name).add_many(COUNT, SIZE) for name in ("first", "second")]
    for directory, text in (("d", b"first one"), ("d.new", b"second on")):
        (made[0].root / directory).mkdir()
        (made[0].root / directory / "file").write_bytes(text * 100)
    for files in made:
        files.wait_until_old()
    return made


def test_a_process_without_room_for_a_new_daemon(
    session_factory: Callable[..., Session], trees: list[Files]
) -> None:
    files = trees[0]
    session = session_factory(files.root, prefetch="eager").start()
    settle(session)
    name = sorted(files.digests)[0]
    with Steps(session, CHANGE, files.root) as process:
        process.wait()
        process.go()
        process.wait()
        session.stop()
        session.start()
        assert settle(session) == {"present": COUNT + 2}
        assert first_bytes(session, files.root / "d" / "file") == "first one"
        process.go(f"rewrite:{name}")
        process.wait()
        assert first_bytes(session, files.path(name)) == "rewritten"
        # The daemon has marked only this file as changed.
        wait_until(
            lambda: settle(session) == {"present": COUNT + 1, "changed": 1}, what="a changed file"
        )
        process.go("rename:d")
        process.wait()
        assert first_bytes(session, files.root / "d" / "file") == "second on"
        maps = Path(f"/proc/{process.process.pid}/maps").read_text()
        # The process has mapped no segment of the new daemon. In `maps`, the lines of the old
        # daemon's segments end with "(deleted)".
        assert f"{session.paths.clients}\n" not in maps
    assert_quiet(session)


def test_a_process_that_starts_without_room(
    session_factory: Callable[..., Session], trees: list[Files]
) -> None:
    files = trees[1]
    session = session_factory(files.root, prefetch="eager").start()
    assert settle(session) == {"present": COUNT}
    changed = files.path(sorted(files.digests)[0])
    done = session.run(
        [
            "prlimit",
            f"--as={LITTLE}",
            "sh",
            "-c",
            f"printf rewritten > {changed}; cat /proc/$$/maps",
        ]
    )
    assert done.returncode == 0
    assert "libmonarch" in done.stdout
    assert str(session.paths.clients) not in done.stdout
    assert "this process cannot map the segments of the daemon" in done.stderr
    assert first_bytes(session, changed) == "rewritten"
    wait_until(
        lambda: settle(session) == {"present": COUNT - 1, "changed": 1}, what="a changed file"
    )
