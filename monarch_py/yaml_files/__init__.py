"""Reads YAML files into dataclasses, whose fields declare the keys.

Every mistake in a file raises a ConfigError. Its message has the form ``FILE:LINE: key: what is
wrong; the hint``.
"""
