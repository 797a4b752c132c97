"""Benchmarks of Monarch's costs and gains; each is a command that prints JSON.

::

    python -m benchmarks.overhead      # calls under the library, compared with calls without it
    python -m benchmarks.epochs        # whole epochs on a slow source, compared with reading copies
    python -m benchmarks.nodes         # daemons of several nodes that share a source
    python -m benchmarks.plot FILE...  # pictures of the first two benchmarks' output
"""
