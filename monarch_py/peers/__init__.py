"""Reads ranges of files from other nodes' copies, and serves this node's copies to other nodes.

Python connects to the nodes and authenticates them (tcp.py, server.py). C (csrc/peers) transfers
the bytes without holding Python's global interpreter lock.
"""
