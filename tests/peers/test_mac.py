"""GMAC authenticates frames and content."""

from __future__ import annotations

from peers.offers import Seals

from monarch_py.native import ffi, lib

# Test case 1 of McGrew and Viega, "The Galois/Counter Mode of Operation": the MAC of no bytes, with
# a key and a nonce of zeros.
KNOWN = bytes.fromhex("58e2fccefa7e3061367f1d57a4e7455a")


def test_the_known_answer() -> None:
    digest = ffi.new("unsigned char[]", lib.MONARCH_MAC_BYTES)
    assert lib.monarch_digest_of(bytes(16), b"", 0, digest) == 0
    assert bytes(ffi.buffer(digest)) == KNOWN


def test_every_number_has_its_own_seal() -> None:
    seals = Seals(bytes(16))
    assert seals.seal(b"") == KNOWN
    assert len({seals.seal(b"") for _ in range(300)} | {KNOWN}) == 301


def test_a_digest_is_no_seal_of_its_own() -> None:
    """A frame must have different seals without a digest, with one digest, and with another one."""
    digest = bytes(range(16))
    said = {Seals(bytes(16)).seal(b"frame", vouched)[5:] for vouched in (b"", digest, digest[::-1])}
    assert len(said) == 3
