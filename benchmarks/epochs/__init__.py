"""Measures complete epochs: the first one on a slow source, the later ones from the copies."""
