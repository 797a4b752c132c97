"""Parsers of the values that only a configuration has, see monarch_py.document.values."""

from __future__ import annotations

import os
import socket
from pathlib import Path

import yaml

from monarch_py.config.patterns import check_glob
from monarch_py.config.schema import MAX_BLOCK_SIZE_BYTES, MIN_BLOCK_SIZE_BYTES, PAGE_BYTES
from monarch_py.document import Spot
from monarch_py.document.values import path, scalar, size

__all__ = ["address", "block_size", "file", "glob", "plans", "word"]


def block_size(node: yaml.Node, spot: Spot) -> int | None:
    """A block size [bytes], or None for ``max``, the original's word for whole files."""
    if isinstance(node, yaml.ScalarNode) and node.value == "max":
        return None
    n_bytes = size(node, spot)
    if not MIN_BLOCK_SIZE_BYTES <= n_bytes <= MAX_BLOCK_SIZE_BYTES:
        raise spot.error(f"{node.value!r} is out of range", "choose from 64KiB to 1GiB, or 'max'")
    if n_bytes % PAGE_BYTES:
        mend = f"the nearest below is {n_bytes // PAGE_BYTES * PAGE_BYTES}"
        raise spot.error(f"{node.value!r} is not a multiple of {PAGE_BYTES} bytes", mend)
    return n_bytes


def glob(node: yaml.Node, spot: Spot) -> str:
    """A pattern of patterns.PathFilter, as written."""
    text = scalar(node, spot, "a pattern", "write a pattern such as '*.tfrecord'")
    try:
        check_glob(text)
    except ValueError as error:
        raise spot.error(str(error), "see 'Patterns' in docs/configuration.md") from None
    return text


def word(node: yaml.Node, spot: Spot) -> str:
    """A name, as written."""
    return scalar(node, spot, "a name", "write a name such as eth0")


def address(node: yaml.Node, spot: Spot) -> str:
    """An address in numbers: looking a name up could take any time, and give any answer."""
    mend = "write it in numbers, such as 10.0.0.5 or fd00::5, or name an interface"
    text = scalar(node, spot, "an address", mend)
    for family in (socket.AF_INET, socket.AF_INET6):
        try:
            socket.inet_pton(family, text)
        except OSError:
            continue
        return text
    raise spot.error(f"{text!r} is not an address", mend)


def plans(node: yaml.Node, spot: Spot) -> list[tuple[Path, Spot]]:
    """Files of access plans, one or a list, absolute, each with its spot."""
    if isinstance(node, yaml.SequenceNode):
        items = [(item, spot.at_item(item, index)) for index, item in enumerate(node.value)]
        return [(_plan(item, at), at) for item, at in items]
    return [(_plan(node, spot), spot)]


def _plan(node: yaml.Node, spot: Spot) -> Path:
    return file(node, spot, "name what `monarch plan make` has written")


def file(node: yaml.Node, spot: Spot, mend: str = "write its name") -> Path:
    """A relative path begins in the directory of the configuration."""
    text = scalar(node, spot, "a file", mend)
    if text[:1] in "/~$":
        return path(node, spot)
    return Path(os.path.abspath(spot.document.name)).parent / text
