"""Loaders for training programs that may be changed: schedules, readers of records, and batches."""
