"""GroupLoader: reads groups of neighbouring samples while the training uses earlier groups."""
