"""Measures complete epochs: the first reads from a slow source, the later ones from the copies."""
