"""The nodes of a cluster: which node keeps each file, and how a node fetches files from others."""
