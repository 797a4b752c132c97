"""Copies of files on this node: the copy engine, and how copies are published, used and dropped."""
