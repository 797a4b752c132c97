"""`monarch doctor`: its findings on a sound machine, and on each fault that a test can cause."""

from __future__ import annotations

import json
import mmap
import os
import platform
import re
import resource
import shutil
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from cli.conftest import FILES, Factory, Monarch
from cli.processes import on_a_terminal
from support.files import age
from support.mounts import Mounts
from support.session import MIB, Session

from monarch_py.commands import doctor
from monarch_py.commands.doctor import examine
from monarch_py.commands.switches import Finding
from monarch_py.native import LIBRARY
from monarch_py.packs.tar import write_pack
from monarch_py.storage import memory
from monarch_py.util.container import container

MACHINE = ["machine", "C library", "preload library", "shared memory", "many nodes"]


def examined(session: Session, **environment: str) -> tuple[int, dict[str, dict[str, Any]]]:
    """Runs `monarch doctor`. Returns its exit status and its findings by subject. If doctor has
    several findings on a subject, only the last of these is returned."""
    done = session.monarch("doctor", "--json", environment=environment)
    assert done.stderr == ""
    return done.returncode, {found["what"]: found for found in json.loads(done.stdout)}


@pytest.fixture(autouse=True)
def outside(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> None:
    """Makes doctor find no container, even if the tests run in one. Unless a test uses the fixture
    `mpi`, doctor does not look for MPI either, because this search starts a separate process."""
    monkeypatch.setattr(doctor, "container", lambda: "")
    if "mpi" not in request.fixturenames:
        monkeypatch.setattr(doctor, "_many_nodes", lambda: Finding("ok", "many nodes", ""))


@pytest.fixture
def mpi() -> None:
    """Makes doctor look for MPI."""


@pytest.fixture
def here(session: Session, monkeypatch: pytest.MonkeyPatch) -> Iterator[Session]:
    """A session for `found`, which runs doctor in the test's process. There, a test can replace a
    part of the code to cause a fault that it cannot cause from outside."""
    monkeypatch.setenv("MONARCH_SHM", str(session.shm))
    monkeypatch.delenv("LD_PRELOAD", raising=False)
    yield session


def found(session: Session, what: str) -> Finding:
    (finding,) = [finding for finding in examine(session.config) if finding.what == what]
    return finding


# --- a sound machine ----------------------------------------------------------------------------


@pytest.mark.usefixtures("mpi")
def test_all_is_well_while_a_daemon_serves(served: Session) -> None:
    status, findings = examined(served)
    assert status == 0
    rest = ["configuration", "source", "tier (ssd)", "containers", "address", "daemon"]
    assert list(findings) == [*MACHINE, *rest]
    levels = {**dict.fromkeys(findings, "ok"), "containers": "note"}
    assert {name: f["level"] for name, f in findings.items()} == levels
    assert all(finding["hint"] == "" for finding in findings.values())
    assert findings["daemon"]["found"] == f"process {served.status()['pid']} serves"
    assert findings["preload library"]["found"] == str(LIBRARY)
    assert findings["machine"]["found"] == platform.machine()


def test_a_configuration_that_was_changed_since_is_a_warning(served: Session) -> None:
    served.config.write_text(served.config.read_text() + "# Other text.\n")
    _, findings = examined(served)
    assert findings["daemon"]["level"] == "warning"
    assert findings["daemon"]["found"] == (
        f"{served.config} has changed since its daemon was started; run `monarch stop` and"
        " `monarch start` to apply the change"
    )


@pytest.mark.usefixtures("mpi")
def test_the_text_has_the_same_findings(served: Session) -> None:
    done = served.monarch("doctor")
    assert done.returncode == 0
    first_words = [line.split("  ")[0] for line in done.stdout.splitlines() if line[0] != " "]
    assert first_words == [*["ok"] * 8, "note", "ok", "ok"]


@pytest.mark.parametrize(
    ("mark", "kind"),
    [
        ("/.dockerenv", "Docker"),
        ("/run/.containerenv", "podman"),
        ("/.singularity.d", "Apptainer"),
        ("/none", ""),
    ],
)
def test_a_container_is_recognised_by_a_file(
    monkeypatch: pytest.MonkeyPatch, mark: str, kind: str
) -> None:
    monkeypatch.setattr(os.path, "lexists", lambda path: path == mark)
    monkeypatch.delenv("container", raising=False)
    assert container() == kind


def test_what_a_container_must_share(session: Session) -> None:
    _, findings = examined(session)
    shared = findings["containers"]["found"].partition(": ")[2].split()
    places = [session.shm, LIBRARY.parent, session.config, session.source, *session.tiers]
    assert shared == [str(place) for place in places]
    relative = os.path.relpath(session.config)
    _, findings = examined(session, MONARCH_CONFIG=relative)
    assert f" {session.config} " in findings["containers"]["found"]


def test_a_container_that_lacks_what_a_daemon_outside_needs(
    here: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(doctor, "container", lambda: "podman")
    monkeypatch.setattr(doctor, "is_of_the_image", lambda place: place == here.source)
    assert found(here, "machine").found == f"{platform.machine()}, in a podman container"
    assert found(here, "containers").found == (
        f"a daemon outside this container cannot be reached; paths not mounted: {here.source}"
    )
    here.start()
    assert found(here, "containers").found.startswith("if the job runs in a container ")


def test_names_with_brackets_are_told_as_they_are(
    session_factory: Factory, source: Path, tmp_path: Path
) -> None:
    odd, tier = tmp_path / "a [v2] br[", tmp_path / "ö [x]"
    (tmp_path / "a [v2] br[" / "b]x").mkdir(parents=True)
    tier.mkdir()
    session = session_factory(odd, tiers=[{"mount_point": tier, "max_storage_quota": MIB}])
    text = session.monarch("doctor").stdout
    rows = dict(re.findall(r"^ok +(source|tier \(\w+\)) +(.*)$", text, re.M))
    assert rows["source"] == str(odd)
    assert [row.partition(": ")[0] for name, row in rows.items() if name != "source"] == [str(tier)]
    done = session.monarch("doctor", environment={"PYTHONIOENCODING": "ascii"})
    assert (done.returncode, done.stderr) == (0, "")
    assert "ö [x]: quota" in done.stdout or "\\xf6 [x]: quota" in done.stdout


def test_what_looks_like_markup_is_text(monarch: Monarch, tmp_path: Path) -> None:
    config = tmp_path / "[b]tiers[" / "c].yaml"
    config.parent.mkdir()
    config.write_text("hierarchy: [{mount_point: /tmp, max_storage_quota: 1MiB}]\n")
    done = monarch("doctor", "-c", str(config))
    assert (done.returncode, done.stderr) == (1, "")
    assert f"{config}:1: sources: there is no source; add the dataset: 'sources: [/" in done.stdout


def test_a_path_stays_in_one_piece_on_a_narrow_terminal(session: Session) -> None:
    """On a narrow terminal no path is split across two lines, so that the user can copy it."""
    status, shown = on_a_terminal(session, "doctor", columns=60, environment={})
    assert status == 0
    text = re.sub(r"\x1b\[[0-9;]*m", "", shown)
    lines = text.replace("\r", "").splitlines()
    for path in (LIBRARY, session.config, session.source):
        assert any(str(path) in line for line in lines), text
    assert all(len(line) < 60 or " " not in line[26:] for line in lines)


def test_a_site_leaves_the_dataset_to_its_users(session: Session) -> None:
    text = session.config.read_text()
    session.config.write_text(text[: text.index("sources:")])
    status, findings = examined(session, MONARCH_SITE_CONFIG=str(session.config))
    assert status == 0
    assert findings["configuration"] == {
        "level": "warning",
        "what": "configuration",
        "found": f"{session.config} names no dataset",
        "hint": "set MONARCH_SOURCE=/the/dataset to have the dataset checked too",
    }
    assert findings["tier (ssd)"]["level"] == "ok"
    assert "daemon" not in findings


# --- faults -------------------------------------------------------------------------------------


@pytest.mark.usefixtures("mpi")
@pytest.mark.parametrize(
    ("script", "level", "said"),
    [
        ("print('MPICH Version: 9')", "ok", "mpi4py finds MPICH Version: 9"),
        ("raise RuntimeError('no libmpi.so')", "warning", "does not load: RuntimeError: no libmpi"),
        ("import os; os.abort()", "warning", "mpi4py does not load: status -6"),
        ("import time; time.sleep(60)", "warning", "MPI did not load within 0.2 s"),
    ],
)
def test_what_mpi_says_of_itself(
    here: Session, monkeypatch: pytest.MonkeyPatch, script: str, level: str, said: str
) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: name)  # no mpi4py is needed
    monkeypatch.setattr(doctor, "MPI_VERSION", script)
    monkeypatch.setattr(doctor, "MPI_S", 0.2 if "sleep" in script else doctor.MPI_S)
    finding = found(here, "many nodes")
    assert (finding.level, said in finding.found) == (level, True), finding


@pytest.mark.usefixtures("mpi")
@pytest.mark.parametrize(
    ("settings", "has_mpi", "level"),
    [
        ({"peers": {"port": 0, "fetch": "holders"}}, False, "problem"),
        ({}, True, "warning"),
        ({}, False, None),
    ],
)
def test_libcrypto_is_missed_where_nodes_may_need_it(
    session_factory: Factory,
    tree: Path,
    monkeypatch: pytest.MonkeyPatch,
    settings: dict[str, Any],
    has_mpi: bool,
    level: str | None,
) -> None:
    session = session_factory(tree, **settings)
    monkeypatch.setenv("MONARCH_SHM", str(session.shm))
    monkeypatch.setattr("importlib.util.find_spec", lambda name: name if has_mpi else None)
    monkeypatch.setattr(doctor, "MPI_VERSION", "")

    def libcrypto() -> list[Finding]:
        return [finding for finding in examine(session.config) if finding.what == "libcrypto"]

    assert libcrypto() == []
    monkeypatch.setattr(doctor, "has_libcrypto", lambda: False)
    assert [finding.level for finding in libcrypto()] == ([level] if level else [])
    assert all("libssl3" in finding.hint for finding in libcrypto())


@pytest.mark.usefixtures("mpi")
def test_mpi_is_found_where_it_is(here: Session) -> None:
    pytest.importorskip("mpi4py", reason="mpi4py is not installed: pip install '.[mpi]'")
    finding = found(here, "many nodes")
    assert finding.level == "ok"
    assert finding.found.startswith("mpi4py finds ")


@pytest.mark.usefixtures("mpi")
def test_without_mpi4py_a_node_works_alone(here: Session, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    finding = found(here, "many nodes")
    assert (finding.level, finding.hint) == ("ok", "")
    assert "alone" in finding.found


def test_an_interface_that_is_not_there_is_a_problem(
    session_factory: Factory, source: Path
) -> None:
    status, findings = examined(session_factory(source, peers={"interface": "none0"}))
    assert (status, findings["address"]["level"]) == (1, "problem")
    assert "'none0'" in findings["address"]["found"]


def test_no_daemon_is_no_fault(session: Session) -> None:
    status, findings = examined(session)
    daemon = findings["daemon"]
    assert (status, daemon["level"], daemon["hint"]) == (0, "note", "")
    assert daemon["found"].startswith("no daemon runs; `monarch run` starts one")
    assert f"{daemon['found']}\n" in session.monarch("doctor").stdout


def test_a_daemon_that_was_killed_is_a_problem(served: Session) -> None:
    served.kill()
    status, findings = examined(served)
    assert (status, findings["daemon"]["level"]) == (1, "problem")
    assert findings["daemon"]["found"].startswith("the last daemon was killed or crashed")


def test_a_configuration_that_cannot_work_is_a_problem(monarch: Monarch, tmp_path: Path) -> None:
    config = tmp_path / "tiers.yaml"
    config.write_text("sources: []\n")
    done = monarch("doctor", "-c", str(config), "--json")
    last = json.loads(done.stdout)[-1]
    assert (done.returncode, last["what"], last["level"]) == (1, "configuration", "problem")
    assert last["found"].startswith(str(config))


def test_no_daemon_is_promised_where_the_configuration_lets_none_start(session: Session) -> None:
    session.source.rename(session.source.with_name("moved"))
    status, findings = examined(session)
    assert (status, findings["configuration"]["level"]) == (1, "problem")
    # The tiers are examined nevertheless.
    assert findings["tier (ssd)"]["level"] == "ok"
    assert "daemon" not in findings


def test_a_configurations_warnings_are_shown(session_factory: Factory, source: Path) -> None:
    status, findings = examined(session_factory(source, home_dir="/tmp"))
    assert (status, findings["configuration"]["level"]) == (0, "warning")
    assert "home_dir" in findings["configuration"]["found"]


def test_a_pack_that_is_not_that_of_its_index_is_a_warning(
    session_factory: Factory, source: Path, tmp_path: Path
) -> None:
    pack = tmp_path / "train.tar"
    age(source)
    write_pack(source, pack)
    session = session_factory([{"path": str(source), "pack": str(pack)}])
    _, findings = examined(session)
    assert findings["pack"]["level"] == "ok"
    assert findings["pack"]["found"] == f"{pack}: {len(FILES)} files"
    os.utime(pack)
    status, findings = examined(session)
    assert (status, findings["pack"]["level"]) == (0, "warning")
    assert findings["pack"]["found"] == (
        f"not used, and files are read one by one: {pack}: has changed since its index was made"
    )
    assert "--index-only" in findings["pack"]["hint"]


def test_a_switch_file_is_a_warning(session_factory: Factory, source: Path) -> None:
    switch = source.parent / "off"
    session = session_factory(source, switch_file=str(switch))
    assert "switch" not in examined(session)[1]
    switch.touch()
    status, findings = examined(session)
    assert (status, findings["switch"]["level"]) == (0, "warning")
    assert findings["switch"]["found"] == f"{switch} turns everything off"


@pytest.mark.parametrize(
    ("value", "warned"), [("1", True), ("yes", True), ("0", False), ("", False)]
)
def test_monarch_disable_is_a_warning(session: Session, value: str, warned: bool) -> None:
    _, findings = examined(session, MONARCH_DISABLE=value)
    assert ("switch" in findings) is warned
    if warned:
        assert findings["switch"]["found"].startswith("MONARCH_DISABLE is set")


def test_the_library_of_another_installation_is_a_warning(
    here: Session, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = tmp_path / LIBRARY.name
    shutil.copy(LIBRARY, other)
    monkeypatch.setenv("LD_PRELOAD", str(other))
    warning = found(here, "LD_PRELOAD")
    assert warning.level == "warning"
    assert warning.found == f"names another libmonarch.so: {other}"
    monkeypatch.delenv("LD_PRELOAD")
    assert "LD_PRELOAD" not in examined(here, LD_PRELOAD=str(LIBRARY))[1]


def test_shared_memory_that_is_not_there_is_a_problem(session: Session) -> None:
    status, findings = examined(session, MONARCH_SHM="/nowhere/shm")
    assert (status, findings["shared memory"]["level"]) == (1, "problem")
    assert findings["shared memory"]["hint"] == "set MONARCH_SHM"


def test_shared_memory_without_room_is_a_problem(session: Session) -> None:
    # /proc is a file system with no room at all.
    status, findings = examined(session, MONARCH_SHM="/proc")
    assert (status, findings["shared memory"]["level"]) == (1, "problem")
    assert "--shm-size" in findings["shared memory"]["hint"]


def test_no_room_is_promised_for_more_files_than_there_can_be(
    here: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(doctor, "CATALOG_BYTES_PER_FILE", 1)
    assert "the catalog of 16,777,216 files" in found(here, "shared memory").found


def test_a_daemon_starts_in_the_least_shared_memory(session: Session, tmp_path: Path) -> None:
    _, findings = examined(session, MONARCH_SHM="/proc")
    (least,) = re.findall(r"at least (\d+) MiB", findings["shared memory"]["hint"])
    with Mounts(tmp_path) as mounts:
        # The root directory of a tmpfs takes one page, so the file system gets one page more.
        session.shm = mounts.tmpfs("small", int(least) * MIB + mmap.PAGESIZE)
        _, findings = examined(session)
        assert findings["shared memory"]["level"] == "ok"
        session.start().stop()


def test_a_disk_with_less_room_than_the_quota_is_a_warning(
    session_factory: Factory, source: Path, tmp_path: Path
) -> None:
    disk = tmp_path / "disk"
    disk.mkdir()
    system = os.statvfs(disk)
    quota = system.f_blocks * system.f_frsize
    session = session_factory(
        source, tiers=[{"mount_point": disk, "max_storage_quota": quota, "type": "ssd"}]
    )
    status, findings = examined(session)
    assert (status, findings["tier (ssd)"]["level"]) == (0, "warning")
    assert "because its file system of " in findings["tier (ssd)"]["hint"]


def test_a_tier_that_another_daemon_holds_is_a_problem(
    session_factory: Factory, served: Session, tmp_path: Path
) -> None:
    own = tmp_path / "own"
    own.mkdir()
    tiers = [{"mount_point": path, "max_storage_quota": MIB} for path in (served.tiers[0], own)]
    other = session_factory(served.source, tiers=tiers).start()
    status, findings = examined(other)
    assert (status, findings["tier"]["level"]) == (1, "problem")
    held = f"tier {served.tiers[0]} is held by the daemon of {served.config} (process "
    assert findings["tier"]["found"].startswith(held)
    assert findings["tier"]["found"].endswith(f"mount_point: {served.tiers[0] / 'tiers'}")
    # If the second daemon does not run, doctor only warns that the first daemon holds the tier.
    other.stop()
    status, findings = examined(other)
    assert (status, findings["tier"]["level"]) == (0, "warning")
    assert findings["tier"]["found"].startswith(held)


def test_a_daemon_that_can_have_no_tier_is_a_problem(
    session_factory: Factory, served: Session
) -> None:
    """If another daemon holds all tiers, doctor reports a problem, and `monarch run` reports the
    same reason."""
    tiers = [{"mount_point": served.tiers[0], "max_storage_quota": MIB}]
    other = session_factory(served.source, tiers=tiers)
    status, findings = examined(other)
    assert (status, findings["tier"]["level"], findings["daemon"]["level"]) == (1, *["problem"] * 2)
    assert findings["daemon"]["found"].endswith("none can be started: no tier can be used")
    done = other.monarch("run", "-q", "--", "true")
    said = f"no tier can be used: {findings['tier']['found']}; the command reads from the source"
    assert done.stderr == f"monarch: the daemon did not start: {said}\n"


def test_a_tier_that_is_held_by_this_configurations_daemon_of_another_session(
    served: Session, tmp_path: Path
) -> None:
    status, findings = examined(served, MONARCH_SHM=str(tmp_path))
    assert (status, findings["tier"]["level"]) == (1, "problem")
    assert served.daemon is not None
    assert findings["tier"]["found"] == (
        f"tier {served.tiers[0]} is held by another daemon of this configuration"
        f" (process {served.daemon.pid}), and goes unused here: to use that daemon, set"
        " MONARCH_SHM to the value with which that daemon was started; otherwise end that daemon"
    )


def test_a_daemon_that_is_stopped_is_a_problem_and_its_tiers_are_none(
    served: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MONARCH_SHM", str(served.shm))
    monkeypatch.setattr("monarch_py.ipc.connection.ANSWER_LIMIT_S", 0.2)
    assert served.daemon is not None
    served.daemon.send_signal(signal.SIGSTOP)
    try:
        findings = {finding.what: finding for finding in examine(served.config)}
    finally:
        served.daemon.send_signal(signal.SIGCONT)
    daemon = findings["daemon"]
    assert (daemon.level, "tier" in findings) == ("problem", False)
    assert daemon.found.startswith(f"process {served.daemon.pid} does not answer: ")


# --- faults made by replacing a part of the code ------------------------------------------------


def test_a_ram_tier_beyond_the_memory_group_is_a_warning(
    session_factory: Factory, source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mount = tmp_path / "ram"
    mount.mkdir()
    tier = {"mount_point": mount, "max_storage_quota": 64 * MIB, "type": "ram"}
    session = session_factory(source, tiers=[tier])
    monkeypatch.setenv("MONARCH_SHM", str(session.shm))
    monkeypatch.setattr(memory, "available_bytes", lambda: MIB)
    finding = found(session, "tier (ram)")
    assert finding.level == "warning"
    assert finding.hint == (
        "copies get at most 1 MiB now, even if the quota is larger: the memory limit (cgroup)"
        " leaves no more room"
    )


@pytest.mark.parametrize(("huge", "level"), [("always", "warning"), ("within_size", "ok")])
def test_a_ram_tier_where_small_files_take_large_pages_is_a_warning(
    session_factory: Factory,
    source: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    huge: str,
    level: str,
) -> None:
    with Mounts(tmp_path) as mounts:
        tier = {"mount_point": mounts.tmpfs("ram", 64 * MIB, huge=huge), "max_storage_quota": MIB}
        session = session_factory(source, tiers=[tier])
        monkeypatch.setenv("MONARCH_SHM", str(session.shm))
        finding = found(session, "tier (ram)")
    assert finding.level == level
    assert finding.hint.startswith("mount it with huge=within_size" if level != "ok" else "")


def test_a_source_that_may_not_be_read_is_a_problem(
    here: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The tests may run as root, which may read everything, so os.access is replaced.
    monkeypatch.setattr(os, "access", lambda path, *_, **__: path != here.source)
    finding = found(here, "source")
    assert (finding.level, finding.found) == ("problem", f"{here.source} is not readable")


def test_limits_that_are_too_low_are_warnings(
    here: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    limits = {resource.RLIMIT_AS: 60 * MIB, resource.RLIMIT_NOFILE: 100, resource.RLIMIT_FSIZE: MIB}
    most = {**limits, resource.RLIMIT_AS: 4096 * MIB}
    assert not [finding for finding in examine(here.config) if finding.what == "limits"]
    monkeypatch.setattr(resource, "getrlimit", lambda which: (limits[which], most[which]))
    space, files, size = [finding for finding in examine(here.config) if finding.what == "limits"]
    assert (space.level, space.found) == ("warning", "address space limited to 60 MiB")
    assert "ulimit -v unlimited" in space.hint
    hint = "raise the limit: ulimit -n 256 or more"
    assert files == Finding("warning", "limits", "at most 100 open files", hint)
    assert (size.level, size.found) == ("warning", "files of at most 1 MiB")
    assert "ulimit -f unlimited" in size.hint


@pytest.mark.parametrize(("machine", "level"), [("aarch64", "ok"), ("ppc64le", "problem")])
def test_machines(here: Session, monkeypatch: pytest.MonkeyPatch, machine: str, level: str) -> None:
    monkeypatch.setattr(platform, "machine", lambda: machine)
    assert found(here, "machine").level == level


def test_another_c_library_is_a_problem(here: Session, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(platform, "libc_ver", lambda: ("", ""))
    assert found(here, "C library").level == "problem"


def test_a_library_that_is_missing_or_cannot_be_loaded_is_a_problem(
    here: Session, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    broken = tmp_path / LIBRARY.name
    monkeypatch.setattr(doctor, "LIBRARY", broken)
    finding = found(here, "preload library")
    assert (finding.level, finding.found) == ("problem", f"{broken} is missing")
    broken.write_bytes(b"no library")
    finding = found(here, "preload library")
    assert finding.level == "problem"
    assert str(broken) in finding.found
