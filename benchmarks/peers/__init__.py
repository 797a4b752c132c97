"""Compares transfers of files between nodes with plain sendfile over the same link."""
