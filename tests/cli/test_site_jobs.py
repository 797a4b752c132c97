"""Tests which job ends a daemon that several jobs use."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
from cli.sites import KIB, SiteSession, is_running, under_run
from support.draws import cases, sized
from support.impatient import impatient
from support.session import wait_until
from support.watch import open_by

from monarch_py.daemon import orphan
from monarch_py.ipc.jobs import Jobs


def test_no_job_ends_or_empties_the_daemon_of_another(site: SiteSession) -> None:
    """A command of job 2 uses the daemon that job 1 has started. Until the command ends, job 1 can
    neither clear nor stop this daemon."""
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
                "monarch: the copies stay, because job 98765432 uses the daemon too; "
            )
            done = site.command_line("stop", **one)
            assert done.stdout.startswith(
                "the daemon stays, because job 98765432 uses the daemon too; "
            )
            assert (done.returncode, is_running(pid)) == (0, True)
            job.communicate("\n", timeout=60)
        finally:
            job.kill()
    assert job.returncode == 0
    wait_until(lambda: not is_running(pid), what="the end by the last one who uses it")


def test_a_job_that_has_ended_holds_no_daemon(site: SiteSession) -> None:
    assert site.command_line("start", MONARCH_JOB="night-1", **site.of(0)).returncode == 0
    done = site.command_line("stop", MONARCH_JOB="night-2")
    assert done.stdout.startswith("the daemon stays, because job night-1 uses the daemon too; ")
    note = site.paths.path / "jobs" / "night-1"
    # A job with an old note and without a process does not keep the daemon running.
    os.utime(note, (0, 0))
    done = site.command_line("stop", MONARCH_JOB="night-2")
    assert done.stdout.startswith("the daemon has stopped ")
    assert not note.exists()


def test_a_run_leaves_the_daemon_to_a_job_that_has_started_after_it(site: SiteSession) -> None:
    """Job A has started a daemon. While `monarch run` of job B uses the daemon, job C runs `monarch
    start`, and job A runs `monarch stop`. When `monarch run` ends, it does not stop the daemon,
    because job C still needs it. `monarch stop` of job C stops the daemon."""
    a, b, c = ({"MONARCH_JOB": name, **site.of(0)} for name in "ABC")
    assert site.command_line("start", **a).returncode == 0
    pid = int(site.connection.ask("where")["pid"])
    with under_run(site, **b):
        assert site.command_line("start", **c).returncode == 0
        done = site.command_line("stop", **a)
        assert done.stdout.startswith("the daemon stays, because jobs B, C use the daemon too; ")
    assert is_running(pid)  # `monarch run` of job B has ended, but has not stopped the daemon
    assert site.command_line("stop", **c).returncode == 0
    wait_until(lambda: not is_running(pid), what="the end of the daemon")


def test_a_daemon_that_is_left_to_a_program_ends_with_it(site: SiteSession) -> None:
    limits = {f"{orphan.__name__}.UNUSED_S": 1.0, f"{orphan.__name__}.LOOK_S": 0.2}
    subprocess.run(
        impatient(site, limits, "start"),
        env=site.env(preload=False, MONARCH_JOB="A", **site.of(0)),
        stdout=subprocess.DEVNULL,
        check=True,
    )
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
        assert done.stdout.startswith("the daemon stays, because job B uses the daemon too; ")
        program.communicate(timeout=60)
    wait_until(lambda: not is_running(pid), what="the end of the daemon")


def test_no_job_starts_while_another_one_stops_the_daemon(
    site: SiteSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If job B runs `start` while `stop` of job A is ending the daemon, `start` waits until this
    daemon has ended, and then starts a new one."""
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
        assert done.stdout.startswith("the daemon stays, because job B uses the daemon too; ")


# The variable with a job's number -> the variable with the number of the job's array element.
ARRAYS = {"LSB_JOBID": "LSB_JOBINDEX", "JOB_ID": "SGE_TASK_ID"}


@pytest.mark.parametrize("job", cases(ARRAYS, ["JOB_ID"]))
def test_elements_of_an_array_are_jobs(site: SiteSession, job: str) -> None:
    element = ARRAYS[job]
    for number in "12":
        assert (
            site.command_line("start", **{job: "77", element: number}, **site.of(0)).returncode == 0
        )
    done = site.command_line("stop", **{job: "77", element: "1"})
    assert done.stdout.startswith("the daemon stays, because job 77.2 uses the daemon too; ")


def test_jobs_outside_a_container_keep_their_daemon(site: SiteSession) -> None:
    """A command in another PID namespace neither stops the daemon nor clears its copies, because
    the command cannot see the processes of the jobs outside."""
    apart = ["unshare", "--fork", "--pid", "--mount-proc"]
    if subprocess.run([*apart, "true"], check=False).returncode:
        pytest.skip("needs root, or the right to make PID namespaces")
    assert site.command_line("start", MONARCH_JOB="A", **site.of(0)).returncode == 0
    note = site.paths.path / "jobs" / "A"
    with under_run(site, MONARCH_JOB="A"):
        os.utime(note, (0, 0))
        for words in (["stop"], *sized([], [["clear"]])):
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
