"""Reads and checks the configuration, and determines which files of a source it selects."""
