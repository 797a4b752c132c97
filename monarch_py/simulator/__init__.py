"""Simulates training jobs under policies: scenarios, the performance model, and the engine."""
