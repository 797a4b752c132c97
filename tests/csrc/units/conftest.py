"""The library's functions, and sessions in which tests call them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from csrc.units.loading import Made, load, made


@pytest.fixture(scope="session")
def lib() -> Any:
    return load()


@pytest.fixture
def session(lib: Any) -> Iterator[Made]:
    with made(lib) as one:
        yield one


@pytest.fixture(scope="module")
def lasting(lib: Any) -> Iterator[Made]:
    """A session that all examples of a test share. So each example must set every field that it
    uses."""
    with made(lib) as one:
        yield one
