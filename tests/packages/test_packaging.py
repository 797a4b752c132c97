"""The release, the container image and the recipes for packagers agree with the package."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

import monarch_py

ROOT = Path(__file__).resolve().parents[2]
PACKAGING = ROOT / "packaging"
# These directories of the machine are mounted into the container. With them, pip accepts the
# certificate of the package index even if a certificate authority of this site has signed it.
CERTIFICATES = ("/etc/ssl/certs", "/usr/share/ca-certificates", "/usr/local/share/ca-certificates")
BASE = "localhost/debian:bookworm-slim"


# --- recipes --------------------------------------------------------------------------------------


def test_the_spack_recipe_depends_on_what_the_package_does() -> None:
    project = (ROOT / "pyproject.toml").read_text()
    parts = re.findall(r"^(?:dependencies|requires) = \[(.*?)\]$", project, re.M | re.S)
    oldest = dict(re.findall(r'"([\w-]+)>=([\w.]+)"', "".join(parts)))
    assert {"cffi", "numpy", "setuptools"} < set(oldest)
    recipe = (PACKAGING / "spack" / "package.py").read_text()
    assert dict(re.findall(r'depends_on\("py-([\w-]+)@([\w.]+):"', recipe)) == oldest
    assert f'version("{monarch_py.__version__}")' in recipe


def test_both_images_are_made_alike() -> None:
    container = (PACKAGING / "Containerfile").read_text()
    commands = {
        line.strip(" &\\").removeprefix("RUN ")
        for line in container.replace("&&", "\n").splitlines()
        if re.match(r"(RUN)?\s+\S", line)
    }
    post = (PACKAGING / "apptainer.def").read_text().partition("%post\n")[2].partition("\n%")[0]
    assert commands == {line.strip() for line in post.splitlines() if line.strip()}


# --- the release ----------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def release(tmp_path_factory: pytest.TempPathFactory) -> Path:
    for tool in ("gcc", "aarch64-linux-gnu-gcc", "qemu-aarch64", "mmdebstrap"):
        if shutil.which(tool) is None:
            pytest.skip(f"{tool} is not installed")
    place = tmp_path_factory.mktemp("release") / "dist"
    done = subprocess.run(
        [PACKAGING / "release", place], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return place


@pytest.mark.long
@pytest.mark.timeout(1800)
def test_a_release_is_an_archive_and_two_wheels(release: Path) -> None:
    name = f"monarch_tiering-{monarch_py.__version__}"
    machines = ("aarch64", "x86_64")
    assert sorted(path.name for path in release.iterdir()) == [
        *(f"{name}-cp310-abi3-manylinux_2_28_{machine}.whl" for machine in machines),
        f"{name}.tar.gz",
    ]


@pytest.fixture
def podman() -> Iterator[list[str]]:
    """Yields the podman command with its own image storage. The storage's path is short, as podman
    requires. The driver vfs needs no mounts."""
    for tool in ("podman", "runc", "mmdebstrap"):
        if shutil.which(tool) is None:
            pytest.skip(f"{tool} is not installed")
    if os.geteuid() != 0:
        pytest.skip("podman is tried as root")
    with TemporaryDirectory(dir="/tmp") as place:
        words = ["--runtime=runc", "--storage-driver=vfs", f"--root={place}/images"]
        yield ["podman", *words, f"--runroot={place}/run"]


@pytest.mark.long
@pytest.mark.timeout(1800)
def test_the_image_runs_a_job(release: Path, podman: list[str], tmp_path: Path) -> None:
    def run(*words: str | Path) -> str:
        done = subprocess.run(words, capture_output=True, text=True, check=False)
        assert done.returncode == 0, (words, done.stdout, done.stderr)
        return done.stdout

    context, base, data = tmp_path / "context", tmp_path / "base.tar", tmp_path / "data"
    shutil.copytree(release, context / "dist")
    run("mmdebstrap", "--variant=minbase", "--include=ca-certificates", "bookworm", base)
    run(*podman, "import", base, BASE)
    mounts = [f"--volume={path}:{path}:ro" for path in CERTIFICATES if Path(path).exists()]
    build = ["build", "--isolation=chroot", "--network=host", *mounts, f"--build-arg=BASE={BASE}"]
    run(*podman, *build, f"--file={PACKAGING / 'Containerfile'}", "--tag=monarch", context)

    for name in ("source", "tier"):
        (data / name).mkdir(parents=True)
    (data / "source" / "file").write_bytes(bytes(range(256)) * 400)
    (data / "tiers.yaml").write_text(
        "sources: [/data/source]\n"
        "hierarchy: [{mount_point: /data/tier, max_storage_quota: 1MiB}]\n"
        "prefetch: eager\n"
    )
    job = [
        "monarch",
        "monarch",
        "run",
        "-c",
        "/data/tiers.yaml",
        "--json",
        "/data/report.json",
        "--",
    ]
    limits = ["--network=none", "--ulimit=nofile=1000:1000", "--ulimit=nproc=1000:1000"]
    script = "monarch warm -c /data/tiers.yaml && md5sum /data/source/file"
    said = run(*podman, "run", "--rm", *limits, f"--volume={data}:/data", *job, "sh", "-c", script)
    assert run("md5sum", data / "source" / "file").split()[0] in said
    counts = json.loads((data / "report.json").read_text())["run"]["totals"]
    assert counts["opens"] == counts["hits"] == 1
