"""Whole epochs: on a slow source, and then from the copies."""
