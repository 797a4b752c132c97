"""Benchmarks of monarch_py.loaders and of packs."""
