"""Chooses which files are filled, and in which order. Files that programs wait for come first."""
