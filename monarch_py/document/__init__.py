"""Reads YAML files that people write: nodes know their line, and classes declare the keys.

Every mistake is a ConfigError of the form ``FILE:LINE: key: what is wrong; the hint``.
"""

from monarch_py.document.keys import Key, Keys, declared, kind_of, missing, read_as, schema
from monarch_py.document.nodes import Spot, load_document
from monarch_py.document.values import Kind

__all__ = [
    "Key",
    "Keys",
    "Kind",
    "Spot",
    "declared",
    "kind_of",
    "load_document",
    "missing",
    "read_as",
    "schema",
]
