"""The tiers of a node: their directories, their room, and the manifests of durable copies."""
