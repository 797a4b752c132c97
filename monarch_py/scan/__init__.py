"""The scan of a source: run by this node (`walk`), or received from another node (`record`).

Both kinds of scan have the same methods, which the docstrings of `walk.Walk` describe.
"""
