"""Datasets of many samples per file, or of one sample per file, and the code that reads them."""
