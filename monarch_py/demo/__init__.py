"""The slow source, for tests and benchmarks too, and ``monarch demo``, which shows what is gained.

Nothing is imported here: `train` runs as a script of its own, and `slowsource` is used without
the rest.
"""
