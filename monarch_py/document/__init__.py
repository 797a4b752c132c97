"""Reads YAML files that people write: nodes know their line, and classes declare the keys.

Every mistake is a ConfigError of the form ``FILE:LINE: key: what is wrong; the hint``.
"""
