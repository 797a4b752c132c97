"""Packs: a tar that holds many small files of a source, and an index of it."""
