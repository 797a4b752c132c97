"""Benchmarks of monarch_py.loaders, each compared with another loader."""
