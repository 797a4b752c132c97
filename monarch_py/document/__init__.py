"""YAML files that people write: nodes that know their line, tables of keys, parsers of values.

Every mistake is a ConfigError of the form ``FILE:LINE: key: what is wrong; the mend``.
"""

from monarch_py.document import values
from monarch_py.document.nodes import Document, Spot, describe, is_empty, load_document
from monarch_py.document.table import (
    Key,
    Parser,
    Section,
    Table,
    list_of,
    markdown_rows,
    read_mapping,
)

__all__ = [
    "Document",
    "Key",
    "Parser",
    "Section",
    "Spot",
    "Table",
    "describe",
    "is_empty",
    "list_of",
    "load_document",
    "markdown_rows",
    "read_mapping",
    "values",
]
