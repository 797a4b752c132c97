"""GroupLoader: groups of neighbouring samples, read while the training uses others."""
