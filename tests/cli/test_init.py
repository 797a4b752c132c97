"""`monarch init` writes a configuration that works; `monarch config check` says if one does."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml
from support.command_line import run_monarch
from support.session import Session

from monarch_py.config.load import load_config


def monarch(*words: str | Path, **environment: str) -> subprocess.CompletedProcess[str]:
    return run_monarch(list(map(str, words)), {**os.environ, **environment})


@pytest.fixture
def dataset(tmp_path: Path) -> Iterator[Path]:
    """On a file system of its own, so that the disk of the tests may hold copies of it."""
    if os.geteuid() != 0:
        pytest.skip("mounting a file system takes root")
    root = tmp_path / "data set"
    root.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "none", str(root)], check=True)
    try:
        (root / "file").write_bytes(b"content")
        yield root
    finally:
        subprocess.run(["umount", "-l", str(root)], check=True)


def test_what_it_writes_works(dataset: Path, tmp_path: Path) -> None:
    file, scratch = tmp_path / "tiers.yaml", tmp_path / "scratch"
    scratch.mkdir()
    done = monarch("init", dataset, "-o", file, SLURM_TMPDIR=str(scratch))
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == f"{file} is written; next: monarch doctor -c {file}\n"
    config = load_config(file)
    assert [source.path for source in config.sources] == [dataset]
    places = {tier.mount_point: tier.quota_bytes for tier in config.tiers}
    assert 0 < places[scratch] < os.statvfs(scratch).f_bavail * os.statvfs(scratch).f_frsize
    assert len({os.stat(place).st_dev for place in places} - {os.stat(dataset).st_dev}) == len(
        places
    )
    checked = monarch("config", "check", "-c", file)
    assert checked.stdout == f"{file}: can be used on this node\n"
    env = {**os.environ, "MONARCH_SHM": str(tmp_path / "shm")}
    (tmp_path / "shm").mkdir()
    run = monarch("run", "-c", file, "--", "cat", dataset / "file", **env)
    assert (run.returncode, run.stdout) == (0, "content")


def test_a_file_that_is_there_stays(dataset: Path, tmp_path: Path) -> None:
    file = tmp_path / "tiers.yaml"
    file.write_text("mine")
    done = monarch("init", dataset, "-o", file)
    assert done.returncode == 2
    assert done.stderr == f"monarch: {file}: exists already; name another file with -o\n"
    assert file.read_text() == "mine"
    shown = monarch("init", dataset, "-o", "-")
    assert yaml.safe_load(shown.stdout)["sources"] == [str(dataset)]


def test_what_is_no_dataset(tmp_path: Path) -> None:
    done = monarch("init", tmp_path / "none", "-o", tmp_path / "tiers.yaml")
    assert done.returncode == 2
    said = f"monarch: {tmp_path / 'none'}: not a directory; name the dataset's directory\n"
    assert done.stderr == said
    assert not (tmp_path / "tiers.yaml").exists()


def test_check_names_the_line_and_the_mend(session: Session) -> None:
    session.config.write_text(session.config.read_text() + "prefetsh: none\n")
    done = monarch("config", "check", "-c", session.config)
    assert done.returncode == 2
    lines = len(session.config.read_text().splitlines())
    assert done.stderr.startswith(f"monarch: {session.config}:{lines}: prefetsh: unknown key")
    assert "did you mean 'prefetch'?" in done.stderr
