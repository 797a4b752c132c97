"""A RAM tier in a memory cgroup takes only the memory that is still free in the cgroup. If the tier
took more, the kernel would kill the job."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from support.cgroups import memory_group
from support.draws import sized
from support.files import Files, check_all
from support.mounts import Mounts
from support.session import MIB, Session
from support.watch import assert_quiet, settle

from monarch_py.storage.memory import HEADROOM, available_bytes

GIB = 1 << 30
NO_LIMIT_V1 = "9223372036854771712"


def test_a_ram_tier_larger_than_its_cgroup_kills_nothing(
    session_factory: Callable[..., Session], tmp_path: Path, mounts: Mounts
) -> None:
    count = sized(100, 150)
    files = Files(tmp_path / "source").add_many(count, 2 * MIB)
    point = mounts.tmpfs("ram", GIB)
    level = {"mount_point": point, "max_storage_quota": GIB, "type": "ram"}
    with memory_group(128 * MIB) as group:
        session = session_factory(files.root, tiers=[level])
        session.start(prefix=group.prefix)
        found = settle(session)
        assert found["present"] + found["no_room"] == count
        assert found["present"] > 5
        assert found["no_room"] > count - 70
        assert group.oom_kills() == 0
        check_all(session, files)
        assert_quiet(session)
        session.stop()
    assert "Killed" not in session.log.read_text()


def test_the_same_tier_without_a_cgroup_takes_everything(
    session_factory: Callable[..., Session], tmp_path: Path, mounts: Mounts
) -> None:
    if available_bytes() < 700 * MIB:
        pytest.skip("less than 700 MiB of memory are left on this machine")
    count = sized(75, 100)  # more files than fit into the cgroup of the previous test
    files = Files(tmp_path / "source").add_many(count, 2 * MIB)
    level = {"mount_point": mounts.tmpfs("ram", GIB), "max_storage_quota": GIB, "type": "ram"}
    session = session_factory(files.root, tiers=[level]).start()
    assert settle(session) == {"present": count}
    check_all(session, files)


class Machine:
    """A simulated machine: files like those in /proc and in mounts of cgroup file systems."""

    def __init__(self, root: Path, *, available: int = 100 * GIB) -> None:
        self.root = root
        self.mounts = root / "mounts"
        self.cgroup = root / "cgroup"
        self.meminfo = root / "meminfo"
        self.mounts.write_text("proc /proc proc rw 0 0\n")
        self.cgroup.write_text("")
        total = 160 * GIB
        self.meminfo.write_text(f"MemTotal: {total >> 10} kB\nMemAvailable: {available >> 10} kB\n")
        self.machine_left = available - int(total * HEADROOM)

    def mount(self, kind: str, name: str, options: str = "rw") -> Path:
        where = self.root / name
        where.mkdir()
        with self.mounts.open("a") as table:
            table.write(f"{kind} {where} {kind} {options} 0 0\n")
        return where

    def member(self, line: str) -> None:
        with self.cgroup.open("a") as table:
            table.write(line + "\n")

    def left(self) -> int:
        return available_bytes(self.cgroup, self.mounts, self.meminfo)


def group_v1(where: Path, limit: int | str, used: int, cache: int = 0) -> None:
    where.mkdir(parents=True, exist_ok=True)
    (where / "memory.limit_in_bytes").write_text(f"{limit}\n")
    (where / "memory.usage_in_bytes").write_text(f"{used}\n")
    (where / "memory.stat").write_text(f"inactive_file 1\ntotal_inactive_file {cache}\n")


def group_v2(where: Path, limit: int | str, used: int, cache: int = 0) -> None:
    where.mkdir(parents=True, exist_ok=True)
    (where / "memory.max").write_text(f"{limit}\n")
    (where / "memory.current").write_text(f"{used}\n")
    (where / "memory.stat").write_text(f"anon 1\ninactive_file {cache}\n")


def left_of(limit: int, used: int, cache: int = 0) -> int:
    return limit - used + cache - int(limit * HEADROOM)


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


def test_no_cgroup_at_all_leaves_what_the_machine_has(machine: Machine) -> None:
    assert machine.left() == machine.machine_left


def test_version_1_counts_clean_cache_as_room(machine: Machine) -> None:
    root = machine.mount("cgroup", "v1", "rw,nosuid,memory")
    machine.member("9:cpu,cpuacct:/other")
    machine.member("5:memory:/job")
    group_v1(root, NO_LIMIT_V1, 50 * GIB)
    group_v1(root / "job", 8 * GIB, 3 * GIB, cache=GIB)
    assert machine.left() == left_of(8 * GIB, 3 * GIB, GIB)


def test_version_2(machine: Machine) -> None:
    root = machine.mount("cgroup2", "v2")
    machine.member("0::/user.slice/job")
    (root / "user.slice").mkdir()
    group_v2(root / "user.slice/job", 4 * GIB, GIB)
    assert machine.left() == left_of(4 * GIB, GIB)


def test_a_process_that_was_moved_to_another_group_asks_that_group(machine: Machine) -> None:
    root = machine.mount("cgroup2", "v2")
    for name, limit in (("a", 4 * GIB), ("b", 2 * GIB)):
        group_v2(root / name, limit, GIB)
    for name, limit in (("a", 4 * GIB), ("b", 2 * GIB), ("a", 4 * GIB)):
        machine.cgroup.write_text(f"0::/{name}\n")
        assert machine.left() == left_of(limit, GIB)


@pytest.mark.parametrize("version", ["v1", "v2"])
def test_the_tightest_ancestor_decides(machine: Machine, version: str) -> None:
    make = group_v1 if version == "v1" else group_v2
    root = machine.mount("cgroup" if version == "v1" else "cgroup2", version, "rw,memory")
    machine.member("5:memory:/a/b/c" if version == "v1" else "0::/a/b/c")
    make(root / "a", 20 * GIB, 18 * GIB)
    make(root / "a/b", 6 * GIB, GIB)
    make(root / "a/b/c", "max" if version == "v2" else NO_LIMIT_V1, GIB)
    assert machine.left() == left_of(20 * GIB, 18 * GIB)


@pytest.mark.parametrize("version", ["v1", "v2"])
def test_no_limit_is_no_number(machine: Machine, version: str) -> None:
    if version == "v1":
        group_v1(machine.mount("cgroup", "v1", "rw,memory") / "job", NO_LIMIT_V1, GIB)
        machine.member("5:memory:/job")
    else:
        group_v2(machine.mount("cgroup2", "v2") / "job", "max", GIB)
        machine.member("0::/job")
    assert machine.left() == machine.machine_left


@pytest.mark.parametrize("version", ["v1", "v2"])
def test_in_a_container_the_mount_is_our_own_group(machine: Machine, version: str) -> None:
    """In a container, the root of the mounted cgroup file system is the container's own group. The
    path of the group in /proc is a path on the host, which does not exist below the mount."""
    if version == "v1":
        group_v1(machine.mount("cgroup", "v1", "ro,memory"), 2 * GIB, GIB)
        machine.member("5:memory:/docker/0123456789abcdef")
    else:
        group_v2(machine.mount("cgroup2", "v2", "ro"), 2 * GIB, GIB)
        machine.member("0::/../../pod/0123456789abcdef")
    assert machine.left() == left_of(2 * GIB, GIB)


def test_both_versions_mounted_and_memory_in_the_first(machine: Machine) -> None:
    root = machine.mount("cgroup", "v1", "rw,memory")
    machine.mount("cgroup2", "unified")
    machine.member("4:memory:/job")
    machine.member("0::/job")
    group_v1(root / "job", 3 * GIB, GIB)
    assert machine.left() == left_of(3 * GIB, GIB)


def test_a_group_beyond_its_limit_leaves_nothing(machine: Machine) -> None:
    group_v2(machine.mount("cgroup2", "v2") / "job", GIB, 2 * GIB)
    machine.member("0::/job")
    assert machine.left() == 0


def test_files_that_cannot_be_understood_are_no_limit(machine: Machine) -> None:
    machine.mounts.write_text("nonsense\n")
    machine.member("5:memory:/job")
    assert machine.left() == machine.machine_left
    machine.cgroup.unlink()
    assert machine.left() == machine.machine_left
