"""Memory that the processes of a node share, for batches and for samples that are kept."""
