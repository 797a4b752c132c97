"""Ranges of files from another node's copies: who may ask, who answers, who is asked again when.

A transport (transport.py) is all that the rest of Monarch sees of the wire; TCP (tcp.py, server.py)
is the one there is. Bytes are moved by C (csrc/peers), outside Python's lock.
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
