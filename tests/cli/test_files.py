"""`monarch ls`, `monarch evict` and `monarch warm --dry-run`."""

from __future__ import annotations

import json
import signal
from pathlib import Path

import pytest
from cli.conftest import FILES, Factory
from cli.warming import NO_DAEMON, present, warm
from support.session import Session, wait_until

from monarch_py.commands.files import NamedFiles
from monarch_py.commands.warm import Warm
from monarch_py.errors import SessionError


@pytest.fixture
def session(session_factory: Factory, source: Path) -> Session:
    """A session whose daemon copies only the files that `monarch warm` names."""
    return session_factory(source, prefetch="none").start()


def listed(session: Session, *words: str | Path) -> list[dict[str, object]]:
    done = session.monarch("ls", "--json", *map(str, words))
    found: list[dict[str, object]] = json.loads(done.stdout)
    return found


def test_where_files_are(session: Session, source: Path) -> None:
    warm(session, source / "b")
    tier = session.status()["tiers"][0]["mount_point"]
    found = {each["path"]: (each["where"], each["why"], each["size"]) for each in listed(session)}
    assert found == {
        str(source / name): (tier if name == "b" else "source", "", size)
        for name, size in FILES.items()
    }
    assert [each["path"] for each in listed(session, source / "d")] == [str(source / "d" / "c")]


def test_evict_frees_the_room_and_the_source_serves(session: Session, source: Path) -> None:
    warm(session)
    done = session.monarch("evict", str(source / "a"), str(source / "d"))
    assert (done.returncode, done.stdout) == (0, "2 copies (68.4 KiB) dropped\n")
    wait_until(lambda: session.status()["tiers"][0]["files"] == 1, what="the room comes back")
    read = "print(len(open(__import__('sys').argv[1]).read()))"
    assert session.python(read, source / "a") == f"{FILES['a']}\n"
    assert [each["where"] for each in listed(session, source / "a")] == ["source"]
    warm(session, source / "a")
    assert present(session) == 2


def test_a_dry_run_copies_nothing(session: Session, source: Path) -> None:
    warm(session, source / "b")
    done = warm(session, "--dry-run")
    said = "2 files (68.4 KiB) would be filled, 1 (19.5 KiB) already there\n"
    assert (done.returncode, done.stdout, done.stderr) == (0, said, "")
    assert present(session) == 1


def test_a_dry_run_tells_what_has_no_room(
    session_factory: Factory, source: Path, tmp_path: Path
) -> None:
    tier = tmp_path / "tier"
    tier.mkdir()
    tiers = [{"mount_point": tier, "max_storage_quota": "32KiB"}]
    session = session_factory(source, prefetch="none", tiers=tiers).start()
    done = warm(session, "--dry-run", source / "a")
    assert done.returncode == 0
    said = "1 file (68.4 KiB) would be filled, 0 (0 B) already there; the tiers have room for "
    assert done.stdout.startswith(said)


def test_an_interrupted_dry_run_says_so(session: Session, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(_run: Warm, _show: object, *, wait: bool) -> None:
        signal.raise_signal(signal.SIGINT)

    monkeypatch.setattr(Warm, "run", interrupted)
    done = warm(session, "--dry-run")
    said = "interrupted; nothing was copied\n"
    assert (done.returncode, done.stdout, done.stderr) == (130, said, "")


def test_no_copy_of_another_daemon_is_dropped(session: Session) -> None:
    """If a new daemon has replaced the daemon that listed the files, `evict` drops no copies,
    because the new daemon may number the files differently."""
    warm(session)
    named = NamedFiles(session.paths, None)
    session.stop()
    session.start()
    with pytest.raises(SessionError, match="the daemon was replaced by another one"):
        named.evict()


@pytest.mark.parametrize("command", ["ls", "evict"])
def test_it_tells_that_the_scan_goes_on(
    session: Session, source: Path, monkeypatch: pytest.MonkeyPatch, command: str
) -> None:
    monkeypatch.setattr(NamedFiles, "scanned", False)
    done = session.monarch(command, str(source))
    assert "the sources are still being listed: more files may be found\n" in done.stderr


def test_what_stands_for_no_file(session: Session, source: Path) -> None:
    for command in ("ls", "evict"):
        done = session.monarch(command, str(source / "none"))
        assert done.returncode == 1
        assert f"{source / 'none'}: No such file or directory; check the spelling" in done.stderr


def test_without_a_daemon(session_factory: Factory, source: Path) -> None:
    done = session_factory(source).monarch("ls")
    assert (done.returncode, done.stderr) == (3, NO_DAEMON)
