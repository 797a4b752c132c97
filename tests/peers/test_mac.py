"""GMAC authenticates frames and content."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from csrc.building import ROOT, cc
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
    """The seals of a frame without a digest, with a digest, and with another digest all differ."""
    digest = bytes(range(16))
    said = {Seals(bytes(16)).seal(b"frame", vouched)[5:] for vouched in (b"", digest, digest[::-1])}
    assert len(said) == 3


# Prints whether a usable libcrypto was found, and the path of the libcrypto that is loaded.
FIND = """
from monarch_py.native import lib
is_there = lib.monarch_mac_is_there()
loaded = [line.split()[-1] for line in open("/proc/self/maps") if "libcrypto" in line]
print(is_there, loaded[-1] if loaded else "")
"""


def found(libraries: Path) -> tuple[int, Path]:
    """Starts a new process that looks for libcrypto, first in the directory `libraries`."""
    environment = {**os.environ, "LD_LIBRARY_PATH": str(libraries)}
    words = [sys.executable, "-c", FIND]
    done = subprocess.run(
        words, env=environment, cwd=ROOT, capture_output=True, text=True, check=True
    )
    is_there, _, path = done.stdout.strip().partition(" ")
    return int(is_there), Path(path)


def test_a_libcrypto_that_lacks_functions_is_passed_over(tmp_path: Path) -> None:
    is_there, real = found(tmp_path)
    assert is_there
    (tmp_path / "few.c").write_text("void *EVP_CIPHER_CTX_new(void) { return 0; }\n")
    for name in ("libcrypto.so.3", "libcrypto.so.4", "libcrypto.so.1.1"):
        cc("-shared", "-fPIC", "-o", tmp_path / name, tmp_path / "few.c")
    assert found(tmp_path)[0] == 0
    (tmp_path / "libcrypto.so.1.1").unlink()
    (tmp_path / "libcrypto.so.1.1").symlink_to(real)
    assert found(tmp_path)[0] == 1
