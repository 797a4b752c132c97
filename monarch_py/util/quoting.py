"""Quotes names for people, so that every name stays on one line, and no two names look the same."""

import re

# The control characters, and the other characters at which a line ends.
_ODD = "\x00-\x1f\x7f-\x9f\u2028\u2029"
_HAS_ODD = re.compile(f"[{_ODD}]")
_TO_ESCAPE = re.compile(f"[{_ODD}\\\\']")
_SHORT = {"\n": "\\n", "\r": "\\r", "\t": "\\t", "\\": "\\\\", "'": "\\'"}


def quoted(name: str) -> str:
    """Returns the name unchanged if it has no control characters and does not begin with $'.
    Otherwise returns the form $'...', which bash turns back into the name. A name that begins with
    $' is quoted because it could look like another name in this form."""
    if not _HAS_ODD.search(name) and not name.startswith("$'"):
        return name
    return f"$'{_TO_ESCAPE.sub(_escape, name)}'"


def _escape(found: re.Match[str]) -> str:
    number = ord(found[0])
    return _SHORT.get(found[0]) or (f"\\x{number:02x}" if number < 128 else f"\\u{number:04x}")
