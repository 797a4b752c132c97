"""Simulates training jobs under policies: for a scenario, predicts the time of a job's epochs."""
