"""Benchmarks of monarch_py.loaders, each beside the loader that it is compared with."""
