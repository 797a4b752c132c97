"""Batch samplers that follow a schedule of which rank takes which sample."""
