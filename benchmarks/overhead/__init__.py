"""Measures the cost of calls under the library, compared with the same calls without it."""
