"""The data that processes of a node share: a session's segments, catalog and daemon's socket."""
