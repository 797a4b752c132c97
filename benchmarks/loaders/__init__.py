"""Benchmarks of Monarch's loaders (monarch_py.loaders)."""
