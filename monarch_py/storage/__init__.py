"""The tiers of a node: their directories, the manifest of durable copies, their memory."""
