"""A training program that cannot be imported."""

raise ZeroDivisionError("no steps")
