"""Benchmarks of the loaders: schedules, readers, batches."""
