"""Reads ranges of files from other nodes' copies: authentication, serving, and retry of peers.

Python connects and authenticates (tcp.py, server.py); C (csrc/peers) moves the bytes, without
Python's lock.
"""

from monarch_py.peers.handshake import Party, Purpose, new_secret
from monarch_py.peers.peer import Peer
from monarch_py.peers.queries import ask
from monarch_py.peers.server import PeerServer, listen
from monarch_py.peers.status import PeerStatus, Unreachable
from monarch_py.peers.tcp import connect_link

__all__ = [
    "Party",
    "Peer",
    "PeerServer",
    "PeerStatus",
    "Purpose",
    "Unreachable",
    "ask",
    "connect_link",
    "listen",
    "new_secret",
]
