"""Utilities for all modules: sizes, versions, spelling, processes, signals, hanging file systems."""
