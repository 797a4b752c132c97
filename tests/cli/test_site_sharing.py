"""Tests which configurations share the site's daemon, and what the commands tell users about
this."""

from __future__ import annotations

import os
import signal

import pytest
import yaml
from cli.sites import SiteSession, hits, present
from support.session import wait_until

from monarch_py.errors import SessionError
from monarch_py.ipc.connection import DaemonConnection
from monarch_py.ipc.session import SessionDir, holder_of, link_session


def test_without_a_daemon_commands_mean_the_sites(site: SiteSession) -> None:
    """Commands without a configuration use the site's configuration. So a user need not name a
    configuration to read the log of a job that has ended."""
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
    assert (
        f"# The tiers for copies are those of the site's configuration: {site.config}\n"
        in file.read_text()
    )
    assert site.command_line("config", "check", "-c", str(file)).returncode == 0


def test_users_files_without_tiers_mean_the_sites_session(site: SiteSession) -> None:
    files = [site.directory / "job1.yaml", site.directory / "job2.yaml"]
    for number, file in enumerate(files):
        file.write_text(f"sources: [{site.datasets[number]}]\n")
        done = site.command_line("start", "-c", str(file))
        assert done.returncode == 0, done.stderr
    site.wait_all_present()
    assert present(site) == {"one": 6, "two": 6}
    # The library finds the site's session even if MONARCH_CONFIG names the second job's file.
    assert hits(site, 1, MONARCH_CONFIG=str(files[1])) == 6
    for words in (["status", "-c", str(files[1])], ["config", "check", "-c", str(files[0])]):
        assert site.command_line(*words).returncode == 0
    # If the second job's file names tiers, it has a session of its own.
    tier = site.directory / "own"
    tier.mkdir()
    text = f"hierarchy:\n- mount_point: {tier}\n  max_storage_quota: 1MiB\n"
    files[1].write_text(files[1].read_text() + text)
    done = site.command_line("run", "-c", str(files[1]), "--", "true")
    assert done.returncode == 0, done.stderr
    assert site.command_line("status", "-c", str(files[1])).returncode == 3
    assert site.connection.runs()
    # Once the second job's file names no tiers any more, the file belongs to the site's session
    # again. But `start` fails as long as the daemon of the file's own session runs.
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
    said = f"monarch: the running daemon was started with other settings than those of {other};"
    assert done.stderr.startswith(said)
    assert done.returncode == 0
    for path in (site.datasets[0], site.datasets[0] / "part"):
        path.mkdir(exist_ok=True)
        other.write_text(f"sources: [{{path: {path}, exclude: [a]}}]\n")
        done = site.command_line("run", "-q", "-c", str(other), "--", "true")
        assert done.stderr.startswith(said)


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
    """No daemon runs. If a program's environment names a dataset, the program prints a warning. If
    only the site's module is loaded, the program prints nothing."""
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
    # The process releases the session's lock when the last of its threads has ended.
    wait_until(lambda: holder_of(session.lock) is None, what="the daemon's end")
    file.write_text(said)  # without `hierarchy`, the file uses the site's tiers
    assert site.command_line("config", "check", "-c", str(file)).returncode == 0
    assert session.control.exists()
    with pytest.raises(SessionError, match="has left copies in them; remove them with `monarch s"):
        link_session(file, site.config)
    done = site.command_line("start", "-c", str(file))
    assert (done.returncode, done.stderr) == (0, "")
    assert [*tier.iterdir()] == []
    assert SessionDir.of(file).path == site.paths.path
