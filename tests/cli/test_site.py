"""One daemon for the jobs of a user: the site's tiers, sources that are added, and who ends it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from threading import Barrier
from unittest import mock

import pytest
import yaml
from cli.conftest import is_running
from support.command_line import run_monarch
from support.manifests import wait_recorded
from support.session import Session, wait_until
from support.watch import open_by

from monarch_py.config.load import load_config
from monarch_py.config.schema import SourceConfig
from monarch_py.errors import SessionError
from monarch_py.ipc import connection
from monarch_py.ipc.connection import DaemonConnection
from monarch_py.ipc.jobs import Jobs
from monarch_py.ipc.session import SessionDir, link_session

KIB = 1024
READ = "import sys; print(sum(len(open(p, 'rb').read()) for p in sys.argv[1:]))"


class SiteSession(Session):
    """The session of a site's configuration, which names no dataset."""

    def __init__(self, root: Path, **tier: object) -> None:
        self.datasets = [root / "one", root / "two"]
        for at, dataset in enumerate(self.datasets):
            dataset.mkdir()
            for name in "abcdef":
                (dataset / name).write_bytes(bytes([at]) * 40 * KIB)
        mount = root / "tier0"
        mount.mkdir()
        tiers = [{"mount_point": mount, "max_storage_quota": "64MiB", **tier}]
        super().__init__(root, self.datasets[0], tiers=tiers)
        site = root / "site.yaml"
        lines = self.config.read_text().splitlines(keepends=True)
        site.write_text("".join(lines[: lines.index("sources:\n")]))
        self.config.unlink()
        self.config = site

    def env(self, preload: bool = True, **more: str) -> dict[str, str]:
        found = {**super().env(preload), "MONARCH_SITE_CONFIG": str(self.config)}
        found.pop("MONARCH_CONFIG", None)
        return {**found, **more}

    def of(self, number: int) -> dict[str, str]:
        return {"MONARCH_SOURCE": str(self.datasets[number])}

    def files(self, number: int) -> list[str]:
        return sorted(map(str, self.datasets[number].iterdir()))

    def command_line(self, *words: str, **environment: str) -> subprocess.CompletedProcess[str]:
        return run_monarch(words, self.env(preload=False, **environment))

    def stop_all(self) -> None:
        if self.connection.runs():
            pid = int(self.connection.ask("where")["pid"])
            self.connection.ask("stop")
            wait_until(lambda: not is_running(pid), what="the daemon's end")


@pytest.fixture
def site(tmp_path: Path) -> Iterator[SiteSession]:
    session = SiteSession(tmp_path)
    yield session
    session.stop_all()


def present(site: Session) -> dict[str, int]:
    return {Path(each["path"]).name: each["present"] for each in site.status()["sources"]}


def hits(site: SiteSession, number: int, **environment: str) -> int:
    """How many files of a dataset a program finds as copies."""
    before = int(site.totals()["hits"])
    said = site.python(READ, *site.files(number), env=environment)
    assert said == f"{6 * 40 * KIB}\n"
    found: int = site.totals()["hits"] - before
    return found


def test_without_a_daemon_commands_mean_the_sites(site: SiteSession) -> None:
    """So that the log of a job that has ended can be read without a file's name."""
    done = site.command_line("logs")
    assert (done.returncode, done.stderr.split(" has left a log")[0]) == (
        3,
        f"monarch: no daemon of {site.config}",
    )
    ran = site.command_line("run", "-q", "--", "true", **site.of(0))
    assert (ran.returncode, ran.stderr) == (0, "")
    assert "the daemon has ended" in site.command_line("logs").stdout
    for command in ("status", "ls", "top", "metrics"):
        done = site.command_line(command)
        assert done.stderr.startswith("monarch: no daemon serves this configuration; start one")


def test_a_first_configuration_leaves_the_tiers_to_the_site(site: SiteSession) -> None:
    file = site.config.with_name("mine.yaml")
    named = site.datasets[0] / ".." / "one"
    done = site.command_line("init", str(named), "-o", str(file))
    assert (done.returncode, done.stderr) == (0, "")
    assert yaml.safe_load(file.read_text()) == {"sources": [str(site.datasets[0])]}
    assert f"# Copies go where the site says: {site.config}\n" in file.read_text()
    assert site.command_line("config", "check", "-c", str(file)).returncode == 0


# --- sources are added ---------------------------------------------------------------------------


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
    assert len(site.status()["tiers"]) == 1  # of which both have a share
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


def test_a_program_that_runs_already_is_served_too(site: SiteSession) -> None:
    """It began before the source was there, below the source, and names its files relatively."""
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
    """One file is open for writing when the source is added, another one is written later."""
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


def test_copies_of_an_earlier_session_are_found_again(tmp_path: Path) -> None:
    site = SiteSession(tmp_path, persistent=True)
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


# --- who shares ----------------------------------------------------------------------------------


def test_users_files_without_tiers_mean_the_sites_session(site: SiteSession) -> None:
    files = [site.directory / "job1.yaml", site.directory / "job2.yaml"]
    for number, file in enumerate(files):
        file.write_text(f"sources: [{site.datasets[number]}]\n")
        done = site.command_line("start", "-c", str(file))
        assert done.returncode == 0, done.stderr
    site.wait_all_present()
    assert present(site) == {"one": 6, "two": 6}
    # The library finds the session by the second file's name, too.
    assert hits(site, 1, MONARCH_CONFIG=str(files[1])) == 6
    for words in (["status", "-c", str(files[1])], ["config", "check", "-c", str(files[0])]):
        assert site.command_line(*words).returncode == 0
    # A file that gets tiers of its own means a session of its own.
    tier = site.directory / "own"
    tier.mkdir()
    text = f"hierarchy:\n- mount_point: {tier}\n  max_storage_quota: 1MiB\n"
    files[1].write_text(files[1].read_text() + text)
    done = site.command_line("run", "-c", str(files[1]), "--", "true")
    assert done.returncode == 0, done.stderr
    assert site.command_line("status", "-c", str(files[1])).returncode == 3
    assert site.connection.runs()
    # And back, once its own daemon has ended.
    assert site.command_line("start", "-c", str(files[1])).returncode == 0
    files[1].write_text(f"sources: [{site.datasets[1]}]\n")
    done = site.command_line("start", "-c", str(files[1]))
    assert (done.returncode, done.stderr.count("still serves")) == (3, 1)
    assert site.command_line("stop", "-c", str(files[1])).returncode == 0
    assert site.command_line("start", "-c", str(files[1])).returncode == 0
    assert hits(site, 1, MONARCH_CONFIG=str(files[1])) == 6


def test_other_settings_than_the_daemons_are_told(site: SiteSession) -> None:
    assert site.command_line("start", **site.of(0)).returncode == 0
    other = site.directory / "job.yaml"
    other.write_text(f"sources: [{site.datasets[0]}]\nprefetch: eager\n")
    done = site.command_line("run", "-q", "-c", str(other), "--", "true")
    said = f"monarch: the daemon that runs was started with other settings than {other} has;"
    assert done.stderr.startswith(said)
    assert done.returncode == 0
    for path in (site.datasets[0], site.datasets[0] / "part"):
        path.mkdir(exist_ok=True)
        other.write_text(f"sources: [{{path: {path}, exclude: [a]}}]\n")
        done = site.command_line("run", "-q", "-c", str(other), "--", "true")
        assert done.stderr.startswith(said)


@contextmanager
def under_run(site: SiteSession, script: str = "", **environment: str) -> Iterator[None]:
    """Has a shell run under `monarch run` meanwhile."""
    script = f"{script or 'cat $MONARCH_SOURCE/a >/dev/null'}; echo reads >&2; read line"
    with subprocess.Popen(
        [sys.executable, "-m", "monarch_py", "run", "-q", "--", "bash", "-c", script],
        env={**site.env(preload=False), **site.of(0), **environment},
        stdin=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as run:
        try:
            assert run.stderr is not None
            while line := run.stderr.readline():
                if line == "reads\n":
                    break
            yield
            run.communicate("\n", timeout=60)
        finally:
            run.kill()
    assert run.returncode == 0


def test_no_job_ends_or_empties_the_daemon_of_another(site: SiteSession) -> None:
    """Job 1 starts and stops it; job 2 runs a command under it meanwhile."""
    one, two = {"MONARCH_JOB": "day-1", **site.of(0)}, {"SLURM_JOB_ID": "98765432", **site.of(1)}
    assert site.command_line("start", **one).returncode == 0
    pid = int(site.connection.ask("where")["pid"])
    script = "cat $0/*; echo reads >&2; read line; cat $0/*"
    command = [sys.executable, "-m", "monarch_py", "run", "-q", "--", "bash", "-c", script]
    with subprocess.Popen(
        [*command, str(site.datasets[1])],
        env=site.env(preload=False, **two),
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    ) as job:
        try:
            assert job.stderr is not None
            assert job.stderr.readline() == "reads\n"
            done = site.command_line("clear", **one)
            assert done.returncode == 3
            assert done.stderr.startswith(
                "monarch: the copies stay, because job 98765432 uses it too; "
            )
            done = site.command_line("stop", **one)
            assert done.stdout.startswith("the daemon stays, because job 98765432 uses it too; ")
            assert (done.returncode, is_running(pid)) == (0, True)
            job.communicate("\n", timeout=60)
        finally:
            job.kill()
    assert job.returncode == 0
    wait_until(lambda: not is_running(pid), what="the end by the last one who uses it")


def test_a_job_that_has_ended_holds_no_daemon(
    site: SiteSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert site.command_line("start", MONARCH_JOB="night-1", **site.of(0)).returncode == 0
    done = site.command_line("stop", MONARCH_JOB="night-2")
    assert done.stdout.startswith("the daemon stays, because job night-1 uses it too; ")
    note = site.paths.path / "jobs" / "night-1"
    os.utime(note, (0, 0))  # it was noted long ago, and no process of it is left
    done = site.command_line("stop", MONARCH_JOB="night-2")
    assert done.stdout.startswith("the daemon has stopped ")
    assert not note.exists()


def test_a_run_leaves_the_daemon_to_a_job_that_has_started_after_it(site: SiteSession) -> None:
    """Job A starts and stops it; B runs a command meanwhile, and C says `start`, then stops it."""
    a, b, c = ({"MONARCH_JOB": name, **site.of(0)} for name in "ABC")
    assert site.command_line("start", **a).returncode == 0
    pid = int(site.connection.ask("where")["pid"])
    with under_run(site, **b):
        assert site.command_line("start", **c).returncode == 0
        done = site.command_line("stop", **a)
        assert done.stdout.startswith("the daemon stays, because jobs B, C use it too; ")
    assert is_running(pid)  # the run of B has ended
    assert site.command_line("stop", **c).returncode == 0
    wait_until(lambda: not is_running(pid), what="the end of the daemon")


def test_a_daemon_that_is_left_to_a_program_ends_with_it(
    site: SiteSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert site.command_line("start", MONARCH_JOB="A", **site.of(0)).returncode == 0
    pid = int(site.connection.ask("where")["pid"])
    with subprocess.Popen(
        ["cat", site.files(0)[0], "-"],
        env={**site.env(), **site.of(0), "MONARCH_JOB": "B"},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    ) as program:
        assert program.stdout is not None
        assert program.stdout.read(40 * KIB)
        done = site.command_line("stop", MONARCH_JOB="A")
        assert done.stdout.startswith("the daemon stays, because job B uses it too; ")
        program.communicate(timeout=60)
    wait_until(lambda: not is_running(pid), what="the end of the daemon")


def test_no_job_starts_while_another_one_stops_the_daemon(
    site: SiteSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Job B starts between A's look at the jobs and the daemon's end."""
    assert site.command_line("start", MONARCH_JOB="A", **site.of(0)).returncode == 0
    look, started = Jobs.others, []

    def others(jobs: Jobs) -> list[str]:
        found = look(jobs)
        started.append(
            subprocess.Popen(
                [sys.executable, "-m", "monarch_py", "start"],
                env=site.env(preload=False, MONARCH_JOB="B", **site.of(0)),
                stdout=subprocess.DEVNULL,
            )
        )
        turn = str(site.paths.path / "turn")
        wait_until(lambda: turn in open_by(started[0].pid), what="B's wait for its turn")
        return found

    monkeypatch.setattr(Jobs, "others", others)
    try:
        done = site.command_line("stop", MONARCH_JOB="A")
    finally:
        codes = [process.wait(60) for process in started]
    assert done.stdout.startswith("the daemon has stopped ")
    assert codes == [0]
    assert site.connection.runs()


def test_a_run_counts_before_its_command_reads(site: SiteSession) -> None:
    assert site.command_line("start", MONARCH_JOB="A", **site.of(0)).returncode == 0
    script = "exec env -u LD_PRELOAD bash -c 'echo reads >&2; read line'"
    with under_run(site, script, MONARCH_JOB="B"):
        done = site.command_line("stop", MONARCH_JOB="A")
        assert done.stdout.startswith("the daemon stays, because job B uses it too; ")


@pytest.mark.parametrize(
    ("job", "element"), [("LSB_JOBID", "LSB_JOBINDEX"), ("JOB_ID", "SGE_TASK_ID")]
)
def test_elements_of_an_array_are_jobs(site: SiteSession, job: str, element: str) -> None:
    for number in "12":
        assert (
            site.command_line("start", **{job: "77", element: number}, **site.of(0)).returncode == 0
        )
    done = site.command_line("stop", **{job: "77", element: "1"})
    assert done.stdout.startswith("the daemon stays, because job 77.2 uses it too; ")


def test_jobs_outside_a_container_keep_their_daemon(site: SiteSession) -> None:
    """A command in another PID namespace cannot see them."""
    apart = ["unshare", "--fork", "--pid", "--mount-proc"]
    if subprocess.run([*apart, "true"], check=False).returncode:
        pytest.skip("needs root, or the right to make PID namespaces")
    assert site.command_line("start", MONARCH_JOB="A", **site.of(0)).returncode == 0
    note = site.paths.path / "jobs" / "A"
    with under_run(site, MONARCH_JOB="A"):
        os.utime(note, (0, 0))
        for words in (["stop"], ["clear"]):
            done = subprocess.run(
                [*apart, sys.executable, "-m", "monarch_py", *words, "-c", str(site.config)],
                env=site.env(preload=False, MONARCH_JOB="Z", **site.of(0)),
                capture_output=True,
                text=True,
                check=False,
            )
            assert done.returncode == 3
            assert done.stderr.startswith("monarch: the daemon runs outside this container")
        assert note.exists()
        assert site.connection.runs()


# --- what a user is told -------------------------------------------------------------------------


def test_a_wrong_configuration_is_told_before_the_training_starts(site: SiteSession) -> None:
    ran = site.directory / "ran"
    for more, said in (
        ({}, "monarch: no dataset is named, and "),
        ({"MONARCH_SOURCE": "/pfs/nothing"}, "monarch: MONARCH_SOURCE: sources[0]: "),
        ({"MONARCH_SITE_CONFIG": "/no/site.yaml"}, "monarch: /no/site.yaml: the site's conf"),
    ):
        done = site.command_line("run", "--", "touch", str(ran), **more)
        assert (done.returncode, done.stderr.count("\n"), ran.exists()) == (2, 1, False)
        assert done.stderr.startswith(said)
        assert "; " in done.stderr


def test_the_sites_module_alone_is_silent(site: SiteSession) -> None:
    """Whoever names a dataset is told that no daemon serves; who has only the module is not."""
    assert site.run(["true"]).stderr == ""
    said = site.run(["true"], env=site.of(0)).stderr
    assert said.startswith(f"monarch: no daemon serves {site.config}; all reads go to the source.")


def test_the_session_of_a_link_is_that_of_the_site(
    site: SiteSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MONARCH_SHM", str(site.shm))
    file = site.directory / "job.yaml"
    file.write_text(f"sources: [{site.datasets[0]}]\n")
    assert site.command_line("config", "check", "-c", str(file)).returncode == 0
    assert SessionDir.of(file).path != site.paths.path
    assert site.command_line("run", "-q", "-c", str(file), "--", "true").returncode == 0
    assert SessionDir.of(file).path == site.paths.path
    done = site.command_line("sweep", "--stop")
    assert (done.returncode, done.stderr) == (0, "")
    assert not site.paths.path.parent.exists()


def test_the_copies_of_a_killed_daemon_are_known_until_they_are_removed(
    site: SiteSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MONARCH_SHM", str(site.shm))
    tier, file = site.directory / "own", site.directory / "job.yaml"
    tier.mkdir()
    said = f"sources: [{site.datasets[0]}]\n"
    file.write_text(f"{said}hierarchy:\n- mount_point: {tier}\n  max_storage_quota: 1MiB\n")
    for words in (["start", "-c", str(file)], ["warm", "-c", str(file)]):
        done = site.command_line(*words)
        assert done.returncode == 0, done.stderr
    session = SessionDir.of(file)
    pid = int(DaemonConnection(session).ask("where")["pid"])
    os.kill(pid, signal.SIGKILL)
    wait_until(lambda: not is_running(pid), what="the daemon's end")
    file.write_text(said)  # it takes the site's tiers now
    assert site.command_line("config", "check", "-c", str(file)).returncode == 0
    assert session.control.exists()
    with pytest.raises(SessionError, match="has left copies in them; remove them with `monarch s"):
        link_session(file, site.config)
    done = site.command_line("start", "-c", str(file))
    assert (done.returncode, done.stderr) == (0, "")
    assert [*tier.iterdir()] == []
    assert SessionDir.of(file).path == site.paths.path
