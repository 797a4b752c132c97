"""Packs: tar files that contain many small files of a source, with an index next to each tar."""
