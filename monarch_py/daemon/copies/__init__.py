"""Copies of files on this node: made by the copy engine, published, used and dropped."""
