"""`monarch module`: its modulefiles in Environment Modules and Lmod, also with several users and
several versions.

The installations are directory trees like those of `pip install --prefix`. Each was moved after it
was made.
"""

from __future__ import annotations

import importlib.util
import json
import os
import pwd
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import msgspec
import pytest
from support.draws import cases
from support.session import wait_until
from support.users import open_place as made_place
from support.users import python_for_all

import monarch_py
from monarch_py import __version__

ROOT = Path(__file__).parents[2]
PYTHON = f"python{sys.version_info.major}.{sys.version_info.minor}"
# Debian's packages of the two module systems conflict, so .ci/run installs Lmod in a directory of
# its own.
MODULES = Path("/usr/share/modules/init/bash")
LMOD = Path("/opt/lmod/usr/share/lmod/lmod")
# The directory of the packages that Monarch needs.
DEPENDENCIES = Path(msgspec.__file__).parents[1]
KIB = 1024

open_place = pytest.fixture(made_place)


@dataclass(frozen=True)
class System:
    """A module system: the line that defines `module` in a shell, and the modulefile's language."""

    line: str
    language: str
    # Prefixes of the environment variables in which the module system keeps its own state.
    own: tuple[str, ...]

    @property
    def ending(self) -> str:
        return ".lua" if self.language == "lua" else ""


def environment_modules() -> System:
    if not MODULES.exists():
        pytest.skip(f"environment-modules is missing: there is no {MODULES}")
    return System(f". {MODULES}", "tcl", ("LOADEDMODULES", "_LMFILES_", "MODULES_", "__MODULES_"))


def lmod(language: str) -> System:
    if not LMOD.exists():
        pytest.skip(f"Lmod is missing: there is no {LMOD} (.ci/run says where it comes from)")
    if shutil.which("lua5.3") is None:
        pytest.skip("lua5.3 is missing")
    line = f'module() {{ eval "$(lua5.3 {LMOD}/libexec/lmod bash "$@")"; }}'
    return System(
        line, language, ("LOADEDMODULES", "_LMFILES_", "_ModuleTable", "__LMOD_", "LMOD_")
    )


SYSTEMS: dict[str, Callable[[], System]] = {
    "environment-modules": environment_modules,
    "lmod-tcl": lambda: lmod("tcl"),
    "lmod-lua": lambda: lmod("lua"),
}


@pytest.fixture(params=cases(SYSTEMS, ["environment-modules", "lmod-lua"]))
def system(request: pytest.FixtureRequest) -> System:
    return SYSTEMS[request.param]()


def install(place: Path, python: str, packages_path: str = f"lib/{PYTHON}/site-packages") -> Path:
    """Installs the package beside `place`, and moves the installation to `place`."""
    first = place.with_name(f"{place.name}.first")
    packages = first / packages_path
    built = Path(monarch_py.__file__).parent
    shutil.copytree(built, packages / "monarch_py")
    for name in ("bin/monarch", "share/monarch/bin/monarch"):
        (first / name).parent.mkdir(parents=True, exist_ok=True)
    text = (ROOT / "packaging/bin/monarch").read_text()
    (first / "bin/monarch").write_text(text.replace("#!python\n", f"#!{python}\n", 1))
    shutil.copy(ROOT / "packaging/share/monarch/bin/monarch", first / "share/monarch/bin/monarch")
    (first / "bin/monarch").chmod(0o755)
    return finish(first, place, packages)


def finish(first: Path, place: Path, packages: Path) -> Path:
    """Makes the directory `packages` with links to the packages that Monarch needs. Moves the
    installation `first` to `place`."""
    for entry in DEPENDENCIES.iterdir():
        if not entry.name.startswith(("monarch", "_monarch", "__editable__")):
            (packages / entry.name).symlink_to(entry)
    first.rename(place)
    return place


@dataclass(frozen=True)
class Cluster:
    """Installations, modulefiles, a dataset and a disk, which all users can reach."""

    place: Path
    python: str

    @property
    def dataset(self) -> Path:
        return self.place / "pfs"

    def offer(self, version: str, system: System) -> None:
        """Installs a version and writes its modulefile."""
        prefix = install(self.place / "opt" / version, self.python)
        disk = self.place / "local" / version
        disk.mkdir(parents=True)
        disk.chmod(0o1777)
        site = prefix / "etc/monarch/site.yaml"
        site.parent.mkdir(parents=True)
        site.write_text(f"hierarchy:\n- mount_point: {disk}\n  max_storage_quota: 4MiB\n")
        words = [str(prefix / "bin/monarch"), "module", f"--{system.language}"]
        done = self.run(words)
        assert (done.returncode, done.stderr) == (0, "")
        file = self.place / "modulefiles" / "monarch" / f"{version}{system.ending}"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(done.stdout)

    def environment(self) -> dict[str, str]:
        return {
            "HOME": "/",
            "PATH": "/usr/bin:/bin",
            "PYTHONDONTWRITEBYTECODE": "1",
            "MONARCH_SHM": str(self.place / "shm"),
            "LD_LIBRARY_PATH": os.environ.get("LD_LIBRARY_PATH", ""),
        }

    def run(self, words: list[str], **more: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            words,
            env={**self.environment(), **more},
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
            cwd="/",
        )

    def shell(self, system: System, script: str, *, user: str = "") -> list[str]:
        """Runs a script in a shell that has the command `module` and uses the modulefiles that
        `offer` has written. Returns the lines that the script prints."""
        use = f"set -e\n{system.line}\nmodule use {self.place}/modulefiles\n"
        words = ["bash", "-c", use + script]
        if user:
            number = pwd.getpwnam(user)
            rights = [f"--reuid={number.pw_uid}", f"--regid={number.pw_gid}", "--clear-groups"]
            words = [
                "setpriv",
                *rights,
                "--bounding-set=-all",
                "sh",
                "-c",
                'exec "$0" "$@"',
                *words,
            ]
        done = self.run(words)
        assert (done.returncode, done.stderr) == (0, "")
        return done.stdout.splitlines()


@pytest.fixture
def cluster(open_place: Path) -> Iterator[Cluster]:
    found = Cluster(open_place, python_for_all())
    found.dataset.mkdir()
    for name in "abcd":
        (found.dataset / name).write_bytes(b"x" * 16 * KIB)
    (open_place / "opt").mkdir()
    shm = open_place / "shm"
    shm.mkdir()
    shm.chmod(0o1777)
    yield found
    daemons = list(shm.glob("monarch-*/*/control"))
    wait_until(lambda: not any(each.exists() for each in daemons), what="the daemons' end")


def changes(before: list[str], after: list[str], system: System) -> set[str]:
    """Returns the lines in which the two environments differ, except for the module system's own
    variables."""
    return {line for line in {*before} ^ {*after} if not line.startswith((*system.own, "_="))}


def test_load_sets_everything_and_unload_leaves_nothing(cluster: Cluster, system: System) -> None:
    cluster.offer(__version__, system)
    prefix = cluster.place / "opt" / __version__
    lines = cluster.shell(
        system,
        "env\necho ----\nmodule load monarch\nenv\ncommand -v monarch\nmonarch --version\n"
        "echo ----\nmodule unload monarch\nenv\necho ----\n"
        "command -v monarch || echo none\n",
    )
    before, loaded, after, left = " \n".join(lines).split("---- \n")
    assert changes(before.split(" \n"), after.split(" \n"), system) == set()
    assert left == "none"
    found = loaded.split(" \n")
    library = prefix / "lib" / PYTHON / "site-packages/monarch_py/libmonarch.so"
    assert f"LD_PRELOAD={library}" in found
    assert f"MONARCH_SITE_CONFIG={prefix}/etc/monarch/site.yaml" in found
    assert f"PATH={prefix}/share/monarch/bin:/usr/bin:/bin" in found
    assert f"{prefix}/share/monarch/bin/monarch" in found
    assert f"monarch, version {__version__}" in found
    # The empty entry stands for the system's own manual pages.
    manuals = next(line for line in found if line.startswith("MANPATH="))
    assert manuals.partition("=")[2].split(":")[:2] == [f"{prefix}/share/man", ""]


JOB = """\
module load monarch/{version}
export MONARCH_SOURCE={dataset}
monarch run --json $MONARCH_SHM/run.json -q -- sh -c 'cat {dataset}/*'
"""


def test_two_lines_make_a_job_of_a_fresh_account(cluster: Cluster) -> None:
    system = lmod("lua")
    cluster.offer(__version__, system)
    lines = cluster.shell(system, JOB.format(version=__version__, dataset=cluster.dataset))
    assert lines == ["x" * 64 * KIB]
    report = json.loads((cluster.place / "shm" / "run.json").read_text())
    assert report["totals"]["opens"] == 4


def test_one_line_is_enough_where_the_first_open_starts_the_daemon(cluster: Cluster) -> None:
    """If the site's configuration names the datasets and has `autostart: true`, a job needs only
    the line `module load`."""
    system = environment_modules()
    cluster.offer(__version__, system)
    site = cluster.place / "opt" / __version__ / "etc/monarch/site.yaml"
    more = f"sources: [{cluster.dataset}]\nautostart: true\n"
    site.write_text(site.read_text() + more)
    lines = cluster.shell(
        system,
        f"module load monarch/{__version__}\n"
        f"until monarch status 2>/dev/null; do cat {cluster.dataset}/* | wc -c; sleep 0.2; done"
        " >/dev/null\n"
        f"monarch warm >/dev/null\ncat {cluster.dataset}/*\nmonarch status --json\n"
        "monarch stop >/dev/null\n",
    )
    copied, _, report = "\n".join(lines).partition("{")
    assert copied == "x" * 64 * KIB
    assert json.loads("{" + report)["totals"]["hits"] >= 4


@pytest.mark.long  # in short runs, test_two_users_share_nothing is enough
def test_two_versions_share_nothing(cluster: Cluster) -> None:
    """While a daemon of one version serves, a job that loads the other version gets a daemon of its
    own."""
    system = environment_modules()
    versions = ["1.0", "2.0"]
    for version in versions:
        cluster.offer(version, system)
    script = "".join(
        f"module load monarch/{version}\nexport MONARCH_SOURCE={cluster.dataset}\n"
        "monarch start >/dev/null\nmonarch warm >/dev/null\nmonarch status --json\necho ----\n"
        "module unload monarch\n"
        for version in versions
    )
    lines = cluster.shell(system, script)
    reports = [json.loads(text) for text in "\n".join(lines).split("----")[:2]]
    for report in reports:
        os.kill(report["pid"], signal.SIGTERM)
    assert len({report["pid"] for report in reports}) == 2
    for version, report in zip(versions, reports, strict=True):
        (tier,) = report["tiers"]
        assert tier["mount_point"] == str(cluster.place / "local" / version)
        assert (tier["usable"], tier["files"]) == (True, 4)


@pytest.fixture
def accounts() -> Iterator[list[str]]:
    """The names of two new user accounts."""
    if os.geteuid() != 0:
        pytest.skip("only root may add accounts: run the tests as root")
    if shutil.which("useradd") is None:
        pytest.skip("useradd is missing: install passwd")
    names = [f"monarch-t{number}-{os.getpid()}" for number in range(2)]
    added: list[str] = []
    try:
        for name in names:
            subprocess.run(["useradd", "-M", "-d", "/", name], check=True, capture_output=True)
            added.append(name)
        yield names
    finally:
        for name in added:
            subprocess.run(["userdel", name], check=True, capture_output=True)


def test_two_users_share_nothing(cluster: Cluster, accounts: list[str]) -> None:
    """Two users load the same module, and use the same dataset and disk at the same time. Each user
    has a daemon, and directories that no other user may enter."""
    system = environment_modules()
    cluster.offer(__version__, system)
    begin = (
        f"module load monarch\nexport MONARCH_SOURCE={cluster.dataset}\nmonarch start >/dev/null\n"
        "monarch warm >/dev/null\nmonarch status --json\n"
    )
    end = "module load monarch\nmonarch stop\n"
    begun: list[str] = []
    try:
        reports = []
        for name in accounts:
            begun.append(name)
            reports.append(json.loads("\n".join(cluster.shell(system, begin, user=name))))
        disk = cluster.place / "local" / __version__
        for name, report in zip(accounts, reports, strict=True):
            uid = pwd.getpwnam(name).pw_uid
            assert Path(f"/proc/{report['pid']}").stat().st_uid == uid
            assert report["tiers"][0]["files"] == 4
            for place in (disk, cluster.place / "shm"):
                found = (place / f"monarch-{uid}").stat()
                assert (found.st_uid, found.st_mode & 0o777) == (uid, 0o700)
        assert len({report["pid"] for report in reports}) == 2
    finally:
        for name in begun:
            cluster.shell(system, end, user=name)


def test_doctor_finds_mpi_beside_the_package(cluster: Cluster) -> None:
    """doctor finds an mpi4py in the directory of Monarch's installation, although the interpreter
    does not search this directory by default."""
    prefix = install(cluster.place / "opt" / "own", cluster.python)
    packages = prefix / "lib" / PYTHON / "site-packages"
    own = packages / "mpi4py"
    if own.is_symlink():
        own.unlink()
    own.mkdir()
    (own / "__init__.py").write_text(
        "def rc(**_): pass\nclass MPI:\n"
        "    Get_library_version = staticmethod(lambda: 'MPI of the directory')\n"
    )
    done = cluster.run([str(prefix / "bin/monarch"), "doctor"])
    assert "  mpi4py finds MPI of the directory\n" in done.stdout


LAYOUTS = [
    f"lib/{PYTHON}/dist-packages",
    f"lib64/{PYTHON}/site-packages",
    "lib/python3/dist-packages",
]


@pytest.mark.parametrize("packages", cases(LAYOUTS, short=LAYOUTS[2:]))
def test_layouts_of_distributions_are_found(cluster: Cluster, packages: str) -> None:
    prefix = install(cluster.place / "opt" / "theirs", cluster.python, packages)
    site = prefix / "etc/monarch/site.yaml"
    site.parent.mkdir(parents=True)
    site.write_text("hierarchy: []\n")
    done = cluster.run([str(prefix / "bin/monarch"), "module", "--tcl"])
    assert (done.returncode, done.stderr) == (0, "")
    assert f"{{{prefix}/{packages}/monarch_py/libmonarch.so}}" in done.stdout
    assert f"setenv MONARCH_SITE_CONFIG {{{site}}}" in done.stdout


def test_a_site_without_a_configuration_is_told(cluster: Cluster) -> None:
    prefix = install(cluster.place / "opt" / "bare", cluster.python)
    words = [str(prefix / "bin/monarch"), "module", "--lua"]
    done = cluster.run(words)
    assert done.returncode == 0
    assert "MONARCH_SITE_CONFIG" not in done.stdout
    site = prefix / "etc/monarch/site.yaml"
    said = (
        f"monarch: warning: the modulefile names no configuration of the site; write {site}, then "
    )
    assert done.stderr.startswith(said)


def test_the_python_of_the_job_is_no_matter(cluster: Cluster) -> None:
    """The command `monarch` ignores the job's Python variables and the user's ~/.local, but the
    programs that it runs get these variables."""
    prefix = install(cluster.place / "opt" / "apart", cluster.python)
    own = cluster.place / ".local" / "lib" / PYTHON / "site-packages"
    own.mkdir(parents=True)
    (own / "usercustomize.py").write_text("raise SystemExit('the user's code ran')\n")
    job = {"HOME": str(cluster.place), "PYTHONHOME": "/nowhere", "PYTHONPATH": str(own)}
    words = [str(prefix / "share/monarch/bin/monarch"), "--version"]
    done = cluster.run(words, **job)
    assert (done.stdout, done.stderr) == (f"monarch, version {__version__}\n", "")
    file = cluster.place / "tiers.yaml"
    tier = f"{{mount_point: {cluster.place}/local, max_storage_quota: 1MiB}}"
    (cluster.place / "local").mkdir()
    file.write_text(f"sources: [{cluster.dataset}]\nhierarchy: [{tier}]\n")
    words[1:] = ["run", "-q", "-c", str(file), "--", "env"]
    done = cluster.run(words, **job)
    assert {f"{name}={value}" for name, value in job.items()} <= {*done.stdout.splitlines()}


@pytest.mark.long
def test_pip_makes_such_an_installation(cluster: Cluster) -> None:
    """`pip install --prefix` makes the same commands as `install` above. These commands still work
    after the installation has been moved."""
    made, first = cluster.place / "opt" / "made", cluster.place / "opt" / "pip.first"
    install(made, cluster.python)
    words = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--prefix", str(first)]
    # Without this option, pip would uninstall the installation under test.
    words.append("--ignore-installed")
    if importlib.util.find_spec("setuptools") is not None:
        words.append("--no-build-isolation")
    subprocess.run([*words, str(ROOT)], check=True, timeout=600)
    packages = first / "lib" / PYTHON / "site-packages"
    prefix = finish(first, cluster.place / "opt" / "pip", packages)
    for name in ("bin/monarch", "share/monarch/bin/monarch"):
        lines = (prefix / name).read_text().splitlines(), (made / name).read_text().splitlines()
        assert lines[0][1:] == lines[1][1:]
        done = cluster.run([str(prefix / name), "env", "--library"])
        library = prefix / "lib" / PYTHON / "site-packages/monarch_py/libmonarch.so"
        assert (done.stdout, done.stderr) == (f"{library}\n", "")
