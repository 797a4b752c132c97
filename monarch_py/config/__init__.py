"""The configuration: reads and checks it, and says which files of a source it selects."""
