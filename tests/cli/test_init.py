"""`monarch init` writes a working configuration. `monarch config check` says whether a
configuration works."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml
from support import users
from support.command_line import run_monarch
from support.session import Session

from monarch_py.commands import first_config
from monarch_py.config.load import load_config
from monarch_py.config.schema import MAX_TIERS

open_place = pytest.fixture(users.open_place)


def monarch(*words: str | Path, **environment: str) -> subprocess.CompletedProcess[str]:
    return run_monarch(list(map(str, words)), {**os.environ, **environment})


@pytest.fixture
def dataset(tmp_path: Path) -> Iterator[Path]:
    """A dataset on a file system of its own. The tests' disk is then not the dataset's disk, so
    `monarch init` may propose the tests' disk for copies."""
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


def test_what_would_be_refused_is_not_written(dataset: Path, tmp_path: Path) -> None:
    file = tmp_path / "tiers.yaml"
    done = monarch("init", "/", "-o", file)
    assert done.returncode == 2
    assert re.fullmatch(
        r"monarch: the configuration would be refused: hierarchy\[0\]\.mount_point: '.*' is inside"
        " '/', a source; choose a tier directory that neither contains the source nor lies in it\n",
        done.stderr,
    )
    done = monarch("init", dataset, dataset, "-o", file)
    assert (done.returncode, done.stderr) == (
        2,
        f"monarch: the configuration would be refused: sources[1]: '{dataset}' is already a source;"
        " remove one of the two\n",
    )
    assert not file.exists()


def test_a_tier_is_apart_from_the_dataset(dataset: Path, tmp_path: Path) -> None:
    """`monarch init` proposes no tier that contains the dataset. Here, SLURM_TMPDIR is a directory
    that contains the dataset, although the dataset lies on a file system of its own."""
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    places = {"SLURM_TMPDIR": str(tmp_path), "LOCAL_SCRATCH": str(scratch)}
    done = monarch("init", dataset, "-o", tmp_path / "tiers.yaml", **places)
    assert (done.returncode, done.stderr) == (0, "")
    mount_points = [tier.mount_point for tier in load_config(tmp_path / "tiers.yaml").tiers]
    assert scratch in mount_points
    assert tmp_path not in mount_points


# --- odd nodes ----------------------------------------------------------------------------------


@pytest.mark.parametrize(("kind", "rooms"), [("ext4", 2), ("btrfs", 1), ("zfs", 1)])
def test_what_shares_its_room_is_counted_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str, rooms: int
) -> None:
    names = {"btrfs": ("tank", "tank"), "zfs": ("tank/home", "tank/data"), "ext4": ("a", "b")}[kind]
    paths = tmp_path, first_config.SHARED_MEMORY
    mounts = [
        first_config._Mount(path, kind, name) for path, name in zip(paths, names, strict=True)
    ]
    monkeypatch.setattr(first_config, "_mounts", lambda: iter(mounts))
    devices = [os.stat(path).st_dev for path in paths]
    assert len(set(devices)) == 2
    assert len(first_config.local_disks(set())) == rooms
    assert len(first_config.local_disks({devices[1]})) == rooms - 1


def test_a_named_directory_that_hangs_is_not_looked_at(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mounts = [first_config._Mount(tmp_path, "ext4", "disk")]
    monkeypatch.setattr(first_config, "_mounts", lambda: iter(mounts))
    hung = tmp_path / "hung"
    hung.mkdir()
    monkeypatch.setenv("SLURM_TMPDIR", str(hung))
    assert [place.path for place in first_config.local_disks(set())] == [hung]
    monkeypatch.setattr(first_config, "hanging", lambda paths: [x for x in paths if x == hung])
    assert hung not in [place.path for place in first_config.local_disks(set())]


def test_a_mount_in_a_closed_directory_is_left_out(open_place: Path) -> None:
    """`monarch init` leaves out mounts below a directory that the user may not enter, for example
    the mounts of containers."""
    closed = open_place / "closed/merged"
    closed.mkdir(parents=True)
    closed.parent.chmod(0o700)
    code = (
        "import sys, pathlib, monarch_py.commands.first_config as first\n"
        "mount = first._Mount(pathlib.Path(sys.argv[1]), 'overlay', 'overlay')\n"
        "first._mounts = lambda: iter([mount])\n"
        "print(first.local_disks(set()))\n"
    )
    path = [entry for entry in (str(users.PACKAGE), *sys.path) if entry]
    done = subprocess.run(
        users.as_user(users.ALICE, users.python_for_all(), "-c", code, closed),
        env={**os.environ, "PYTHONPATH": ":".join(path), "TMPDIR": "/tmp"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "[]\n", "")


def test_check_names_the_line_and_the_mend(session: Session) -> None:
    session.config.write_text(session.config.read_text() + "prefetsh: none\n")
    done = monarch("config", "check", "-c", session.config)
    assert done.returncode == 2
    lines = len(session.config.read_text().splitlines())
    assert done.stderr.startswith(f"monarch: {session.config}:{lines}: prefetsh: unknown key")
    assert "did you mean 'prefetch'?" in done.stderr


def test_show_tells_the_size_that_a_staging_area_would_have(
    session: Session, tmp_path: Path
) -> None:
    def staging() -> str:
        done = monarch("config", "show", "-c", session.config, "--json", MONARCH_SHM=str(tmp_path))
        found = {each["key"]: each["value"] for each in json.loads(done.stdout)}
        return str(found["staging"])

    assert re.fullmatch(rf"[0-9.]+ [KMG]iB in {tmp_path}, when needed", staging())
    document = yaml.safe_load(session.config.read_text())
    # Tiers in the same place are an error, but `config show` does not check that.
    document["hierarchy"] *= MAX_TIERS
    session.config.write_text(yaml.safe_dump(document))
    assert staging() == f"none (the configuration already has {MAX_TIERS} tiers, the maximum)"


def named(session: Session, key: str, file: Path) -> subprocess.CompletedProcess[str]:
    """Adds the line `key: file` to the configuration, and runs `monarch config check`."""
    session.config.write_text(f"{session.config.read_text()}{key}: {file}\n")
    return monarch("config", "check", "-c", session.config)


def test_check_refuses_a_plan_with_which_no_daemon_starts(session: Session, tmp_path: Path) -> None:
    plan = tmp_path / "plan.npz"
    plan.write_text("no plan")
    done = named(session, "plan", plan)
    said = f"{plan}: not a plan (it is not an .npz file); make one with `monarch plan make -c"
    assert done.returncode == 2
    assert done.stderr.startswith(f"monarch: {said}")
    started = session.monarch("start")
    assert started.returncode != 0
    assert said in started.stderr


def test_check_warns_of_a_plan_of_another_dataset(session: Session, tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()
    (tmp_path / "other/file").touch()
    link = tmp_path / "link"
    link.symlink_to(session.source)
    plan, index, recipe = tmp_path / "plan", tmp_path / "index", tmp_path / "recipe"
    sampler = "batch_size: 1, sampler: {kind: DistributedSampler}"
    recipe.write_text(f"epochs: 1\nparts: [{{dataset: {index}, {sampler}}}]\n")

    def make(root: Path) -> None:
        for words in (("index", "files", root, "-o", index), ("make", "-c", recipe, "-o", plan)):
            assert monarch("plan", *words).returncode == 0

    make(link)
    done = named(session, "plan", plan)
    assert (done.returncode, done.stderr) == (0, "")
    make(tmp_path / "other")
    done = monarch("config", "check", "-c", session.config)
    assert done.returncode == 0
    assert done.stderr == (
        f"monarch: warning: the plan is not followed: {plan}: {tmp_path / 'other'} is not inside"
        " any configured source; make it from an index of a source (`monarch plan index`)\n"
    )


def test_check_warns_of_a_pack_that_cannot_be_read(session: Session, tmp_path: Path) -> None:
    pack = tmp_path / "train.tar"
    for name in ("train.tar", "train.tar.monarch"):
        (tmp_path / name).write_text("no pack")
    text = session.config.read_text().replace(f"- {session.source}", "- path: @\n  pack: #")
    text = text.replace("@", str(session.source)).replace("#", str(pack))
    session.config.write_text(text)
    done = monarch("config", "check", "-c", session.config)
    assert done.returncode == 0
    assert done.stderr == (
        "monarch: warning: the pack is not used, and files are read one by one:"
        f" {pack}.monarch: not the index of a pack (it is not an .npz file); make the index again"
        " with `monarch pack DIR -o TAR --index-only`\n"
    )


def test_check_warns_of_an_interface_that_only_other_nodes_have(
    dataset: Path, tmp_path: Path
) -> None:
    (tmp_path / "tier").mkdir()
    tier = {"mount_point": str(tmp_path / "tier"), "max_storage_quota": "64MiB"}
    config = tmp_path / "tiers.yaml"
    document = {"sources": [str(dataset)], "hierarchy": [tier], "peers": {"interface": "none7"}}
    config.write_text(yaml.safe_dump(document))
    done = monarch("config", "check", "-c", config)
    assert (done.returncode, done.stdout) == (0, f"{config}: can be used on this node\n")
    assert "warning: " in done.stderr
    assert "peers.interface: 'none7' has no address on" in done.stderr
