"""Measures the policies, and compares them with results in the literature (see __main__.py)."""
