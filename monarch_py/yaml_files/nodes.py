"""Reads YAML into nodes that have line numbers, and makes error messages that name the line."""

from dataclasses import dataclass, field, replace
from pathlib import Path

import yaml

from monarch_py.errors import ConfigError

# The message with which PyYAML reports that a line lacks ": ".
NO_COLON = "could not find expected ':'"
# The size of the largest file that is read. Files that users write by hand are much smaller. If a
# user names a large data file by mistake, it is not loaded into memory.
MAX_FILE_BYTES = 1 << 20
# A message shows at most this many characters of a key or a value. A value may be as long as a
# file.
MOST_SHOWN = 80


# The path from the root of a document to a value. Each step is the declared name of a key or the
# index of a list item.
KeyPath = tuple[str | int, ...]


@dataclass(frozen=True, slots=True)
class Document:
    """A YAML file, or another origin of a configuration's values, such as an environment variable.

    name : the name as the user wrote it
    warnings : the warnings about the document
    spots : the spot of each key and each item
    otherwise : a text at the end of each hint, for a user who cannot change the file; "" for none
    """

    name: str
    warnings: list[str] = field(default_factory=list)
    spots: "dict[KeyPath, Spot]" = field(default_factory=dict)
    otherwise: str = ""


@dataclass(frozen=True, slots=True)
class Spot:
    """The position of a value in a document.

    line : the line in the file; 0 if the document is not a file
    key : the path to the position, as the user wrote it, such as ``hierarchy[0].prefix``; '' for
        the root
    key_path : the same path with the declared names of keys, such as
        ``("hierarchy", 0, "mount_point")``
    """

    document: Document
    line: int
    key: str = ""
    key_path: KeyPath = ()

    def at_key(self, node: yaml.Node, written: str, name: str = "") -> "Spot":
        """Returns the spot of a key in the mapping at this spot.

        node, written : the key's node, and the key as the user wrote it
        name : the declared name of the key; "" if the user wrote the declared name
        """
        key, key_path = self._joined(written), (*self.key_path, name or written)
        return replace(self, line=_line_of(node), key=key, key_path=key_path)

    def at_item(self, node: yaml.Node, index: int) -> "Spot":
        """Returns the spot of item `index` of the list at this spot, and stores it in the document.

        node : the item's node
        """
        key_path = (*self.key_path, index)
        spot = replace(self, line=_line_of(node), key=f"{self.key}[{index}]", key_path=key_path)
        return self.document.spots.setdefault(key_path, spot)

    def __contains__(self, name: str) -> bool:
        """Whether the mapping at this spot has the key."""
        return (*self.key_path, name) in self.document.spots

    def of(self, step: str | int) -> "Spot":
        """Returns the spot of one key, or of one list item, in the value at this spot. If the key
        is missing, returns a spot with the key's name and the line of this spot."""
        key_path = (*self.key_path, step)
        return self.document.spots.get(key_path) or replace(
            self, key=self._joined(str(step)), key_path=key_path
        )

    def _joined(self, name: str) -> str:
        return f"{self.key}.{cut(name)}" if self.key else cut(name)

    def error(self, problem: str, hint: str) -> ConfigError:
        """The error to raise for a problem at this spot."""
        return ConfigError(f"{self}: {problem}; {hint}{self.document.otherwise}")

    def unfit(self, node: yaml.Node, hint: str) -> ConfigError:
        """Returns the error to raise if the value at this spot is of the wrong kind.

        node : the value
        """
        return self.error(f"cannot be {describe(node)}", hint)

    def warn(self, sentence: str) -> None:
        """Adds a warning about this spot to the document's warnings."""
        self.document.warnings.append(f"{self}: {sentence}")

    def __str__(self) -> str:
        where = f"{self.document.name}:{self.line}" if self.line else self.document.name
        return f"{where}: {self.key}" if self.key else where


def load_document(
    path: Path, kind: str, first_keys: str, otherwise: str = ""
) -> tuple[yaml.Node, Spot]:
    """Returns the root node of the YAML file at `path`, and the node's spot.

    kind : the word for the file in error messages, such as "configuration"
    first_keys : the keys that a file must have, for the error about an empty file
    otherwise : a text at the end of each hint, for a user who cannot change the file; "" for none

    Raises ConfigError if the file cannot be read, is not YAML or is empty.
    """
    document = Document(str(path), otherwise=otherwise)
    text = _read_text(document, kind)
    try:
        root = yaml.compose(text, Loader=yaml.SafeLoader)
    except yaml.MarkedYAMLError as error:
        raise _not_yaml(document, error) from None
    except yaml.reader.ReaderError as error:
        line = text.count("\n", 0, error.position) + 1
        raise Spot(document, line).error(
            f"not YAML (the character #x{ord(text[error.position]):04x} is not allowed)",
            "remove it",
        ) from None
    except (ValueError, OverflowError):
        # PyYAML passes the number of an escape such as "\UFFFFFFFF" to chr(), which rejects it.
        raise Spot(document, 1).error(
            "not YAML (an escape names a character above U+10FFFF)",
            "correct the \\U escape",
        ) from None
    except RecursionError:
        raise Spot(document, 1).error(
            f"not a {kind} (nested too deeply)", "check the path"
        ) from None
    if root is None or is_empty(root):
        raise Spot(document, 1).error("the file is empty", f"write at least the keys {first_keys}")
    return root, Spot(document, _line_of(root))


def is_empty(node: yaml.Node) -> bool:
    """Whether the value is missing or null."""
    return bool(node.tag == "tag:yaml.org,2002:null")


def describe(node: yaml.Node) -> str:
    """Describes a value for an error message, for example as "a list" in 'cannot be a list'."""
    if isinstance(node, yaml.MappingNode):
        return "a mapping" if node.value else "an empty mapping"
    if isinstance(node, yaml.SequenceNode):
        return "a list"
    return "empty" if is_empty(node) else shown(node.value)


def cut(text: str) -> str:
    """Returns the text for an error message: only the beginning of the text if it is long."""
    return text if len(text) <= MOST_SHOWN else f"{text[: MOST_SHOWN - 3]}..."


def shown(text: str) -> str:
    """Returns the text for an error message: in quotes, and only the beginning if it is long."""
    return repr(cut(text))


def _line_of(node: yaml.Node) -> int:
    return int(node.start_mark.line) + 1


def _read_text(document: Document, kind: str) -> str:
    try:
        with open(document.name, "rb") as stream:
            data = stream.read(MAX_FILE_BYTES + 1)
    except OSError as error:
        raise ConfigError(
            f"{document.name}: the {kind} cannot be read ({error.strerror});"
            " check the path and its permissions"
        ) from None
    if len(data) > MAX_FILE_BYTES:
        raise ConfigError(f"{document.name}: larger than 1 MiB, so not a {kind}; check the path")
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise Spot(document, line).error("not UTF-8 text", "save the file as UTF-8") from None


def _not_yaml(document: Document, error: yaml.MarkedYAMLError) -> ConfigError:
    mark = error.problem_mark or error.context_mark
    problem = error.problem or error.context or "it cannot be parsed"
    if problem == NO_COLON:  # `problem_mark` is after the line that lacks the colon
        mark = error.context_mark or mark
    if "'\\t'" in problem:
        problem, hint = "a tab is not allowed here", "indent with spaces instead of tabs"
    elif "alias" in problem or "alias" in (error.context or ""):
        hint = "put a value that begins with '*', such as a pattern, in quotes"
    else:
        hint = "indent with spaces, write 'key: value', and quote values with special characters"
    return Spot(document, mark.line + 1 if mark else 1).error(f"not YAML ({problem})", hint)
