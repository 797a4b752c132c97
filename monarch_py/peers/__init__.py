"""Reads ranges of files from other nodes' copies, and serves this node's copies to other nodes.

A peer is the daemon of another node of the cluster. Python connects to the peers and authenticates
them (tcp.py, server.py). C (csrc/peers) transfers the bytes without Python's global interpreter
lock.
"""
