"""Transfers files between nodes, compared with plain sendfile over the same link."""
