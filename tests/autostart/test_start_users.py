"""Tests of users other than root, and of programs with rights that their user does not have."""

from __future__ import annotations

import os
import struct
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from autostart.started import Started, installed, started
from csrc.building import build_program
from support import users
from support.files import Files, digest
from support.session import Session, wait_until
from support.users import ALICE, AlicesSession, as_user, install_for_all

from monarch_py.native import LIBRARY

HERE = Path(__file__).parent
# A struct vfs_cap_data that makes CAP_DAC_READ_SEARCH effective.
CAPABILITY = struct.pack("<5I", 0x02000001, 1 << 2, 0, 0, 0)

open_place = pytest.fixture(users.open_place)


@pytest.fixture
def alices(open_place: Path) -> Iterator[Started]:
    """Yields a session of the user Alice. All users may write to the session's shared memory and
    tier."""
    as_user(ALICE)  # skips the test if no program can run as Alice

    def make() -> Session:
        place, mount = open_place / "session", open_place / "local"
        for directory in (place, mount):
            directory.mkdir()
        mount.chmod(0o1777)
        tiers = [{"mount_point": mount, "max_storage_quota": 1 << 20}]
        session = AlicesSession(
            place, open_place / "source", tiers=tiers, autostart=True, idle_exit="2s"
        )
        session.shm.chmod(0o1777)
        return session

    Files(open_place / "source").add_many(2, 3000)
    yield from started(make)


def as_site(session: Session) -> dict[str, str]:
    """Turns the session's configuration into a site's configuration, which names no source. Returns
    the environment of a user who names the source in MONARCH_SOURCE."""
    lines = session.config.read_text().splitlines(keepends=True)
    at = lines.index("sources:\n")
    session.config.write_text("".join(lines[:at] + lines[at + 2 :]))
    return {
        "MONARCH_SITE_CONFIG": str(session.config),
        "MONARCH_SOURCE": str(session.source),
        "MONARCH_CONFIG": "",
    }


def test_an_ordinary_user_is_served_with_the_tiers_of_the_site(
    alices: Started, open_place: Path
) -> None:
    install_for_all(open_place / "prefix")
    session, file = alices.session, open_place / "source/f00001"
    expected = digest(file.read_bytes())
    env = as_site(session)
    (session.preload,) = (open_place / "prefix").glob(f"lib/*/*/monarch_py/{LIBRARY.name}")

    def run(*words: str | Path) -> str:
        done = alices.run(*words, prefix=as_user(ALICE), env=env)
        assert (done.returncode, done.stderr) == (0, ""), alices.said()
        return done.stdout

    script = f'exec 9<{file}; unset LD_PRELOAD; readlink /proc/self/fd/9; sha256sum "$0"'

    def is_served() -> bool:
        name, said = run("sh", "-c", script, file).splitlines()
        assert said.startswith(expected)
        return name.startswith(str(session.tiers[0]))

    wait_until(is_served, timeout=60, what="a read from the copy", every=0.2)
    (daemon,) = alices.daemons()
    assert set(daemon.uids()) == set(daemon.gids()) == {ALICE}
    assert alices.starts() == 1
    assert {each.name for each in session.shm.iterdir()} == {f"monarch-{ALICE}"}
    wait_until(alices.is_gone, what="the end of the idle daemon")
    assert "no process has used it for 2 s" in alices.said()
    left = {path.name for path in session.paths.path.iterdir()}
    assert left == {"autostart", "log", "starts", "stopped", "turn", "users"}
    assert not [path for path in session.tiers[0].rglob("*") if path.is_file()]


# How a program gets rights that its user does not have. "none" is for comparison: this program has
# only its user's rights.
RIGHTS = ["none", "set-uid", "capability"]
PROGRAMS = [(how, rights) for how in ("linked", "loads") for rights in RIGHTS]


def built(site: Started, place: Path, how: str) -> tuple[Path, Path]:
    """Builds the program. Makes an installation with a copy of the library and a fake Python
    interpreter. Returns the paths of the program and of the library."""
    interpreter = installed(site, place, "/gone/bin/python3.99", "python3.99")
    library = site.session.preload
    for path in (*interpreter.parents, *library.parents):
        if path.is_relative_to(place):
            path.chmod(0o755)
    linked = ["-DUSE_LINKED", "-Wl,--no-as-needed", f"-L{library.parent}", f"-l:{library.name}"]
    flags = [*linked, f"-Wl,-rpath,{library.parent}"] if how == "linked" else ["-ldl"]
    return build_program(place / "program", HERE / "secure.c", flags=flags), library


def sessions(site: Started) -> list[Path]:
    """Returns the session directories that starters have made. Searches MONARCH_SHM and also
    /dev/shm, because the library may have to ignore MONARCH_SHM."""
    name = site.session.paths.path.name
    return [
        found for top in (site.session.shm, Path("/dev/shm")) for found in top.glob(f"*/{name}")
    ]


def said_by(site: Started, *words: str | Path) -> tuple[int, int, int]:
    """Runs the program as Alice. Returns what the program prints: AT_SECURE, whether the library is
    mapped, and how many bytes the program has read."""
    env = site.session.env(False, MONARCH_CONFIG=str(site.session.config), MONARCH_AUTOSTART="1")
    ids = [f"--reuid={ALICE}", f"--regid={ALICE}", "--clear-groups"]
    command = ["setpriv", *ids, *map(str, words)]
    done = subprocess.run(command, env=env, capture_output=True, text=True, check=True, timeout=60)
    secure, has_library, count = map(int, done.stdout.split())
    return secure, has_library, count


@pytest.mark.parametrize(("how", "rights"), PROGRAMS)
def test_a_program_with_other_rights_than_its_users_starts_nothing(
    alices: Started, open_place: Path, rights: str, how: str
) -> None:
    program, library = built(alices, open_place, how)
    if rights == "set-uid":
        program.chmod(0o4755)
    elif rights == "capability":
        os.setxattr(program, "security.capability", CAPABILITY)
    is_secure = int(rights != "none")
    for name in ("f00000", "f00001"):
        said = said_by(alices, program, open_place / "source" / name, library)
        assert said == (is_secure, 1, 3000)
    if is_secure:
        assert sessions(alices) == []
    else:
        wait_until(lambda: "it is broken" in alices.said(), what="the start")


def run_as(site: Started, place: Path, how: str, uid: int) -> None:
    """Runs a program as root. First, the program makes `uid` its effective user ID. If it is not
    linked with the library, it then loads the library with dlopen. Finally, it reads a file through
    the library. The program keeps root's capabilities, so the library can notice the change of the
    user only by the user ID."""
    program, library = built(site, place, how)
    env = site.session.env(False, MONARCH_CONFIG=str(site.session.config))
    keep = ["setpriv", "--securebits", "+no_setuid_fixup"]
    words = [*keep, str(program), str(place / "source/f00001"), str(library), str(uid)]
    done = subprocess.run(words, env=env, capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout == "0 1 3000\n"


@pytest.mark.parametrize("how", ["linked", "loads"])
def test_a_program_that_takes_another_user_starts_nothing(
    alices: Started, open_place: Path, how: str
) -> None:
    run_as(alices, open_place, how, ALICE)
    assert sessions(alices) == []


@pytest.mark.parametrize("how", ["linked", "loads"])
def test_a_program_that_takes_its_own_user_starts_a_daemon(
    alices: Started, open_place: Path, how: str
) -> None:
    run_as(alices, open_place, how, os.geteuid())
    wait_until(lambda: sessions(alices), what="the start")
