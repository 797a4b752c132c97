"""Benchmarks of several nodes that share a source; all nodes run on one machine."""
