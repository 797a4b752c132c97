"""Utilities for all modules: sizes, spelling, processes, signals, file systems that hang."""
