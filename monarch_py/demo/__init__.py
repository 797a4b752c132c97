"""``monarch demo``, and the slow source, which tests and benchmarks use too.

This file imports nothing, because `train` runs as a separate script, and `slowsource` is also
imported by itself.
"""
