"""The address at which the other nodes reach this node."""

import ipaddress
import socket

import psutil

from monarch_py.config.schema import Config
from monarch_py.errors import ConfigError


def is_loopback(address: str) -> bool:
    """Whether only this node itself can reach the address."""
    return ipaddress.ip_address(address).is_loopback


def serving_address(config: Config) -> str:
    """Returns the address at which the other nodes reach this node. Tries in turn:
    - `peers.address` of the configuration
    - the first address of the interface `peers.interface` of the configuration
    - the first of this node's addresses to which the host's name resolves
    - the first address of any of this node's interfaces

    The last two steps skip loopback addresses. If no address is left, returns 127.0.0.1.

    Raises ConfigError if the configuration names an interface that has no address.
    """
    peers = config.peers
    if peers.address is not None:
        return peers.address
    here = _addresses()
    if peers.interface is not None:
        found = here.get(peers.interface)
        if not found:
            raise ConfigError(
                f"{config.file}: peers.interface: {peers.interface!r} has no address on"
                f" {socket.gethostname()}; choose from {', '.join(here)}"
            )
        return found[0]
    all_here = [address for addresses in here.values() for address in addresses]
    known = [address for address in _of_host_name() if address in all_here]
    return next((a for a in [*known, *all_here] if not is_loopback(a)), "127.0.0.1")


def _addresses() -> dict[str, list[str]]:
    """Returns the addresses of each interface that is up, IPv4 first. Leaves out link-local
    addresses, which are valid only together with the interface's name."""
    states = psutil.net_if_stats()
    found = {}
    for name, addresses in psutil.net_if_addrs().items():
        usable = [
            a.address
            for family in (socket.AF_INET, socket.AF_INET6)
            for a in addresses
            if a.family == family and "%" not in a.address
        ]
        if usable and name in states and states[name].isup:
            found[name] = usable
    return found


def _of_host_name() -> list[str]:
    try:
        found = socket.getaddrinfo(socket.gethostname(), None, type=socket.SOCK_STREAM)
    except OSError:  # the host's name cannot be resolved
        return []
    return [str(address[0]) for *_, address in found]
