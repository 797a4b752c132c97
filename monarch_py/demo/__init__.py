"""``monarch demo``, and the slow source (a slowed file system), which tests and benchmarks use too.

This file imports nothing, so a program that needs only `slowsource` does not load the demo.
"""
