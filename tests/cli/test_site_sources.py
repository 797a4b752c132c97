"""Jobs add their datasets to the daemon of the site's tiers."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Barrier
from unittest import mock

import pytest
from cli.sites import KIB, READ, SiteSession, hits, make_datasets, present
from support.manifests import wait_recorded
from support.session import wait_until

from monarch_py.config.load import load_config
from monarch_py.config.schema import SourceConfig
from monarch_py.ipc import connection
from monarch_py.ipc.connection import DaemonConnection


@pytest.fixture(scope="module", autouse=True)
def old_datasets(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Datasets that are made before the first test, so that their files and directories are old
    when a test uses them. The daemon records the copy of an old file at once, and serves the
    listings of an old directory from the catalog at once."""
    return make_datasets(tmp_path_factory.mktemp("old"))


@pytest.fixture
def old_site(tmp_path: Path, old_datasets: list[Path]) -> Iterator[SiteSession]:
    """A site's session with `old_datasets`, for tests that do not change them."""
    session = SiteSession(tmp_path, old_datasets)
    yield session
    session.stop_all()


def test_a_job_adds_its_dataset_to_the_daemon_of_another(site: SiteSession) -> None:
    assert site.command_line("start", **site.of(0)).returncode == 0
    pid = site.connection.ask("where")["pid"]
    done = site.command_line(
        "run", "--json", str(site.directory / "run.json"), "--", sys.executable, "-c", READ,
        *site.files(1), **site.of(1),
    )  # fmt: skip
    assert (done.returncode, done.stdout) == (0, f"{6 * 40 * KIB}\n"), done.stderr
    site.wait_all_present()
    assert site.connection.ask("where")["pid"] == pid
    assert present(site) == {"one": 6, "two": 6}
    assert len(site.status()["tiers"]) == 1  # both datasets share the tier
    assert hits(site, 0) == hits(site, 1) == 6
    done = site.command_line("start", "--source", str(site.datasets[1]))
    assert (done.returncode, done.stderr) == (0, "")
    assert "source added" not in done.stdout
    done = site.command_line("verify", "--source", **site.of(0))
    assert (done.returncode, done.stdout) == (0, "12 copies checked, 0 damaged, 0 outdated\n")


WAITING = """\
import os, sys
for line in sys.stdin:
    what, name = line.split()
    print(open(name).read(1) if what == "r" else os.listdir(name), flush=True)
"""


def test_a_program_that_runs_already_is_served_too(old_site: SiteSession) -> None:
    """A program that was started before its source was added is served from copies. Its working
    directory is the source, and it names the files by relative paths."""
    site = old_site
    assert site.command_line("start", **site.of(0)).returncode == 0
    program = subprocess.Popen(
        [sys.executable, "-c", WAITING],
        env=site.env(),
        cwd=site.datasets[1],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    with program:
        try:

            def ask(question: str) -> str:
                assert program.stdin is not None
                assert program.stdout is not None
                print(question, file=program.stdin, flush=True)
                return program.stdout.readline()

            assert ask("r a") == "\x01\n"
            done = site.command_line("source", "add", str(site.datasets[1]))
            assert done.stdout == f"{site.datasets[1]}: added\n"
            site.wait_all_present()

            def is_served() -> bool:
                before = int(site.totals()["hits"])
                assert ask("r b") == "\x01\n"
                return bool(site.totals()["hits"] > before)

            wait_until(is_served, what="a hit by a relative name", every=0.2)
            names = f"{os.listdir(site.datasets[1])}\n"

            def is_listed() -> bool:
                before = int(site.totals()["metadata_hits"])
                assert ask("l .") == names
                return bool(site.totals()["metadata_hits"] > before)

            wait_until(is_listed, what="a listing by the catalog", every=0.2)
        finally:
            program.kill()


def test_changes_in_an_added_source_are_seen(site: SiteSession) -> None:
    """One file is open for writing when its source is added, and another file is written later. A
    program reads the new bytes of both files."""
    assert site.command_line("start", **site.of(0)).returncode == 0
    early, late = site.datasets[1] / "a", site.datasets[1] / "b"
    with early.open("r+b") as writer:
        assert site.command_line("source", "add", str(site.datasets[1])).returncode == 0
        wait_until(lambda: site.status()["scanned"], what="the scan")
        site.want_all()
        wait_until(lambda: present(site)["two"] == 5, what="copies of the other files")
        writer.write(b"new")
    site.python("import sys; open(sys.argv[1], 'r+b').write(b'new')", late)
    read = "import sys; print([open(p, 'rb').read(3) for p in sys.argv[1:]])"
    assert site.python(read, early, late) == "[b'new', b'new']\n"


def test_copies_of_an_earlier_session_are_found_again(
    tmp_path: Path, old_datasets: list[Path]
) -> None:
    site = SiteSession(tmp_path, old_datasets, persistent=True)
    try:
        assert site.command_line("start", **site.of(1)).returncode == 0
        site.wait_all_present()
        wait_recorded(site, 6)
        site.stop_all()
        assert site.command_line("start", **site.of(0)).returncode == 0
        assert site.status()["tiers"][0]["foreign"] == 6
        assert site.command_line("source", "add", str(site.datasets[1])).returncode == 0
        wait_until(lambda: present(site)["two"] == 6, what="the earlier copies")
        assert site.status()["tiers"][0]["foreign"] == 0
        assert hits(site, 1) == 6
    finally:
        site.stop_all()


def test_what_cannot_be_added_is_told_in_a_sentence(site: SiteSession) -> None:
    above, below = site.datasets[0], site.datasets[0] / "below"
    below.mkdir()
    assert site.command_line("start", "--source", str(below)).returncode == 0
    done = site.command_line("source", "add", str(above))
    said = f"monarch: {above} cannot be added: {below}, which the daemon serves already, is inside"
    assert done.returncode == 3
    assert done.stderr == f"{said} it; stop the daemon once no job needs it\n"
    done = site.command_line("source", "add", "/no/such/dataset")
    assert done.returncode == 2
    assert done.stderr.startswith(
        "monarch: --source: sources[0]: '/no/such/dataset' cannot be used"
    )


def test_a_part_of_a_dataset_is_served_already(site: SiteSession) -> None:
    assert site.command_line("start", **site.of(0)).returncode == 0
    below = site.datasets[0] / "below"
    below.mkdir()
    done = site.command_line("source", "add", str(below))
    assert (done.returncode, done.stdout) == (0, f"{below}: is served already\n")
    assert site.command_line("start", "--source", str(below)).returncode == 0
    assert present(site).keys() == {"one"}


def test_a_source_that_several_add_at_once_is_added_once(site: SiteSession) -> None:
    assert site.command_line("start", **site.of(0)).returncode == 0
    count, daemon = 8, site.connection
    datasets = [site.directory / f"more{number}" for number in range(10)]
    together = Barrier(count)

    def add(dataset: Path) -> bool:
        words = SourceConfig(dataset, real_path=dataset).words()
        together.wait()
        return bool(daemon.ask("add_source", source=words)["added"])

    with ThreadPoolExecutor(count) as pool:
        for dataset in datasets:
            dataset.mkdir()
            assert sum(pool.map(add, [dataset] * count)) == 1
    assert daemon.ask("where")["sources"] == [str(site.datasets[0]), *map(str, datasets)]


def test_a_source_that_hangs_is_named(site: SiteSession, monkeypatch: pytest.MonkeyPatch) -> None:
    assert site.command_line("start", **site.of(0)).returncode == 0
    pid = int(site.connection.ask("where")["pid"])
    ask = DaemonConnection.ask

    def suspended(self: DaemonConnection, command: str, **arguments: object) -> object:
        if command != "add_source":
            return ask(self, command, **arguments)
        os.kill(pid, signal.SIGSTOP)
        try:
            return ask(self, command, **arguments)
        finally:
            os.kill(pid, signal.SIGCONT)

    monkeypatch.setattr(DaemonConnection, "ask", suspended)
    monkeypatch.setattr(connection, "ANSWER_LIMIT_S", 0.5)
    done = site.command_line("source", "add", str(site.datasets[1]))
    assert done.returncode == 3
    said = f"monarch: {site.datasets[1]} is not added yet: its file system hangs, or the daemon "
    assert done.stderr.startswith(said)
    monkeypatch.undo()


def test_a_path_with_a_dollar_reaches_the_daemon(site: SiteSession) -> None:
    dataset = site.directory / "of$HOME"
    dataset.mkdir()
    done = site.command_line("start", "--source", str(dataset))
    assert (done.returncode, done.stderr) == (0, "")
    assert site.connection.ask("where")["sources"] == [str(dataset)]


def test_a_user_who_names_the_path_alone_gets_what_the_site_says_of_it(site: SiteSession) -> None:
    dataset = site.datasets[0]
    said = f"sources: [{{path: {dataset}, exclude: [a]}}]\n"
    site.config.write_text(site.config.read_text() + said)
    file = site.directory / "job.yaml"
    for text, excluded in ((str(dataset), ["a"]), (f"{{path: {dataset}, exclude: [b]}}", ["b"])):
        file.write_text(f"sources: [{text}]\n")
        with mock.patch.dict(os.environ, site.env(preload=False)):
            assert list(load_config(file).sources[0].exclude) == excluded
