"""Chooses what is filled and in which order: files that programs wait for, files filled ahead."""
