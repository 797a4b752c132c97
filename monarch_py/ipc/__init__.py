"""The things that processes of a node share: a session's segments and catalog, and the daemon's socket."""
