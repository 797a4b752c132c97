"""Copies made from a pack: which parts of the pack are read, and which files count as its
members."""

from __future__ import annotations

import errno
import json
import os
import random
import resource
import signal
import subprocess
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from support import users
from support.draws import cases, sized
from support.files import Files, age, check_all, random_bytes
from support.session import Session, wait_until
from support.users import ALICE

from monarch_py.config.schema import SourceConfig
from monarch_py.daemon.copies.packs import Packs
from monarch_py.demo.slowsource import SlowSource
from monarch_py.native import ffi
from monarch_py.packs.index import PackIndex, index_path
from monarch_py.packs.tar import write_pack

Factory = Callable[..., Session]
SMALL = 5000


class Site:
    """A source, and beside it a tar archive of the same files.

    `alter` gives a file new content but leaves its size and mtime as they were. The content of a
    copy then shows whether the copy was made from the file or from the pack, which has the old
    content. A well-behaved program does not change files in this way.
    """

    def __init__(self, root: Path) -> None:
        self.files = Files(root / "data")
        self.pack = root / "train.tar"

    def source(self) -> dict[str, str]:
        return {"path": str(self.files.root), "pack": str(self.pack)}

    def write_pack(self) -> None:
        age(self.files.root)
        write_pack(self.files.root, self.pack)

    def alter(self, names: Sequence[str], *, later_ns: int = 0) -> None:
        """Gives files new content, and an mtime that is later by `later_ns`."""
        for name in names:
            path = self.files.path(name)
            old = path.stat()
            path.write_bytes(random_bytes(old.st_size, ("altered", name)))
            os.utime(path, ns=(old.st_atime_ns, old.st_mtime_ns + later_ns))

    def original(self, name: str) -> bytes:
        size = self.files.path(name).stat().st_size
        return random_bytes(size, (name, 0))


def small_site(root: Path) -> Site:
    site = Site(root)
    for number in range(60):
        site.files.add(f"{number % 3}/f{number:02d}", SMALL + number)
    site.files.add("empty", 0)
    site.files.add("large", 300_000)
    site.write_pack()
    return site


@pytest.fixture
def site(tmp_path: Path) -> Site:
    return small_site(tmp_path)


def names(site: Site) -> list[str]:
    return sorted(name for name in site.files.digests if "/" in name)


def warm(session: Session, *words: str) -> None:
    done = session.monarch("warm", *words)
    assert (done.returncode, done.stderr) == (0, ""), done


def copies(session: Session, site: Site) -> dict[str, bytes]:
    """Returns the content of each small file as a program reads it. Each read must be served by a
    copy."""
    script = "import sys\nfor p in sys.argv[1:]: sys.stdout.buffer.write(open(p, 'rb').read())"
    before = session.totals()["hits"]
    paths = [site.files.path(name) for name in names(site)]
    ours = session.directory / "ours"
    session.run(["sh", "-c", f'exec "$@" > {ours}', "sh", "python3", "-IS", "-c", script, *paths])
    assert session.totals()["hits"] - before == len(paths)
    content, found = ours.read_bytes(), {}
    for name in names(site):
        size = site.files.path(name).stat().st_size
        found[name], content = content[:size], content[size:]
    assert not content
    return found


def from_pack(session: Session, site: Site) -> list[str]:
    """Returns the names of the files whose copies have the pack's content. Every other copy must
    have the content that its file has now."""
    found = copies(session, site)
    for name, content in found.items():
        assert content in (site.original(name), site.files.path(name).read_bytes()), name
    return [name for name in names(site) if found[name] == site.original(name)]


# --- what counts ---------------------------------------------------------------------------------


def test_small_files_are_filled_from_the_pack(session_factory: Factory, site: Site) -> None:
    site.alter(names(site))
    session = session_factory([site.source()], prefetch="none").start()
    warm(session)
    assert from_pack(session, site) == names(site)
    done = session.monarch("verify")
    assert (done.returncode, done.stdout) == (0, "62 copies checked, 0 damaged\n")
    totals = session.totals()
    assert totals["bytes_from_peers"] == 0


def test_all_files_are_what_they_were(session_factory: Factory, site: Site) -> None:
    session = session_factory([site.source()], prefetch="eager").start()
    session.wait_idle()
    check_all(session, site.files)
    done = session.monarch("verify", "--source")
    assert done.returncode == 0, done.stdout


def test_a_file_of_another_time_is_read_itself(session_factory: Factory, site: Site) -> None:
    changed = names(site)[::7]
    for number, name in enumerate(changed):
        site.alter([name], later_ns=[1, 1_000, 2_000_000_000, -1][number % 4])
    session = session_factory([site.source()], prefetch="none").start()
    warm(session)
    assert set(from_pack(session, site)) == set(names(site)) - set(changed)


def test_a_file_of_another_size_a_new_one_and_a_renamed_one_are_read(
    session_factory: Factory, site: Site
) -> None:
    first, second, third = names(site)[:3]
    when = site.files.path(first).stat().st_mtime_ns
    os.utime(site.files.add(first, SMALL + 1000, version=1), ns=(when, when))
    site.files.add("0/new", SMALL)
    site.files.path(second).rename(site.files.root / "1/renamed")
    site.files.digests["1/renamed"] = site.files.digests.pop(second)
    site.files.path(third).unlink()
    del site.files.digests[third]
    session = session_factory([site.source()], prefetch="none").start()
    warm(session)
    check_all(session, site.files)


def test_a_reader_that_waits_gets_its_file_from_the_pack(
    session_factory: Factory, site: Site
) -> None:
    """The daemon fills every opened file from the pack, alone or together with its neighbours."""
    site.alter(names(site))
    session = session_factory([site.source()], prefetch="on_demand", handover_size="0").start()
    session.wait_scanned()
    session.want_all()
    session.wait_idle()
    assert from_pack(session, site) == names(site)


@pytest.mark.parametrize("prefetch", cases(["on_demand", "auto"], short=["auto"]))
def test_what_a_program_reads_while_copies_are_made_is_right(
    session_factory: Factory, site: Site, prefetch: str
) -> None:
    session = session_factory([site.source()], prefetch=prefetch).start()
    session.wait_scanned()
    check_all(session, site.files)
    session.wait_idle()
    check_all(session, site.files)


def test_two_sources_with_a_pack_each(session_factory: Factory, tmp_path: Path) -> None:
    sites = [Site(tmp_path / part) for part in "ab"]
    for site in sites:
        for number in range(30):
            site.files.add(f"{number % 2}/f{number}", SMALL + len(str(site.pack)))
        site.write_pack()
        site.alter(names(site))
    session = session_factory([site.source() for site in sites], prefetch="none").start()
    warm(session)
    for site in sites:
        assert from_pack(session, site) == names(site)


open_place = pytest.fixture(users.open_place)


def test_a_file_that_is_closed_to_the_daemons_user_is_no_member(
    session_factory: Factory, open_place: Path
) -> None:
    """A user with more rights than the daemon's user has made the pack, so the pack contains files
    that the daemon's user may not read. The daemon does not copy these files from the pack."""
    site, group, place = Site(open_place), 65532, open_place / "session"
    rights = {
        "own": (ALICE, 0, 0o400), "group": (0, group, 0o640), "all": (0, 0, 0o644),
        "closed": (0, 0, 0o600), "others": (0, 65531, 0o640), "not_own": (ALICE, 0, 0o044),
    }  # fmt: skip
    for name, (owner, owners, mode) in rights.items():
        path = site.files.add(name, SMALL)
        os.chown(path, owner, owners)
        path.chmod(mode)
    age(site.files.root)
    write_pack(site.files.root, site.pack)
    site.pack.chmod(0o644)
    place.mkdir()
    session = session_factory([site.source()], directory=place, prefetch="eager")
    for path in (place, place / "tier0", place / "shm"):
        os.chown(path, ALICE, ALICE)
    python, env = users.python_for_all(), users.environment(session)

    def monarch(*words: str) -> list[str]:
        return users.as_user(ALICE, python, *session.command(*words)[1:], groups=[group])

    def told() -> dict[str, Any]:
        said = subprocess.run(
            monarch("status", "--json"), env=env, capture_output=True, check=False
        )
        found: dict[str, Any] = {} if said.returncode else json.loads(said.stdout)["sources"][0]
        return found

    with subprocess.Popen(monarch("serve"), env=env) as daemon:
        try:
            wait_until(lambda: told().get("bypass", {}).get("failed") == 3, what="the end")
            assert told()["present"] == 3
        finally:
            daemon.terminate()


# --- a pack that is of no use --------------------------------------------------------------------


def overwrite(pack: Path) -> None:
    pack.write_bytes(random_bytes(pack.stat().st_size, "overwritten"))


def replace(pack: Path) -> None:
    other = pack.with_name("other.tar")
    other.write_bytes(random_bytes(pack.stat().st_size, "replaced"))
    os.replace(other, pack)


def cut(pack: Path) -> None:
    os.truncate(pack, pack.stat().st_size // 2)


def touch(pack: Path) -> None:
    os.utime(pack)


def test_packs_that_change_are_not_read_any_more(session_factory: Factory, tmp_path: Path) -> None:
    changes = [overwrite, replace, cut, touch]
    sites = [small_site(tmp_path / change.__name__) for change in changes]
    session = session_factory([site.source() for site in sites], prefetch="none").start()
    session.wait_scanned()
    for site, change in zip(sites, changes, strict=True):
        change(site.pack)
    warm(session)
    sentences = [f"{site.pack}: files are read one by one: it has changed" for site in sites]
    wait_until(lambda: all(each in session.log.read_text() for each in sentences), what="warnings")
    for site in sites:
        check_all(session, site.files)
    assert session.log.read_text().count("one by one") == len(sites)


def damage(pack: Path) -> None:
    index = index_path(pack)
    index.write_bytes(index.read_bytes()[:-1000])


def test_packs_that_do_not_fit_their_index_are_left_alone(
    session_factory: Factory, tmp_path: Path
) -> None:
    changes = [overwrite, damage]
    sites = [small_site(tmp_path / change.__name__) for change in changes]
    for site, change in zip(sites, changes, strict=True):
        change(site.pack)
    session = session_factory([site.source() for site in sites], prefetch="none").start()
    warm(session)
    said = session.log.read_text()
    for site in sites:
        check_all(session, site.files)
        assert str(site.pack) in said
    assert said.count("the pack is not used, and files are read one by one") == len(sites)


def test_the_sentence_of_an_error_of_the_engine_names_the_pack(
    site: Site, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An error in the engine is logged with the pack's path. Here the engine cannot duplicate the
    pack's descriptor, because only one descriptor is free."""
    index = PackIndex.load(site.pack)
    monkeypatch.setattr(PackIndex, "load", lambda _: index)
    next_free = os.dup(0)
    os.close(next_free)
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (next_free + 1, before[1]))
    try:
        Packs(ffi.NULL).add(0, SourceConfig(path=site.files.root, pack=site.pack))
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)
    assert f"Too many open files: '{site.pack}'" in caplog.text


# --- what the source is asked for ----------------------------------------------------------------


@pytest.fixture
def slow_site(slow_factory: Callable[..., SlowSource]) -> tuple[SlowSource, Site]:
    slow = slow_factory()
    site = Site(slow.backing)
    for number in range(400):
        site.files.add(f"{number % 4}/f{number:03d}", 4096)
    site.write_pack()
    seen = Site(slow.mountpoint)
    seen.files.digests = site.files.digests
    return slow, seen


def listed(session: Session, paths: Sequence[Path]) -> str:
    chosen = session.directory / "list"
    chosen.write_text("".join(f"{path}\n" for path in paths))
    return str(chosen)


def asked(slow: SlowSource) -> dict[str, Any]:
    return {kind: slow.counts()[kind] for kind in ("open", "read", "bytes_read")}


def test_one_read_brings_many_files_in_any_order(
    session_factory: Factory, slow_site: tuple[SlowSource, Site]
) -> None:
    slow, site = slow_site
    session = session_factory([site.source()], prefetch="none").start()
    session.wait_scanned()
    chosen = [site.files.path(name) for name in names(site)]
    random.Random(1).shuffle(chosen)
    slow.reset()
    warm(session, "--from-file", listed(session, chosen))
    counts = asked(slow)
    assert counts["open"] == 0
    # The pack has 1.8 MB, and a request reads at most 128 KiB.
    assert counts["read"] <= 30
    assert 400 * 4096 <= counts["bytes_read"] <= 1.2 * site.pack.stat().st_size
    check_all(session, site.files)


def test_little_is_read_in_vain_for_a_few_files(
    session_factory: Factory, slow_site: tuple[SlowSource, Site]
) -> None:
    slow, site = slow_site
    session = session_factory([site.source()], prefetch="none").start()
    session.wait_scanned()
    chosen = [site.files.path(name) for name in names(site)[::40]]
    slow.reset()
    warm(session, "--from-file", listed(session, chosen))
    counts = asked(slow)
    assert counts["open"] == 0
    # The ten files lie far from each other in the pack. For each of them, at most three pages are
    # read.
    assert counts["read"] <= 20
    assert counts["bytes_read"] <= 10 * 3 * 4096


def test_no_window_is_read_twice_when_there_are_too_many(
    session_factory: Factory, slow_factory: Callable[..., SlowSource]
) -> None:
    """The daemon reads a pack in parts (windows). No window is read twice, even if files are opened
    in random order and the daemon has begun more windows than it can keep."""
    slow, size = slow_factory(), 64 << 10
    site = Site(slow.backing)
    site.files.add_many(sized(700, 1000), size)
    site.write_pack()
    site.files.root, site.pack = slow.mountpoint / "data", slow.mountpoint / "train.tar"
    session = session_factory([site.source()], prefetch="on_demand", handover_size="0").start()
    session.wait_scanned()
    paths = [str(site.files.path(name)) for name in site.files.digests]
    random.Random(1).shuffle(paths)
    slow.latency(read=0.0005)
    slow.reset()
    opens = "import os, sys\nfor path in open(sys.argv[1]): os.close(os.open(path[:-1], 0))"
    chosen = listed(session, [Path(path) for path in paths])
    assert session.run(["python3", "-IS", "-c", opens, chosen]).returncode == 0
    session.wait_idle()
    assert asked(slow)["bytes_read"] <= 1.2 * len(paths) * size


def test_a_pack_is_read_again_after_an_error_and_its_change_is_told(
    session_factory: Factory, slow_site: tuple[SlowSource, Site]
) -> None:
    slow, site = slow_site
    session = session_factory([site.source()], prefetch="none").start()
    session.wait_scanned()
    slow.fail(errno.EIO)
    first, *others = names(site)
    assert session.monarch("warm", str(site.files.path(first))).returncode == 1
    slow.fail(0)

    def opens() -> int:
        session.monarch("clear")
        wait_until(lambda: session.status()["tiers"][0]["files"] == 0, what="an empty tier")
        slow.reset()
        warm(session, *(str(site.files.path(name)) for name in others[:20]))
        return int(slow.counts()["open"])

    # For ten seconds after an error, the daemon reads the files themselves instead of the pack.
    failed_at = time.monotonic()
    assert opens() == 20
    wait_until(
        lambda: time.monotonic() - failed_at > 9.5, what="nearly all of the ten seconds", every=0.1
    )
    wait_until(lambda: opens() == 0, timeout=60, what="a read of the pack", every=0.3)
    touch(site.pack)
    assert opens() == 20

    def told() -> list[str]:
        lines = session.log.read_text().splitlines()
        return [line.rpartition(": ")[2] for line in lines if "one by one" in line]

    said = ["Input/output error", "it has changed"]
    wait_until(lambda: told() == said, what="the two sentences")


def test_files_come_when_the_pack_cannot_be_read(
    session_factory: Factory, site: Site, slow_factory: Callable[..., SlowSource]
) -> None:
    """If the pack cannot be read, copies are made from the files. The pack is on a file system that
    fails after the daemon's start; the files are on another file system."""
    slow = slow_factory()
    for path in (site.pack, index_path(site.pack)):
        target = slow.backing / path.name
        target.write_bytes(path.read_bytes())
        os.utime(target, ns=(path.stat().st_atime_ns, path.stat().st_mtime_ns))
    site.pack = slow.mountpoint / site.pack.name
    session = session_factory([site.source()], prefetch="none").start()
    session.wait_scanned()
    slow.fail(errno.EIO)
    warm(session)
    slow.fail(0)
    check_all(session, site.files)
    assert "files are read one by one: Input/output error" in session.log.read_text()


def test_a_window_counts_with_all_its_bytes(
    session_factory: Factory, slow_site: tuple[SlowSource, Site]
) -> None:
    """The daemon reads a pack in parts (windows). All bytes of a window count against `bandwidth`.
    So all windows of the pack (1.8 MB) except the first have to wait."""
    _, site = slow_site
    rate = 1.5e6
    limits = {"bandwidth": rate}
    session = session_factory([site.source()], prefetch="none", source_limits=limits).start()
    session.wait_scanned()
    began = time.monotonic()
    warm(session)
    assert time.monotonic() - began > 0.9 * (site.pack.stat().st_size - 2**20) / rate
    check_all(session, site.files)


def test_a_command_that_is_interrupted_leaves_the_rest_to_the_next_one(
    session_factory: Factory, slow_site: tuple[SlowSource, Site]
) -> None:
    slow, site = slow_site
    session = session_factory([site.source()], prefetch="none", shared_tpool_size=1).start()
    session.wait_scanned()
    # Reads are so slow that the daemon cannot finish the command's orders before the signal
    # arrives, even on a busy machine.
    slow.latency(read=2)
    command = subprocess.Popen(session.command("warm"), env=session.env(preload=False))
    try:
        wait_until(lambda: session.status()["pending"] > 0, what="orders")
        command.send_signal(signal.SIGINT)
        assert command.wait(30) == 130
    finally:
        command.kill()
        command.wait()
    slow.latency(read=0)
    warm(session)
    check_all(session, site.files)
