"""What a call under the library costs, against the same call without it."""
