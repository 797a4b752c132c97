"""What Monarch costs and gains, measured; each is a command that prints JSON.

::

    python -m benchmarks.overhead      # calls under the library against the same calls without it
    python -m benchmarks.epochs        # whole epochs on a slow source against reading the copies
    python -m benchmarks.nodes         # daemons of several nodes that share a source
    python -m benchmarks.plot FILE...  # pictures of what these two printed
"""
