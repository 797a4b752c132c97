"""The nodes of a cluster: which node keeps each file, and how nodes fetch copies from each other."""
