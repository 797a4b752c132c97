"""Utilities for all modules: sizes, versions, spelling, processes, signals, hung file systems."""
