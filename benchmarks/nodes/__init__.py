"""Benchmarks of several nodes' daemons on one machine, with a shared source."""
