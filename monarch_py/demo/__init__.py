"""``monarch demo``, which shows the gain, and the slow source, which tests and benchmarks use too.

Nothing is imported here, since `train` runs as a separate script, and `slowsource` is also used
alone.
"""
