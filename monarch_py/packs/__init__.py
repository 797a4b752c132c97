"""Packs: tar files that hold many small files of a source, with an index next to each."""
