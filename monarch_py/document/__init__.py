"""Reads YAML files: nodes know their line, and dataclasses declare the keys.

Every mistake is a ConfigError of the form ``FILE:LINE: key: what is wrong; the hint``.
"""
