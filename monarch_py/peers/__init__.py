"""Reads ranges of files from other nodes' copies: authentication, serving, and retry of peers.

Python connects and authenticates (tcp.py, server.py); C (csrc/peers) moves the bytes, without
Python's lock.
"""
