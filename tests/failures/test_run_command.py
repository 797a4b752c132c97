"""`monarch run`, `start` and `stop` in shells, pipes and batch systems."""

from __future__ import annotations

import json
import os
import pty
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from subprocess import Popen

import psutil
import pytest
from support.draws import cases, sized
from support.files import Files, check_all
from support.session import Session, wait_until

from monarch_py.storage.tiers import tier_root


@pytest.fixture
def files(tmp_path: Path) -> Files:
    return Files(tmp_path / "source").add_many(5, 3000)


@pytest.fixture
def session(session_factory: Callable[..., Session], files: Files) -> Session:
    return session_factory(files.root)


def daemons(session: Session) -> list[int]:
    """Returns the process IDs of the daemons of this session."""
    found = []
    for process in psutil.process_iter(["pid", "cmdline"]):
        words = process.info["cmdline"] or []
        if str(session.config) in words and "monarch_py.daemon.lifecycle" in " ".join(words):
            found.append(process.info["pid"])
    return found


def assert_nothing_left(session: Session) -> None:
    wait_until(lambda: not daemons(session), what="the daemon's end")
    assert not session.connection.runs()
    assert not session.paths.control.exists()
    assert not tier_root(session.tiers[0]).exists()


STATUSES = {
    "exit 0": 0,
    "exit 3": 3,
    "exit 255": 255,
    "kill -TERM $$": 128 + 15,
    "kill -KILL $$": 128 + 9,
    "kill -SEGV $$": 128 + 11,
}


@pytest.mark.parametrize("script", cases(STATUSES, ["exit 3", "kill -KILL $$"]))
def test_the_commands_status_is_passed_on(session: Session, script: str) -> None:
    status = STATUSES[script]
    done = session.monarch("run", "-q", "--", "sh", "-c", f"echo out; echo err >&2; {script}")
    assert (done.returncode, done.stdout, done.stderr) == (status, "out\n", "err\n")
    assert_nothing_left(session)


# Runs `monarch` with shorter time limits for waits.
IMPATIENT = """
import sys
import monarch_py.ipc.connection, monarch_py.commands.run
monarch_py.ipc.connection.ANSWER_LIMIT_S, monarch_py.commands.run.SILENT_LIMIT_S = 1.0, 0.1
from monarch_py.__main__ import main
main()
"""
SIGNAL_THE_DAEMON = """
import os, sys
from monarch_py.ipc.connection import DaemonConnection
from monarch_py.ipc.session import SessionDir
os.kill(DaemonConnection(SessionDir.of(sys.argv[1])).ask("where")["pid"], int(sys.argv[2]))
"""


@pytest.mark.parametrize(
    ("number", "said"),
    [
        (signal.SIGKILL, "the daemon ended before the command; see `monarch logs`"),
        (
            signal.SIGSTOP,
            "the daemon does not answer within 1 s; it may be suspended (SIGSTOP) or very busy",
        ),
    ],
)
def test_why_there_is_nothing_to_tell_of_the_gain(
    session: Session, number: signal.Signals, said: str
) -> None:
    command = [sys.executable, "-c", SIGNAL_THE_DAEMON, str(session.config), str(int(number))]
    run = [sys.executable, "-c", IMPATIENT, "run", "-c", str(session.config), "--"]
    done = session.run([*run, *command], preload=False)
    assert (done.returncode, done.stdout) == (0, "")
    assert done.stderr == f"monarch: cannot tell what this run gained: {said}\n"
    wait_until(lambda: not daemons(session), what="the daemon's end")


def test_a_command_that_is_not_there(session: Session, tmp_path: Path) -> None:
    done = session.monarch("run", "-q", "--", "no-such-command")
    assert done.returncode == 127
    assert done.stderr == "monarch: no-such-command: command not found\n"
    assert_nothing_left(session)
    plain = tmp_path / "plain.txt"
    plain.write_text("no program")
    done = session.monarch("run", "-q", "--", str(plain))
    assert done.returncode == 126
    assert done.stderr == f"monarch: {plain}: Permission denied\n"
    assert_nothing_left(session)


def test_the_report_says_what_was_gained(session: Session, files: Files, tmp_path: Path) -> None:
    report = tmp_path / "report.json"
    script = (
        "import sys, time\n"
        "for _ in range(50):\n"
        "    for path in sys.argv[1:]: open(path, 'rb').read()\n"
        "    time.sleep(0.02)\n"
        "sys.exit(4)\n"
    )
    paths = [str(files.path(name)) for name in files.digests]
    done = session.monarch("run", "--json", str(report), "--", sys.executable, "-c", script, *paths)
    assert done.returncode == 4
    said = json.loads(report.read_text())
    assert said["exit_status"] == 4
    assert said["totals"]["opens"] == 250
    assert said["totals"]["hits"] > 100
    assert done.stderr.startswith("monarch: 250 opens of dataset files, ")
    assert_nothing_left(session)


# The signal may come before the first `print` has ended. A `print` inside another one fails, so the
# handler writes without it.
TRAPPER = """
import os, signal, sys, time
def end(number, _):
    os.write(1, f"got {signal.Signals(number).name}\\n".encode())
    sys.exit(7)
for name in ("SIGTERM", "SIGHUP", "SIGUSR1", "SIGUSR2"):
    signal.signal(getattr(signal, name), end)
print("ready", flush=True)
time.sleep(60)
"""


SIGNALS = ["SIGTERM", "SIGHUP", "SIGUSR1", "SIGUSR2"]


@pytest.mark.parametrize("name", cases(SIGNALS, ["SIGTERM", "SIGUSR2"]))
def test_signals_of_a_batch_system_reach_the_command(session: Session, name: str) -> None:
    with subprocess.Popen(
        session.command("run", "-q", "--", sys.executable, "-c", TRAPPER),
        env=session.env(preload=False),
        stdout=subprocess.PIPE,
        text=True,
    ) as run:
        assert run.stdout is not None
        assert run.stdout.readline() == "ready\n"
        run.send_signal(getattr(signal, name))
        assert run.stdout.read() == f"got {name}\n"
        assert run.wait(timeout=30) == 7
    assert_nothing_left(session)


def test_ctrl_c_is_the_commands(session: Session) -> None:
    """The terminal sends SIGINT to `monarch run` and to its command. `monarch run` waits for the
    command and ends with the command's status."""
    script = TRAPPER.replace("SIGHUP", "SIGINT")
    with subprocess.Popen(
        session.command("run", "-q", "--", sys.executable, "-c", script),
        env=session.env(preload=False),
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    ) as run:
        assert run.stdout is not None
        assert run.stdout.readline() == "ready\n"
        os.killpg(run.pid, signal.SIGINT)
        assert run.stdout.read() == "got SIGINT\n"
        assert run.wait(timeout=30) == 7
    assert_nothing_left(session)


@pytest.mark.parametrize("delay_s", cases([0.0, 0.1, 0.2, 0.3, 0.4, 0.5, 0.7], [0.1, 0.4]))
def test_a_signal_during_the_start_leaves_no_daemon(session: Session, delay_s: float) -> None:
    with subprocess.Popen(
        session.command("run", "-q", "--", "sleep", "60"),
        env=session.env(preload=False),
        stderr=subprocess.PIPE,
        text=True,
    ) as run:
        time.sleep(delay_s)  # the test tries different moments, so it waits for no event
        run.send_signal(signal.SIGTERM)
        assert run.wait(timeout=30) in (-signal.SIGTERM, 128 + signal.SIGTERM)
        assert run.stderr is not None
        assert "Traceback" not in run.stderr.read()
    try:
        wait_until(lambda: not daemons(session), what="the daemon's end")
    finally:
        for pid in daemons(session):
            os.kill(pid, signal.SIGKILL)
    assert not session.connection.runs()


def test_a_pipeline_ends_with_its_command(session: Session, tmp_path: Path) -> None:
    out = tmp_path / "out.txt"
    words = " ".join(session.command("run", "-q", "--", "echo", "hello"))
    done = subprocess.run(
        ["sh", "-c", f"{words} 2>&1 | tee {out}"],
        env=session.env(preload=False),
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )
    assert (done.stdout, out.read_text()) == ("hello\n", "hello\n")
    assert_nothing_left(session)


def test_a_daemon_that_was_started_holds_no_pipe_and_outlives_its_shell(
    session: Session, files: Files
) -> None:
    words = " ".join(session.command("start"))
    done = subprocess.run(
        ["sh", "-c", f"{words} 2>&1 | cat; wait; kill -HUP 0"],
        env=session.env(preload=False),
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
        start_new_session=True,
    )
    try:
        pid = int(session.status()["pid"])
        assert f"(process {pid})" in done.stdout
        process = psutil.Process(pid)
        assert os.getpgid(pid) == pid
        assert process.terminal() is None
        held = {file.fd: file.path for file in process.open_files()}
        assert not any("pipe" in os.readlink(f"/proc/{pid}/fd/{fd}") for fd in (0, 1, 2))
        assert all(str(session.directory) in path for path in held.values()), held
        assert process.cwd() == "/"
        assert "LD_PRELOAD" not in process.environ()
        session.wait_all_present()
        check_all(session, files)
    finally:
        stopped = session.monarch("stop")
    assert stopped.stdout == f"the daemon has stopped (process {pid})\n"
    wait_until(lambda: not psutil.pid_exists(pid), what="the end of the daemon")
    assert_nothing_left(session)


@contextmanager
def shell_on_a_terminal(session: Session, script: str) -> Iterator[tuple[int, Popen[bytes]]]:
    """Runs a shell that controls a terminal. Yields the other end of this terminal, which the
    caller must close, and the shell."""
    screen, terminal = pty.openpty()
    command = ["setsid", "-c", "sh", "-c", script]
    env = session.env(preload=False)
    with Popen(command, env=env, stdin=terminal, stdout=terminal, stderr=terminal) as shell:
        os.close(terminal)
        try:
            yield screen, shell
        finally:
            shell.kill()


@pytest.mark.parametrize("event", ["Ctrl-C", "hang-up"])
def test_a_daemon_that_was_started_on_a_terminal_outlives_it(session: Session, event: str) -> None:
    """The daemon outlives Ctrl-C and a hang-up of its terminal, but stays in the terminal's
    session, so that the kernel schedules it with the job."""
    script = " ".join(session.command("start")) + "; echo started; exec sleep 600"
    try:
        with shell_on_a_terminal(session, script) as (screen, shell):
            said = b""
            while b"\nstarted" not in said:
                said += os.read(screen, 4096)
            if event == "Ctrl-C":
                os.write(screen, b"\x03")
                shell.wait(30)
            os.close(screen)
            shell.wait(30)
        assert shell.returncode == -(signal.SIGINT if event == "Ctrl-C" else signal.SIGHUP)
        pid = int(session.status()["pid"])
        assert (os.getsid(pid), os.getpgid(pid)) == (shell.pid, pid)
        assert psutil.Process(pid).terminal() is None
    finally:
        session.monarch("stop")
    assert_nothing_left(session)


def test_a_daemon_that_serves_already_is_used_and_left(session: Session, files: Files) -> None:
    assert session.monarch("start").returncode == 0
    try:
        pid = session.status()["pid"]
        done = session.monarch("run", "-q", "--", "sha256sum", str(files.path("f00000")))
        assert done.stdout.startswith(files.digests["f00000"])
        assert session.status()["pid"] == pid
        assert session.totals()["opens"] == 1
    finally:
        assert session.monarch("stop").returncode == 0
    assert_nothing_left(session)


def test_a_run_in_a_run_uses_its_daemon(session: Session, files: Files) -> None:
    inner = session.command("run", "-q", "--", "sha256sum", str(files.path("f00001")))
    done = session.monarch("run", "-q", "--", *inner)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith(files.digests["f00001"])
    assert_nothing_left(session)


def test_libraries_of_others_stay_preloaded(session: Session, tmp_path: Path) -> None:
    compiler = shutil.which("gcc") or shutil.which("cc")
    if compiler is None:
        pytest.skip("no C compiler: install gcc")
    other = tmp_path / "libother.so"
    subprocess.run(
        [compiler, "-shared", "-fPIC", "-o", str(other), "-xc", "-"],
        input="int of_another_library;", text=True, check=True,
    )  # fmt: skip
    done = subprocess.run(
        session.command("run", "-q", "--", "sh", "-c", "echo $LD_PRELOAD; cat /proc/self/maps"),
        env=session.env(preload=False) | {"LD_PRELOAD": str(other)},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
    preload, _, maps = done.stdout.partition("\n")
    assert preload == f"{session.preload}:{other}"
    assert str(other) in maps
    assert str(session.preload) in maps
    assert_nothing_left(session)


def test_a_daemon_that_dies_under_its_job_is_no_harm(session: Session, files: Files) -> None:
    with subprocess.Popen(
        session.command("run", "-q", "--", sys.executable, "-c", TRAPPER),
        env=session.env(preload=False),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as run:
        assert run.stdout is not None
        assert run.stderr is not None
        assert run.stdout.readline() == "ready\n"
        (pid,) = daemons(session)
        os.kill(pid, signal.SIGKILL)
        run.send_signal(signal.SIGTERM)
        assert run.stdout.read() == "got SIGTERM\n"
        assert run.wait(timeout=30) == 7
        assert run.stderr.read() == ""
    wait_until(lambda: not daemons(session), what="the daemon's end")
    check_all(session, files)


def test_runs_at_the_same_time_share_a_daemon_and_the_last_one_ends_it(
    session_factory: Callable[..., Session], tree: Path, tmp_path: Path
) -> None:
    session = session_factory(tree)
    script = f"touch $0.here; until [ -e $0 ]; do sleep 0.02; done; md5sum {tree}/large"
    jobs = []
    count = sized(2, 4)
    for i in range(count):
        words = session.command("run", "-q", "--json", str(tmp_path / f"{i}.json"), "--")
        with (tmp_path / f"{i}.out").open("wb") as out:
            job = subprocess.Popen(
                [*words, "bash", "-c", script, str(tmp_path / f"gate{i}")],
                env=session.env(preload=False),
                stdout=out,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        jobs.append(job)
    try:
        wait_until(lambda: len(list(tmp_path.glob("gate*.here"))) == count, what="all jobs")
        daemon = session.status()["pid"]
        for i, job in enumerate(jobs):
            (tmp_path / f"gate{i}").touch()
            assert job.wait(timeout=60) == 0
    finally:
        for job in jobs:
            if job.poll() is None:
                os.killpg(job.pid, signal.SIGTERM)
                job.wait()
    assert len({(tmp_path / f"{i}.out").read_bytes() for i in range(count)}) == 1
    reports = [json.loads((tmp_path / f"{i}.json").read_text()) for i in range(count)]
    assert {report["pid"] for report in reports} == {daemon}
    wait_until(lambda: not Path(f"/proc/{daemon}").exists(), what="the daemon's end")


@contextmanager
def running(session: Session) -> Iterator[subprocess.Popen[bytes]]:
    """Runs `monarch run` with a command that ends at the end of the block or when it is killed."""
    script = "echo here; cat"
    with subprocess.Popen(
        session.command("run", "-q", "--", "sh", "-c", script),
        env=session.env(preload=False),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    ) as run:
        assert run.stdin is not None
        assert run.stdout is not None
        assert run.stdout.readline() == b"here\n"
        yield run
        run.stdin.close()
        run.wait(timeout=60)


def test_a_run_ends_no_daemon_that_came_after_its_own(session: Session) -> None:
    with running(session):
        assert session.monarch("stop").returncode == 0
        assert session.monarch("start").returncode == 0
        (pid,) = daemons(session)
    try:
        assert session.status()["pid"] == pid
    finally:
        assert session.monarch("stop").returncode == 0
    assert_nothing_left(session)


def test_a_run_ends_no_daemon_for_one_that_was_killed_with_its_daemon(session: Session) -> None:
    with running(session) as run:
        (pid,) = daemons(session)
        run.kill()
        os.kill(pid, signal.SIGKILL)
    wait_until(lambda: not daemons(session), what="the daemon's end")
    assert session.monarch("start").returncode == 0
    try:
        (pid,) = daemons(session)
        assert session.monarch("run", "-q", "--", "true").returncode == 0
        assert session.status()["pid"] == pid
    finally:
        assert session.monarch("stop").returncode == 0
    assert_nothing_left(session)


def test_start_keeps_a_runs_daemon(session: Session) -> None:
    with running(session):
        said = session.monarch("start").stdout
        (pid,) = daemons(session)
        assert said == f"a daemon serves this configuration already (process {pid})\n"
    try:
        assert session.status()["pid"] == pid
    finally:
        assert session.monarch("stop").returncode == 0
    assert_nothing_left(session)


def test_stop_waits_for_no_parent(session: Session) -> None:
    """`monarch stop` does not wait until the daemon's parent has reaped the daemon. In many
    containers, the parent is the first process, which reaps the daemon late or never."""
    session.start()
    done = session.monarch("stop", timeout=30)
    assert (done.returncode, done.stderr) == (0, "")
    assert session.daemon is not None
    assert session.daemon.wait(0) == 0  # only now does the test reap the daemon


def test_what_is_ignored_stays_ignored(session: Session) -> None:
    """If `monarch run` ignores a signal, as it does under nohup, its command also ignores it."""
    show = "import sys; print(open('/proc/self/status').read())"
    done = subprocess.run(
        ["nohup", *session.command("run", "-q", "--", sys.executable, "-c", show)],
        env=session.env(preload=False),
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0
    (ignored,) = [line.split()[1] for line in done.stdout.splitlines() if "SigIgn" in line]
    assert int(ignored, 16) >> (signal.SIGHUP - 1) & 1
    assert_nothing_left(session)


def test_two_starts_at_once_start_one_daemon(session: Session) -> None:
    with ThreadPoolExecutor(4) as executor:
        done = list(executor.map(lambda _: session.monarch("start"), range(4)))
    try:
        assert [(each.returncode, each.stderr) for each in done] == [(0, "")] * 4
        assert len(daemons(session)) == 1
        assert sum("already" in each.stdout for each in done) == 3
    finally:
        assert session.monarch("stop").returncode == 0
    assert_nothing_left(session)


def test_start_tells_of_a_changed_configuration(session: Session) -> None:
    assert session.monarch("start").returncode == 0
    try:
        session.config.write_text(session.config.read_text() + "# another text\n")
        again = session.monarch("start")
        assert again.returncode == 0
        assert again.stderr == (
            f"monarch: warning: {session.config} has changed since its daemon was started; run"
            " `monarch stop` and `monarch start` to apply the change\n"
        )
    finally:
        assert session.monarch("stop").returncode == 0
