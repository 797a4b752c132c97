"""Batch samplers that follow a schedule, which assigns the samples of each step to ranks."""
