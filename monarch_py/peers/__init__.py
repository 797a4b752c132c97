"""Reads ranges of files from other nodes' copies: authentication, serving, and retries.

Python connects and authenticates (tcp.py, server.py); C (csrc/peers) transfers the bytes without
holding Python's global lock.
"""
