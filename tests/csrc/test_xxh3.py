"""Tests XXH3-64 against the reference library for all length classes, in one call and in pieces."""

from __future__ import annotations

import random

import pytest
import xxhash
from hypothesis import given
from hypothesis import strategies as st

from monarch_py.native import ffi, lib, path_hash

# Lengths around which the algorithm changes: after 3, 8, 16, 128 and 240 bytes, at stripes of 64
# bytes and at blocks of 1024 bytes.
EDGES = (0, 1, 3, 4, 8, 9, 16, 17, 32, 64, 96, 128, 129, 240, 241, 1024, 2048, 3072, 65536)
DATA = random.Random(1).randbytes(1 << 20)


def of(data: bytes) -> int:
    return int(lib.monarch_xxh3_of(data, len(data)))


def in_pieces(data: bytes, piece: int) -> int:
    return int(lib.monarch_xxh3_in_pieces(data, len(data), piece))


@pytest.mark.parametrize("length", sorted({max(0, n + d) for n in EDGES for d in range(-3, 4)}))
def test_every_edge_between_length_classes(length: int) -> None:
    data = DATA[:length]
    expected = xxhash.xxh3_64_intdigest(data)
    assert of(data) == expected
    for piece in {1, 7, 63, 64, 65, 1023, 1024, 1025, max(1, length)}:
        assert in_pieces(data, piece) == expected, piece


def test_every_short_length() -> None:
    for length in range(1300):
        data = DATA[length : 2 * length]
        expected = xxhash.xxh3_64_intdigest(data)
        assert (of(data), in_pieces(data, 100)) == (expected, expected), length


@given(st.binary(max_size=600))
def test_any_short_bytes(data: bytes) -> None:
    assert of(data) == path_hash(data) == xxhash.xxh3_64_intdigest(data)


@given(
    start=st.integers(0, 4096),
    length=st.integers(0, 200_000),
    piece=st.one_of(st.integers(1, 5000), st.sampled_from([1 << 16, 1 << 20])),
)
def test_any_length_alignment_and_piece(start: int, length: int, piece: int) -> None:
    memory = ffi.from_buffer(DATA) + start
    expected = xxhash.xxh3_64_intdigest(DATA[start : start + length])
    assert int(lib.monarch_xxh3_of(memory, length)) == expected
    assert (
        int(lib.monarch_xxh3_in_pieces(memory, length, max(piece, length // 1000 + 1))) == expected
    )


def test_one_mebibyte() -> None:
    expected = xxhash.xxh3_64_intdigest(DATA)
    assert of(DATA) == in_pieces(DATA, 4096) == in_pieces(DATA, 999_983) == expected


@given(st.binary(min_size=1, max_size=3000), st.data())
def test_one_other_bit_is_another_hash(data: bytes, draw: st.DataObject) -> None:
    bit = draw.draw(st.integers(0, len(data) * 8 - 1))
    other = bytearray(data)
    other[bit // 8] ^= 1 << bit % 8
    assert of(bytes(other)) != of(data)
