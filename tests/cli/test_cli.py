"""The output and the exit statuses of the commands."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from cli.conftest import FILES, Factory, Monarch
from cli.sites import is_running
from support import users
from support.draws import cases
from support.session import MIB, Session, wait_until

import monarch_py
from monarch_py.util.processes import Identity
from monarch_py.util.units import format_size

open_place = pytest.fixture(users.open_place)

COMMANDS = [
    *(
        "advise",
        "calibrate",
        "clear",
        "config",
        "demo",
        "doctor",
        "env",
        "evict",
        "init",
        "logs",
        "ls",
        "metrics",
        "module",
        "pack",
        "plan",
        "report",
        "run",
        "serve",
        "simulate",
        "source",
        "start",
        "status",
        "stop",
        "sweep",
        "top",
        "verify",
        "warm",
    ),
]
NO_DAEMON = "monarch: no daemon serves this configuration; start one with `monarch start`\n"
NOTHING_TO_STOP = "monarch: no daemon serves this configuration, so there is nothing to stop\n"


def copies(session: Session) -> list[Path]:
    return sorted(session.tiers[0].glob("monarch-*/c/*"))


# --- texts --------------------------------------------------------------------------------------


def test_the_version_is_that_of_the_package(monarch: Monarch) -> None:
    assert monarch("--version").stdout == f"monarch, version {monarch_py.__version__}\n"


def test_help_names_every_command(monarch: Monarch) -> None:
    done = monarch("--help")
    assert done.returncode == 0
    listed = done.stdout.partition("Commands:\n")[2].splitlines()
    assert [line.split()[0] for line in listed] == COMMANDS


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_explains_itself(monarch: Monarch, command: str) -> None:
    long, short = monarch(command, "--help"), monarch(command, "-h")
    assert long.returncode == 0
    assert long.stdout == short.stdout
    assert long.stdout.startswith(f"Usage: monarch {command} ")


def test_an_unknown_command_is_refused(monarch: Monarch) -> None:
    done = monarch("stage")
    assert done.returncode == 2
    assert done.stderr == "monarch: unknown command 'stage'; did you mean 'start'?\n"


@pytest.mark.parametrize(
    ("words", "hint"),
    [
        (["statsu"], "unknown command 'statsu'; did you mean 'status'?"),
        (["frobnicate"], "unknown command 'frobnicate'; see `monarch --help`"),
        (["help", "strat"], "unknown command 'strat'; did you mean 'start'?"),
        (["plan", "maek"], "no such command 'maek'; did you mean 'make'?"),
        (["run", "--quite", "--", "true"], "no such option '--quite'; did you mean '--quiet'?"),
        (["run"], "missing argument 'COMMAND...'; see `monarch run --help`"),
        (["module"], "give either --tcl or --lua; see `monarch module --help`"),
        (["module", "--tcl", "--lua"], "give either --tcl or --lua; see `monarch module --help`"),
        (
            ["logs", "-n", "x"],
            "invalid value for '-n' / '--lines': 'x' is not a whole number; see `monarch logs"
            " --help`",
        ),
        (
            ["top", "-d", "x"],
            "invalid value for '-d' / '--delay': 'x' is not a number; see `monarch top --help`",
        ),
        (
            ["simulate"],
            "no scenario is named; `monarch simulate --list` shows those that come with Monarch,"
            " and `monarch calibrate -c tiers.yaml -o mine.yaml` writes one for this machine",
        ),
    ],
)
def test_mistakes_in_the_words_are_one_sentence_with_what_is_meant(
    monarch: Monarch, words: list[str], hint: str
) -> None:
    done = monarch(*words, MONARCH_CONFIG="/dev/null")
    assert (done.returncode, done.stdout, done.stderr) == (2, "", f"monarch: {hint}\n")


def test_help_is_a_command_too(monarch: Monarch) -> None:
    assert monarch("help").stdout == monarch("--help").stdout
    assert monarch("help", "run").stdout == monarch("run", "--help").stdout


def test_the_summaries_of_the_commands_fit(monarch: Monarch) -> None:
    for words in (["--help"], ["plan", "--help"], ["advise", "--help"], ["config", "--help"]):
        text = monarch(*words, COLUMNS="80").stdout
        assert "..." not in text.partition("Commands:")[2]
        assert max(map(len, text.splitlines())) <= 80


# --- output that cannot be written ----------------------------------------------------------------


@pytest.mark.parametrize("words", [["doctor"], ["--help"], ["env"]])
def test_a_full_disk_below_the_output_is_one_sentence(words: list[str]) -> None:
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(
            [sys.executable, "-m", "monarch_py", *words],
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            timeout=60,
            check=False,
        )
    sentence = "monarch: the output could not be written (No space left on device)\n"
    assert (done.returncode, done.stderr) == (1, sentence)


def test_a_full_disk_below_the_messages_leaves_the_status(session: Session) -> None:
    words = [sys.executable, "-m", "monarch_py", "run", "-c", str(session.config), "sh", "-c"]
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(
            [*words, "exit 7"], env=session.env(preload=False), stderr=full, timeout=60, check=False
        )
    assert done.returncode == 7


# --- configurations that cannot work ------------------------------------------------------------


@pytest.mark.parametrize("command", ["run", "start", "serve", "verify", "clear"])
def test_a_configuration_error_is_one_line_and_status_2(
    monarch: Monarch, tmp_path: Path, command: str
) -> None:
    config = tmp_path / "tiers.yaml"
    config.write_text("sources:\n- /nowhere/at/all\nhierarchy: []\n")
    words = ["true"] if command == "run" else []
    done = monarch(command, "-c", str(config), *words)
    assert done.returncode == 2
    assert done.stdout == ""
    assert done.stderr.count("\n") == 1
    assert done.stderr.startswith(f"monarch: {config}:")


@pytest.mark.parametrize(
    "command", ["start", "stop", "status", "logs", "verify", "clear", "warm", "env"]
)
def test_a_file_that_is_not_there_is_named(monarch: Monarch, tmp_path: Path, command: str) -> None:
    missing = tmp_path / "none.yaml"
    done = monarch(command, "-c", str(missing))
    assert done.returncode == 2
    assert done.stderr.count("\n") == 1
    assert done.stderr.startswith(f"monarch: {missing}: ")
    assert done.stdout == ""  # a shell that evaluates the output of `env` does nothing


def test_a_file_that_may_not_be_read_is_named(open_place: Path) -> None:
    closed = open_place / "tiers.yaml"
    closed.touch(mode=0o600)
    words = ["-m", "monarch_py", "config", "check", "-c", str(closed)]
    path = [entry for entry in (str(users.PACKAGE), *sys.path) if entry]
    done = subprocess.run(
        users.as_user(users.ALICE, users.python_for_all(), *words),
        env={**os.environ, "PYTHONPATH": ":".join(path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stderr) == (
        2,
        f"monarch: {closed}: the configuration cannot be read (Permission denied); check the path"
        " and its permissions\n",
    )


def test_that_a_daemon_was_killed_is_said(started: tuple[Session, int]) -> None:
    session, pid = started
    daemon = Identity.of(pid)
    os.kill(pid, signal.SIGKILL)
    assert daemon.wait(10)
    done = session.monarch("status")
    assert (done.returncode, done.stderr) == (
        3,
        "monarch: the daemon of this configuration was killed or crashed (see `monarch"
        " logs`); start another with `monarch start`\n",
    )


def test_a_daemon_that_outlives_its_configuration_can_be_stopped(
    started: tuple[Session, int],
) -> None:
    session, pid = started
    session.config.unlink()
    assert session.monarch("status").returncode == 0
    done = session.monarch("stop")
    assert (done.returncode, done.stdout) == (0, f"the daemon has stopped (process {pid})\n")


@pytest.mark.parametrize("command", ["start", "verify", "clear", "serve"])
def test_no_configuration_at_all_is_status_2(monarch: Monarch, command: str) -> None:
    done = monarch(command)
    assert done.returncode == 2
    hint = "no configuration is named; give -c tiers.yaml or set MONARCH_CONFIG"
    assert done.stderr == f"monarch: {hint}\n"


def test_the_configuration_may_be_named_by_the_environment(
    monarch: Monarch, session: Session
) -> None:
    done = monarch("status", MONARCH_CONFIG=str(session.config), MONARCH_SHM=str(session.shm))
    assert (done.returncode, done.stderr) == (3, NO_DAEMON)
    session.start()
    done = monarch("status", MONARCH_CONFIG=str(session.config), MONARCH_SHM=str(session.shm))
    assert done.returncode == 0


def test_a_warning_is_shown_and_does_not_stop_the_command(
    session_factory: Factory, source: Path
) -> None:
    session = session_factory(source, home_dir="/tmp")
    done = session.monarch("verify")
    assert done.returncode == 0
    assert done.stderr.startswith(f"monarch: warning: {session.config}:")
    assert "home_dir" in done.stderr


# --- start and stop -----------------------------------------------------------------------------


def test_start_leaves_a_daemon_and_stop_ends_it(started: tuple[Session, int]) -> None:
    session, pid = started
    assert session.status()["pid"] == pid
    done = session.monarch("stop")
    assert (done.returncode, done.stdout) == (0, f"the daemon has stopped (process {pid})\n")
    assert not is_running(pid)
    assert list(session.tiers[0].iterdir()) == []
    assert {path.name for path in session.paths.path.iterdir()} == {
        "log",
        "stopped",
        "turn",
        "users",
    }


def test_starting_twice_says_who_serves(started: tuple[Session, int]) -> None:
    session, pid = started
    done = session.monarch("start")
    assert done.returncode == 0
    assert done.stdout == f"a daemon serves this configuration already (process {pid})\n"
    assert session.status()["pid"] == pid


def test_a_second_serve_is_refused(started: tuple[Session, int]) -> None:
    session, pid = started
    done = session.monarch("serve")
    assert done.returncode == 3
    sentence = f"a daemon serves this configuration already (process {pid})"
    assert done.stderr == f"monarch: {sentence}\n"


@pytest.mark.parametrize(
    ("command", "sentence"), [("stop", NOTHING_TO_STOP), ("status", NO_DAEMON)]
)
def test_without_a_daemon_the_status_is_3(session: Session, command: str, sentence: str) -> None:
    done = session.monarch(command)
    assert (done.returncode, done.stdout, done.stderr) == (3, "", sentence)


def test_a_daemon_that_cannot_start_says_why(session_factory: Factory, source: Path) -> None:
    first = session_factory(source).start()
    second = session_factory(source, tiers=[{"mount_point": first.tiers[0], "quota": None}])
    text = second.config.read_text().replace("quota: null", f"max_storage_quota: {MIB}")
    second.config.write_text(text)
    done = second.monarch("start")
    assert done.returncode == 3
    assert done.stderr.count("\n") == 1
    assert "the daemon did not start: no tier can be used" in done.stderr
    assert f"{first.tiers[0]} is held by the daemon of {first.config} (process " in done.stderr


# --- run ----------------------------------------------------------------------------------------


# script -> exit status
ENDS = {"exit 0": 0, "exit 7": 7, "kill -TERM $$": 143}


@pytest.mark.parametrize("script", cases(ENDS, [*ENDS][1:]))
def test_run_ends_with_the_status_of_its_command(session: Session, script: str) -> None:
    assert session.monarch("run", "--", "sh", "-c", script).returncode == ENDS[script]


def test_run_reports_a_command_that_is_none_as_a_shell_does(session: Session) -> None:
    missing = session.monarch("run", "--", "no-such-command")
    assert (missing.returncode, missing.stderr) == (
        127,
        "monarch: no-such-command: command not found\n",
    )
    directory = session.monarch("run", "--", "/")
    assert (directory.returncode, directory.stderr) == (126, "monarch: /: Permission denied\n")
    line = session.monarch("run", "--", "cd /; ls")
    assert (line.returncode, line.stderr.partition("; to run")[0]) == (
        127,
        "monarch: cd /; ls: command not found",
    )
    assert line.stderr.endswith("monarch run -- sh -c 'cd /; ls'\n")
    assert not session.paths.path.exists()  # the commands have started no daemon


def test_a_command_is_found_as_execvp_finds_it(session: Session, tmp_path: Path) -> None:
    hidden, usable = tmp_path / "hidden", tmp_path / "usable"
    for directory, mode in ((hidden, 0o644), (usable, 0o755)):
        directory.mkdir()
        (directory / "mine").write_text("#!/bin/sh\nexit 5\n")
        (directory / "mine").chmod(mode)
    path = f"{hidden}:{usable}:/usr/bin:/bin"
    for known, status in ((path, 5), (f"{hidden}:/usr/bin:/bin", 126), ("/usr/bin:/bin", 127)):
        done = session.monarch("run", "-q", "mine", environment={"PATH": known})
        assert done.returncode == status, done.stderr


def test_what_follows_the_command_is_its_own(session: Session) -> None:
    script = "import sys; print(*sys.argv[1:])"
    words = ["--json", "out.json", "-q", "-c", "x", "--", "-h"]
    done = session.monarch("run", "-q", sys.executable, "-c", script, *words)
    assert (done.returncode, done.stdout, done.stderr) == (0, " ".join(words) + "\n", "")
    # A `--` before the command belongs to `monarch run`, which removes it.
    done = session.monarch("run", "-q", "--", sys.executable, "-c", script, *words)
    assert done.stdout == " ".join(words) + "\n"


READ_UNTIL_SERVED = """
import os, sys
while True:
    with open(sys.argv[1], "rb") as file:
        served = os.readlink(f"/proc/self/fd/{file.fileno()}").startswith(sys.argv[2])
        content = file.read()
    if served:
        break
sys.stdout.buffer.write(content)
"""


def test_run_ends_its_own_daemon_and_tells_what_was_gained(session: Session) -> None:
    report_file = session.directory / "run.json"
    words = [sys.executable, "-c", READ_UNTIL_SERVED, f"{session.source}/a", str(session.tiers[0])]
    done = session.monarch("run", "--json", str(report_file), "--", *words)
    assert (done.returncode, done.stdout) == (0, "\0" * FILES["a"])
    report = json.loads(report_file.read_text())
    assert (report["exit_status"], report["problem"]) == (0, "")
    totals = report["totals"]
    assert (totals["hits"], totals["fills"]) == (1, 1)
    share = 100 / (1 + totals["misses"])
    gain = f"{totals['opens']:,} opens of dataset files, 1 ({share:.1f} %) from copies"
    assert done.stderr.startswith(f"monarch: {gain}")
    # The copy was made from data that the program has read, or from data that the daemon has read.
    # In the first case, the fill has read 0 bytes from the source; in the second, the complete
    # file.
    by_fills = totals["source_bytes_read_by_fills"]
    assert by_fills in (0, FILES["a"])
    assert f"({format_size(by_fills)} to fill copies, " in done.stderr
    # The daemon was started for this run, so its totals are those of the run.
    assert report["run"]["totals"] == totals
    assert not is_running(report["pid"])
    assert list(session.tiers[0].iterdir()) == []


def test_a_switch_that_is_on_is_told_at_the_start(
    session_factory: Factory, source: Path, tmp_path: Path
) -> None:
    switch = tmp_path / "off"
    session = session_factory(source, switch_file=str(switch))
    sentence = f"monarch: {switch} turns everything off; remove it\n"
    switch.touch()
    try:
        for words in (("run", "-q", "--", "true"), ("start",), ("start",)):
            done = session.monarch(*words)
            assert (done.returncode, done.stderr) == (0, sentence)
    finally:
        session.monarch("stop")
    switch.unlink()
    assert session.monarch("run", "-q", "--", "true").stderr == ""
    done = session.monarch("run", "-q", "--", "true", environment={"MONARCH_LOG": "info"})
    sentence = (
        "monarch: MONARCH_LOG is 'info', which is not a log level, so nothing is logged;"
        " set it to debug\n"
    )
    assert (done.returncode, done.stderr) == (0, sentence)


def test_run_uses_a_daemon_that_runs_and_leaves_it(started: tuple[Session, int]) -> None:
    session, pid = started
    report_file = session.directory / "run.json"
    done = session.monarch("run", "-q", "--json", str(report_file), "--", "true")
    assert (done.returncode, done.stderr) == (0, "")
    assert json.loads(report_file.read_text())["pid"] == pid
    assert is_running(pid)


def test_run_goes_on_without_a_daemon_when_none_can_start(
    session_factory: Factory, source: Path
) -> None:
    first = session_factory(source).start()
    tier = {"mount_point": first.tiers[0], "max_storage_quota": MIB}
    second = session_factory(source, tiers=[tier])
    report_file = second.directory / "run.json"
    done = second.monarch("run", "--json", str(report_file), "--", "cat", f"{source}/d/c")
    assert (done.returncode, done.stdout) == (0, "\2" * FILES["d/c"])
    assert "the command reads from the source" in done.stderr
    assert "monarch: no daemon served this run, so Monarch gained nothing; " in done.stderr
    report = json.loads(report_file.read_text())
    assert set(report) == {"exit_status", "problem"}
    assert "is held by the daemon of " in report["problem"]


def test_a_report_that_cannot_be_written_does_not_hide_the_commands_status(
    session: Session,
) -> None:
    done = session.monarch("run", "-q", "--json", "/nowhere/run.json", "--", "sh", "-c", "exit 5")
    assert done.returncode == 5
    assert done.stderr == (
        "monarch: --json /nowhere/run.json: cannot be written (No such file or directory);"
        " there will be no report\n"
    )


# --- verify and clear ---------------------------------------------------------------------------


def damage(copy: Path) -> None:
    """Overwrites the first bytes of a copy. The size stays the same, so only the checksum shows
    that the copy is damaged."""
    status = copy.stat()
    copy.chmod(0o600)
    with copy.open("r+b") as file:
        file.write(b"damage"[: status.st_size])
    copy.chmod(0o400)


def test_verify_counts_good_copies(served: Session) -> None:
    done = served.monarch("verify", "--source")
    assert done.returncode == 0
    assert done.stdout == "3 copies checked, 0 damaged, 0 outdated\n"
    assert served.monarch("verify").stdout == "3 copies checked, 0 damaged\n"
    as_json = json.loads(served.monarch("verify", "--json").stdout)
    assert as_json == {"checked": 3, "damaged": [], "outdated": None}
    as_json = json.loads(served.monarch("verify", "--source", "--json").stdout)
    assert as_json == {"checked": 3, "damaged": [], "outdated": []}


def test_verify_drops_a_damaged_copy_of_a_running_daemon(served: Session) -> None:
    largest = max(copies(served), key=lambda path: path.stat().st_size)
    damage(largest)
    done = served.monarch("verify")
    assert done.returncode == 1
    assert done.stdout.splitlines() == [
        f"dropped a damaged copy of {served.source}/a",
        "3 copies checked, 1 damaged",
    ]
    assert not largest.exists()
    assert served.run(["cat", served.source / "a"]).stdout == "\0" * FILES["a"]
    wait_until(lambda: len(copies(served)) == 3, what="the new copy")
    assert served.monarch("verify").returncode == 0


def test_verify_against_the_source_finds_what_was_changed_behind_our_back(
    served: Session,
) -> None:
    (served.source / "b").write_bytes(b"new")
    assert served.monarch("verify").returncode == 0
    done = served.monarch("verify", "--source", "--json")
    assert done.returncode == 1
    assert json.loads(done.stdout)["outdated"] == [f"{served.source}/b"]
    assert served.run(["cat", served.source / "b"]).stdout == "new"


def test_verify_says_that_outdated_copies_were_dropped(served: Session) -> None:
    (served.source / "b").write_bytes(b"new")
    done = served.monarch("verify", "--source")
    assert done.returncode == 1
    assert done.stdout.splitlines() == [
        f"dropped an outdated copy of {served.source}/b",
        "3 copies checked, 0 damaged, 1 outdated",
    ]
    assert len(copies(served)) == 2


def test_clear_drops_the_copies_of_a_running_daemon(served: Session) -> None:
    done = served.monarch("clear")
    assert (done.returncode, done.stdout) == (0, "3 copies dropped\n")
    assert copies(served) == []
    assert served.status()["tiers"][0]["used_bytes"] == 0


@pytest.fixture
def left(session_factory: Factory, old_source: Path, tmp_path: Path) -> Session:
    """A session whose daemon has ended and has left recorded copies on a persistent tier. The
    source files are old, so that the copies are soon recorded."""
    mount = tmp_path / "persistent"
    mount.mkdir()
    tier = {"mount_point": mount, "max_storage_quota": 64 * MIB, "persistent": True}
    session = session_factory(old_source, tiers=[tier])
    session.start().wait_all_present()
    wait_until(lambda: not session.status()["pending"], what="the second look at young files")
    session.stop()
    return session


def test_verify_without_a_daemon_looks_at_persistent_tiers(left: Session) -> None:
    done = left.monarch("verify", "--source")
    assert (done.returncode, done.stdout) == (0, "3 copies checked, 0 damaged, 0 outdated\n")
    damage(copies(left)[0])
    done = left.monarch("verify")
    assert done.returncode == 1
    assert done.stdout.endswith("\n3 copies checked, 1 damaged\n")
    assert len(copies(left)) == 2
    done = left.monarch("verify")
    assert (done.returncode, done.stdout) == (0, "2 copies checked, 0 damaged\n")


def test_clear_without_a_daemon_leaves_nothing(left: Session) -> None:
    done = left.monarch("clear")
    assert (done.returncode, done.stdout) == (0, "3 copies removed\n")
    assert list(left.tiers[0].iterdir()) == []
    assert left.monarch("clear").stdout == "0 copies removed\n"


@pytest.mark.parametrize("command", ["verify", "clear"])
def test_a_tier_that_another_daemon_holds_is_status_4(
    session_factory: Factory, left: Session, command: str
) -> None:
    left.start()
    tier = {"mount_point": left.tiers[0], "max_storage_quota": MIB, "persistent": True}
    other = session_factory(left.source, tiers=[tier])
    done = other.monarch(command)
    assert done.returncode == 4
    held = f"monarch: tier {left.tiers[0]} is held by the daemon of {left.config} (process "
    assert done.stderr.startswith(held)
    assert done.stderr.endswith(f"; stop it first, with monarch stop -c {left.config}\n")
    assert done.stderr.count("\n") == 1
