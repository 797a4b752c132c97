"""Measures the cost of calls with the library, relative to the same calls without the library."""
