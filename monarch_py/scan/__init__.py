"""The scan of a source: made by this node (`walk`), or told by another node (`record`).

Both have the same methods, which `walk.Walk` describes.
"""
