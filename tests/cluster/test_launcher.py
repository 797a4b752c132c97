"""Tests how a rank examines its launcher and its network, and how it checks whether the daemons of
several nodes can form one cluster."""

from __future__ import annotations

import socket
from collections import namedtuple
from dataclasses import replace
from pathlib import Path

import psutil
import pytest

from monarch_py.cluster.address import serving_address
from monarch_py.cluster.node_info import NodeInfo, check_infos, check_members
from monarch_py.config.schema import Config, PeersConfig
from monarch_py.errors import ConfigError, SessionError
from monarch_py.peers.membership import Cluster, Member
from monarch_py.util.launcher import VARIABLES, Launch, launched, with_rank

# --- the launcher -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("environment", "found"),
    [
        ({}, None),
        ({"PMI_SIZE": "4", "PMI_RANK": "3"}, Launch(3, 4)),
        ({"OMPI_COMM_WORLD_SIZE": "2", "OMPI_COMM_WORLD_RANK": "1"}, Launch(1, 2)),
        ({"SLURM_STEP_NUM_TASKS": "8", "SLURM_PROCID": "7"}, Launch(7, 8)),
        # A batch script has the variables of the job's tasks, but is not itself a step.
        ({"SLURM_NTASKS": "8", "SLURM_PROCID": "0"}, None),
        # mpiexec runs in a step of Slurm. The variables of mpiexec count, not those of the step.
        (
            {"PMI_SIZE": "8", "PMI_RANK": "5", "SLURM_STEP_NUM_TASKS": "2", "SLURM_PROCID": "1"},
            Launch(5, 8),
        ),
        ({"PMI_SIZE": "many", "PMI_RANK": "1"}, None),
        ({"PMI_SIZE": "4"}, None),
    ],
)
def test_the_launcher_is_known_by_its_variables(
    environment: dict[str, str], found: Launch | None
) -> None:
    assert launched(environment) == found


def test_a_rank_in_a_name(monkeypatch: pytest.MonkeyPatch) -> None:
    for names in VARIABLES:
        for name in names:
            monkeypatch.delenv(name, raising=False)
    assert with_rank(Path("a/tiers.yaml")) == Path("a/tiers.yaml")
    with pytest.raises(ConfigError, match=r"^a/\{rank\}\.yaml: no launcher"):
        with_rank(Path("a/{rank}.yaml"))
    monkeypatch.setenv("SLURM_STEP_NUM_TASKS", "12")
    monkeypatch.setenv("SLURM_PROCID", "11")
    assert with_rank(Path("{rank}/tiers-{rank}.yaml")) == Path("11/tiers-11.yaml")


# --- the address ------------------------------------------------------------------------------

Address = namedtuple("Address", "family address")
Stats = namedtuple("Stats", "isup")
NETWORK = {
    "lo": ["127.0.0.1", "::1"],
    "down0": ["10.1.0.1"],
    "eth0": ["fe80::1%eth0", "fd00::2", "10.2.0.2"],
    "ib0": ["10.3.0.3"],
    "six0": ["fd00::4"],
}


@pytest.fixture
def network(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """A node that has the interfaces of NETWORK. Its host name has no address."""

    def addresses() -> dict[str, list[Address]]:
        v6, v4 = socket.AF_INET6, socket.AF_INET
        return {n: [Address(v6 if ":" in a else v4, a) for a in NETWORK[n]] for n in NETWORK}

    monkeypatch.setattr(psutil, "net_if_addrs", addresses)
    monkeypatch.setattr(psutil, "net_if_stats", lambda: {n: Stats(n != "down0") for n in NETWORK})
    monkeypatch.setattr(socket, "gethostname", lambda: "node7")
    name_stands_for(monkeypatch)
    return monkeypatch


def name_stands_for(monkeypatch: pytest.MonkeyPatch, *addresses: str) -> None:
    def look_up(name: str, *_: object, **__: object) -> list[tuple[object, ...]]:
        assert name == "node7"
        if not addresses:
            raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")
        return [(0, 0, 0, "", (address, 0)) for address in addresses]

    monkeypatch.setattr(socket, "getaddrinfo", look_up)


def config(**peers: str) -> Config:
    return Config(Path("/etc/tiers.yaml"), (), (), peers=PeersConfig(**peers))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("names", "address"),
    [
        ((), "10.2.0.2"),  # the address of the first interface that is up
        (("10.3.0.3",), "10.3.0.3"),
        (("127.0.1.1", "10.3.0.3"), "10.3.0.3"),
        (("127.0.0.1",), "10.2.0.2"),
        (("192.0.2.9",), "10.2.0.2"),  # the address of a gateway, for instance
        (("10.1.0.1",), "10.2.0.2"),  # the address of an interface that is down
    ],
)
def test_where_the_others_reach_this_node(
    network: pytest.MonkeyPatch, names: tuple[str, ...], address: str
) -> None:
    name_stands_for(network, *names)
    assert serving_address(config()) == address


@pytest.mark.parametrize(
    ("peers", "address"),
    [
        ({"interface": "ib0"}, "10.3.0.3"),
        ({"interface": "eth0"}, "10.2.0.2"),
        ({"interface": "six0"}, "fd00::4"),
        ({"interface": "lo"}, "127.0.0.1"),
        ({"address": "192.0.2.1"}, "192.0.2.1"),
    ],
)
def test_where_the_configuration_says(
    network: pytest.MonkeyPatch, peers: dict[str, str], address: str
) -> None:
    assert serving_address(config(**peers)) == address


@pytest.mark.parametrize("name", ["eth9", "down0"])
def test_an_interface_that_is_not_there(network: pytest.MonkeyPatch, name: str) -> None:
    words = (
        rf"^/etc/tiers\.yaml: peers\.interface: '{name}' has no address on node7; choose from lo, "
    )
    with pytest.raises(ConfigError, match=words):
        serving_address(config(interface=name))


def test_a_node_without_a_network_has_itself(network: pytest.MonkeyPatch) -> None:
    network.setattr(psutil, "net_if_stats", lambda: {"lo": Stats(True)})
    assert serving_address(config()) == "127.0.0.1"


# --- whether the nodes fit together ---------------------------------------------------------------


def info(node: int) -> NodeInfo:
    return NodeInfo(
        name=f"node{node}",
        place=(f"node{node}", "boot", "/dev/shm/monarch-0/1", "22"),
        file="/etc/tiers.yaml",
        address=(f"10.0.0.{node}", 7000),
        running=None,
        quotas=(1,),
        agreed={"block_size": "4 bytes", "sources[0]": "'/data'"},
        warnings=(),
    )


def refusal(*infos: NodeInfo) -> str:
    with pytest.raises(SessionError) as caught:
        check_infos(infos)
    return str(caught.value)


def test_nodes_that_go_together() -> None:
    check_infos([info(i) for i in range(4)])
    check_infos([replace(info(0), address=("127.0.0.1", 1))])
    # Two machines may have the same name.
    other = replace(info(1), place=("node0", "other boot", *info(0).place[2:]))
    check_infos([info(0), other])


def test_nodes_that_do_not() -> None:
    words = refusal(info(0), info(1), replace(info(2), place=info(0).place))
    assert words.startswith("ranks 0 and 2 are both on node0, with one configuration: start one")
    words = refusal(info(0), replace(info(1), address=("127.0.1.1", 7)))
    assert words.startswith("node1: other nodes cannot reach the loopback address 127.0.1.1;")
    words = refusal(info(0), replace(info(1), agreed={**info(1).agreed, "block_size": "8 bytes"}))
    assert words.startswith("node1: block_size is 8 bytes, but on node0 it is 4 bytes; it must be")
    words = refusal(info(0), replace(info(1), agreed={"block_size": "4 bytes"}))
    assert words.startswith("node1: sources[0] is missing, but on node0 it is '/data'; ")


def running(count: int, name: str = "name") -> list[NodeInfo]:
    return [replace(info(i), running=name, address=None) for i in range(count)]


def test_daemons_that_run_already() -> None:
    ours = running(3)
    check_infos(ours)
    one_is_lost = [*ours[:2], info(2)]
    check_infos(one_is_lost)
    for other in ("", "other"):
        some = [*ours[:2], replace(ours[2], running=other)]
        assert refusal(*some).startswith("node2: a daemon serves this configuration already, but")
    # In the next two cases, each running daemon serves only its own node.
    assert "a daemon serves this configuration already" in refusal(*running(2, ""))
    assert refusal(info(0), *running(2, "")[1:]).startswith("node1: a daemon serves")


def of_cards(infos: list[NodeInfo]) -> Cluster:
    members = [Member(each.name, f"10.0.0.{i}", 7000, (1,)) for i, each in enumerate(infos)]
    return Cluster(0, tuple(members), bytes(32), infos[0].agreed)


def other_members(infos: list[NodeInfo], cluster: Cluster) -> str:
    with pytest.raises(SessionError) as caught:
        check_members(infos, cluster)
    return str(caught.value)


def test_who_comes_back_is_who_was_there() -> None:
    infos = [*running(2), info(2)]
    cluster = of_cards(infos)
    check_members(infos, cluster)
    words = other_members([*running(2), replace(info(2), name="node9")], cluster)
    assert words.startswith("the running daemons were started on node0, node1, node2, but these")
    assert "are on node0, node1, node9: start the same ranks" in words
    assert other_members(infos[:2], cluster).startswith("the running daemons were started on")
    words = other_members([*running(2), replace(info(2), quotas=(2, 3))], cluster)
    assert words.startswith("node2: the quotas are 2, 3 bytes, but the running daemons were")
    plan = {**info(2).agreed, "plan[0]": "a file"}
    words = other_members([*running(2), replace(info(2), agreed=plan)], cluster)
    assert words.startswith("node2: plan[0] is a file, but on the nodes with running daemons it is")
    # The running daemons keep the settings with which they were started, even if their
    # configuration files have changed since.
    check_members([*running(1), replace(running(2)[1], quotas=(5,)), info(2)], cluster)
