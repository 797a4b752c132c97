"""Reads ranges of files from the copies on other nodes, and serves this node's copies to them.

Python connects and authenticates (tcp.py, server.py); C (csrc/peers) transfers the bytes without
holding Python's global lock.
"""
