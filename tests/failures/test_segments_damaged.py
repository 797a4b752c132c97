"""If a session's segments are damaged, clients do not use them, and the next daemon can still
start."""

from __future__ import annotations

import os
import shutil
import signal
from collections.abc import Callable
from pathlib import Path

import pytest
from support.draws import sized
from support.files import READ_ALL, Files, check_all
from support.session import Session
from support.watch import settle

from monarch_py.native import ffi


@pytest.fixture
def files(tmp_path: Path) -> Files:
    return Files(tmp_path / "source").add_many(6, 4000)


@pytest.fixture
def abandoned(session_factory: Callable[..., Session], files: Files) -> Session:
    """Returns a session whose daemon was killed, so that only clients use the segments."""
    session = session_factory(files.root).start()
    settle(session)
    check_all(session, files)
    session.kill()
    check_all(session, files)
    return session


def put(path: Path, at: int, data: bytes) -> None:
    with path.open("r+b") as file:
        file.seek(at)
        file.write(data)


def catalog_of(session: Session) -> Path:
    return next(session.paths.path.glob("catalog.*"))


def control_cut(session: Session) -> None:
    os.truncate(session.paths.control, 100)


def control_empty(session: Session) -> None:
    os.truncate(session.paths.control, 0)


def control_garbage(session: Session) -> None:
    path = session.paths.control
    path.write_bytes(os.urandom(path.stat().st_size))


def control_of_another_program(session: Session) -> None:
    put(session.paths.control, 0, b"\0" * 8)


def control_counts(session: Session) -> None:
    for field in ("sources", "tiers"):
        put(session.paths.control, ffi.offsetof("struct monarch_control", field), b"\xff" * 4)


def control_lengths(session: Session) -> None:
    """Makes the length of a tier's path larger than the buffer for the paths of copies."""
    at = ffi.offsetof("struct monarch_control", "tier")
    at += ffi.offsetof("struct monarch_tier", "path_len")
    put(session.paths.control, at, b"\xff\xff\xff\x7f")


def control_open_to_others(session: Session) -> None:
    session.paths.control.chmod(0o644)


def control_of_another_user(session: Session) -> None:
    if os.geteuid() != 0:
        pytest.skip("only root may give a file away: run the tests as root")
    os.chown(session.paths.control, 65534, 65534)


def control_a_link(session: Session) -> None:
    path = session.paths.control
    path.rename(path.with_name("elsewhere"))
    path.symlink_to("elsewhere")


def control_a_fifo(session: Session) -> None:
    session.paths.control.unlink()
    os.mkfifo(session.paths.control, 0o600)


def clients_gone(session: Session) -> None:
    session.paths.clients.unlink()


def clients_cut(session: Session) -> None:
    os.truncate(session.paths.clients, 4096)


def clients_garbage(session: Session) -> None:
    put(session.paths.clients, 0, os.urandom(4096))


def catalog_gone(session: Session) -> None:
    catalog_of(session).unlink()


def catalog_cut(session: Session) -> None:
    os.truncate(catalog_of(session), 4096)


def catalog_garbage(session: Session) -> None:
    path = catalog_of(session)
    path.write_bytes(os.urandom(path.stat().st_size))


def catalog_zeros(session: Session) -> None:
    path = catalog_of(session)
    path.write_bytes(bytes(path.stat().st_size))


def catalog_offsets(session: Session) -> None:
    """Overwrites the catalog's header except for the magic number and the size at its start."""
    at = ffi.offsetof("struct monarch_catalog", "capacity")
    put(catalog_of(session), at, os.urandom(ffi.sizeof("struct monarch_catalog") - at))


def directory_gone(session: Session) -> None:
    shutil.rmtree(session.paths.path)


DAMAGES = [
    control_cut,
    control_empty,
    control_garbage,
    control_of_another_program,
    control_counts,
    control_lengths,
    control_open_to_others,
    control_a_link,
    control_a_fifo,
    control_of_another_user,
    clients_gone,
    clients_cut,
    clients_garbage,
    catalog_gone,
    catalog_cut,
    catalog_garbage,
    catalog_zeros,
    catalog_offsets,
    directory_gone,
]


# One kind of damage for each check that a client or the next daemon makes.
EACH_CHECK = [
    control_cut,
    control_garbage,
    control_lengths,
    control_open_to_others,
    control_a_link,
    control_a_fifo,
    clients_gone,
    clients_cut,
    catalog_cut,
    catalog_garbage,
    catalog_offsets,
    directory_gone,
]


@pytest.mark.parametrize("kind", ["control", "clients", "catalog", "directory"])
def test_damaged_segments_harm_nobody(abandoned: Session, files: Files, kind: str) -> None:
    """After each kind of damage to segments, programs still read the right bytes, and the next
    daemon serves programs. The test then kills this daemon, and does the next damage to its
    segments."""
    plain = abandoned.run([*READ_ALL, str(files.root)], preload=False)
    damages = [damage for damage in sized(EACH_CHECK, DAMAGES) if damage.__name__.startswith(kind)]
    assert damages
    for damage in damages:
        damage(abandoned)
        found = abandoned.run([*READ_ALL, str(files.root)])
        assert (found.returncode, found.stdout) == (0, plain.stdout), damage.__name__
        assert found.stderr.count("\n") <= 1, damage.__name__
        abandoned.start()
        settle(abandoned)
        hits = abandoned.totals()["hits"]
        check_all(abandoned, files)
        assert abandoned.totals()["hits"] == hits + 6, damage.__name__
        abandoned.kill()


def test_a_daemon_whose_clients_were_zeroed_ends(
    session_factory: Callable[..., Session], files: Files
) -> None:
    """A daemon ends in order even if its clients segment was overwritten with zeros. This segment
    counts the sleeping threads, which the daemon has to wake when it ends."""
    session = session_factory(files.root).start()
    session.wait_scanned()
    check_all(session, files)
    session.wait_idle()
    assert session.daemon is not None
    with session.paths.clients.open("r+b") as clients:
        clients.write(bytes(session.paths.clients.stat().st_size))
    session.daemon.send_signal(signal.SIGTERM)
    assert session.daemon.wait(timeout=30) == 0
