"""Packs: tars that hold many small files of a source, with an index beside each tar."""
