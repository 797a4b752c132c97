"""Reads ranges of files from other nodes' copies: authentication, serving, and retry of peers.

The rest of Monarch sees only a transport (transport.py); TCP (tcp.py, server.py) is the only one.
C (csrc/peers) moves the bytes, without Python's lock.
"""

from monarch_py.peers.handshake import Party, Purpose, new_secret
from monarch_py.peers.peer import Peer
from monarch_py.peers.queries import ask
from monarch_py.peers.ranges import FileId, PeerStatus, new_gets
from monarch_py.peers.server import PeerServer, listen
from monarch_py.peers.tcp import TcpTransport
from monarch_py.peers.transport import Transport, Unreachable

__all__ = [
    "FileId",
    "Party",
    "Peer",
    "PeerServer",
    "PeerStatus",
    "Purpose",
    "TcpTransport",
    "Transport",
    "Unreachable",
    "ask",
    "listen",
    "new_gets",
    "new_secret",
]
