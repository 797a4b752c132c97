"""Files from node to node, beside plain sendfile over the same link."""
