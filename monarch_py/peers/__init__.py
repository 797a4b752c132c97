"""Reads ranges of files from other nodes' copies: authentication, serving, and retries.

Python connects and authenticates (tcp.py, server.py); C (csrc/peers) transfers the bytes, and
holds no lock of Python meanwhile.
"""
