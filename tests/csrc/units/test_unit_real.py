"""Tests how the library finds libc's own functions in the symbol tables of the loaded libraries."""

from __future__ import annotations

import ctypes
import os
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest
from csrc.units.loading import ffi

PT_LOAD, PT_DYNAMIC, PT_NOTE = 1, 2, 4
DT_STRTAB, DT_SYMTAB, DT_GNU_HASH, DT_VERSYM = 5, 6, 0x6FFFFEF5, 0x6FFFFFF0
HIDDEN = 0x8000
FUNCTION, IFUNC = 2, 10
LIBC = "gnu_get_libc_version"
ABSENT = 1
TABLES = 64


@dataclass
class Symbol:
    """The entry of a function in a library's symbol table.

    value : address of the function; 0: the entry has no address
    is_defined : whether the library defines the function. If not, the library only calls it.
    """

    name: str
    value: int
    version: int = 2
    kind: int = FUNCTION
    is_defined: bool = True


def gnu_hash(name: str) -> int:
    found = 5381
    for letter in name.encode():
        found = (found * 33 + letter) & 0xFFFFFFFF
    return found


class Region:
    """The memory of one loaded library. It begins at the address `base`."""

    def __init__(self) -> None:
        self._bytes = ffi.new("char[]", 1 << 16)
        self.base, self._used = int(ffi.cast("uintptr_t", self._bytes)), 0

    def put(self, content: bytes) -> int:
        """Stores the content after what is already stored. Returns its offset from `base`."""
        at, self._used = self._used, self._used + (len(content) + 15) // 16 * 16
        ffi.buffer(self._bytes)[at : at + len(content)] = content
        return at


class Loaded:
    """Simulates that the process has loaded the libraries for which `load` is called, in the order
    of these calls. `find` looks up a function as Monarch's library does at the first call of the
    function."""

    def __init__(self, lib: Any) -> None:
        self.lib = lib
        self.memory: list[Region] = []
        lib.real_begin()

    def _hash_table(self, symbols: list[Symbol], buckets: int, blooms: int) -> bytes:
        """Returns the GNU hash table of the symbols. The caller has sorted them by their buckets.
        The table numbers the symbols from 1, because entry 0 of a symbol table is empty."""
        hashes = [gnu_hash(one.name) for one in symbols]
        shift, bloom, bucket = 6, [0] * blooms, [0] * buckets
        for i, one in enumerate(hashes):
            if blooms:
                bloom[one // 64 % blooms] |= 1 << one % 64 | 1 << (one >> shift) % 64
            if buckets:
                bucket[one % buckets] = bucket[one % buckets] or i + 1
        chain = []
        for i, one in enumerate(hashes):
            is_last = i + 1 == len(hashes) or hashes[i + 1] % buckets != one % buckets
            chain.append(one & ~1 | is_last)
        return struct.pack(
            f"4I{blooms}Q{buckets}I{len(chain)}I",
            buckets,
            1,
            blooms,
            shift,
            *bloom,
            *bucket,
            *chain,
        )

    def load(
        self, *symbols: Symbol, name: str = "a.so", buckets: int = 3, blooms: int = 2,
        lacks: int = 0, is_relocated: bool = True, is_us: bool = False, load: Any = None,
        load_kind: int = PT_LOAD,
    ) -> None:  # fmt: skip
        """Loads a library with these symbols in its symbol table.

        lacks : tag of the table that this library lacks; 0: it lacks none
        is_relocated : whether the dynamic section contains the addresses of the tables. If not, it
        contains their offsets from the library's base, as in the kernel's vDSO.
        is_us : whether this library stands for Monarch's library
        load : start and length of this library's segment. The start is relative to the address of a
        variable of Monarch's library. The library whose segment contains that variable is taken for
        Monarch's. None: if `is_us` is set, the segment contains the variable; otherwise, the
        library has no segment
        load_kind : type of the segment's program header
        """
        ordered = sorted(symbols, key=lambda one: gnu_hash(one.name) % (buckets or 1))
        memory = Region()
        strings, table = b"\0", bytes(24)
        for one in ordered:
            where = 7 if one.is_defined else 0
            value = (one.value - memory.base) % 2**64 if one.value else 0
            table += struct.pack("IBBHQQ", len(strings), 16 | one.kind, 0, where, value, 8)
            strings += one.name.encode() + b"\0"
        versions = struct.pack(f"{len(ordered) + 1}H", 0, *(one.version for one in ordered))
        tables = {
            DT_STRTAB: strings, DT_SYMTAB: table, DT_VERSYM: versions,
            DT_GNU_HASH: self._hash_table(ordered, buckets, blooms),
        }  # fmt: skip
        dynamic = b"".join(
            struct.pack("QQ", tag, memory.put(content) + memory.base * is_relocated)
            for tag, content in tables.items() if tag != lacks
        )  # fmt: skip
        headers = []
        if lacks != PT_DYNAMIC:
            headers.append((PT_DYNAMIC, memory.put(dynamic + bytes(16)), len(dynamic)))
        if is_us:
            load = load or (-8, 16)
        if load:
            at = (int(self.lib.real_us()) + load[0] - memory.base) % 2**64
            headers.append((load_kind, at, load[1]))
        packed = [struct.pack("IIQQQQQQ", kind, 0, 0, at, 0, 0, n, 8) for kind, at, n in headers]
        names, first = memory.put(name.encode() + b"\0"), memory.put(b"".join(packed))
        self.lib.real_load(memory.base, memory.base + names, memory.base + first, len(headers))
        self.memory.append(memory)

    def find(self, name: str) -> int:
        """Returns the address of the function, or 0 if no library defines it."""
        at = ffi.new("void **")
        found = int(self.lib.real_find(at, name.encode()))
        assert int(ffi.cast("uintptr_t", at[0])) == (found or ABSENT), "the result is remembered"
        assert int(self.lib.real_find(at, name.encode())) == found
        return found


@pytest.fixture
def loaded(lib: Any) -> Iterator[Loaded]:
    yield Loaded(lib)
    lib.real_end()


def libc(loaded: Loaded, *symbols: Symbol) -> None:
    loaded.load(Symbol(LIBC, 0x5000), *symbols, name="libc.so.6")


def test_the_first_library_behind_this_one_that_defines_a_function_is_taken(loaded: Loaded) -> None:
    """For a function that Monarch's library interposes, the search ends with libc. The libraries
    behind libc are searched only for functions that Monarch's library itself calls, such as
    pthread_create, which older versions of libc do not have."""
    loaded.load(Symbol("f", 0x2000), Symbol("g", 0x2100), Symbol("pthread_create", 0x2200), name="")
    loaded.load(Symbol("f", 0x3000), name="us.so", is_us=True)
    loaded.load(Symbol("f", 0x4000), Symbol("h", 0x4100, is_defined=False))
    libc(loaded, Symbol("f", 0x5100), Symbol("h", 0x5200))
    loaded.load(Symbol("f", 0x6000), Symbol("i", 0x6100), Symbol("pthread_create", 0x6200))
    loaded.load(Symbol("pthread_create", 0x7000))
    assert [loaded.find(name) for name in "fghij"] == [0x4000, 0, 0x5200, 0, 0]
    assert loaded.lib.real_found_at_load() == 0x6200
    assert ffi.string(loaded.lib.real_library()) == b"us.so"


def test_if_libc_comes_first_all_libraries_are_searched(loaded: Loaded) -> None:
    """libc comes before Monarch's library if Monarch's library was loaded by dlopen. Functions that
    Monarch's library itself defines are never found."""
    loaded.load(Symbol("f", 0x2000))
    libc(loaded, Symbol("f", 0x5000), Symbol("g", 0x5100))
    loaded.load(Symbol("g", 0x3000), Symbol("h", 0x3100), is_us=True)
    loaded.load(Symbol("pthread_create", 0x6000), Symbol("h", 0x6100))
    assert [loaded.find(name) for name in "fgh"] == [0x2000, 0x5100, 0]
    assert loaded.lib.real_found_at_load() == 0x6000


@pytest.mark.parametrize(
    ("part", "kind", "is_us"),
    [((0, 1), PT_LOAD, True), ((-8, 9), PT_LOAD, True), ((-8, 8), PT_LOAD, False),
     ((1, 8), PT_LOAD, False), ((0, 1), PT_NOTE, False)],
)  # fmt: skip
def test_this_library_is_recognized_by_its_memory(
    loaded: Loaded, part: tuple[int, int], kind: int, is_us: bool
) -> None:
    loaded.load(Symbol("f", 0x2000), load=part, load_kind=kind)
    loaded.load(Symbol("f", 0x3000))
    loaded.load(name="us.so", is_us=True)
    libc(loaded, Symbol("f", 0x5000))
    assert loaded.find("f") == (0x3000 if is_us else 0x5000)


@pytest.mark.parametrize("others", [TABLES - 2, TABLES - 1, TABLES, TABLES + 9])
def test_libc_is_searched_behind_any_number_of_libraries(loaded: Loaded, others: int) -> None:
    """The search covers at most TABLES libraries. If there are more, the last ones before libc are
    left out, and libc is still searched."""
    loaded.load(name="us.so", is_us=True)
    for i in range(others):
        loaded.load(Symbol(f"f{i}", 0x10000 + i))
    libc(loaded, Symbol("open", 0x5100), *(Symbol(f"f{i}", 0x20000 + i) for i in range(others)))
    found = [loaded.find(f"f{i}") for i in range(others)]
    kept = min(others, TABLES - 1)
    assert found == [(0x10000 if i < kept else 0x20000) + i for i in range(others)]
    assert loaded.find("open") == 0x5100


def test_a_default_version_is_preferred_to_hidden_ones(loaded: Loaded) -> None:
    loaded.load(name="us.so", is_us=True)
    hidden = 3 | HIDDEN
    libc(loaded,
         Symbol("f", 0x2000, hidden), Symbol("f", 0x2100), Symbol("f", 0x2200, 4 | HIDDEN),
         Symbol("g", 0x3000, hidden), Symbol("h", 0x4000), Symbol("h", 0x4100, hidden))  # fmt: skip
    assert [loaded.find(name) for name in "fgh"] == [0x2100, 0x3000, 0x4000]


def test_a_library_without_versions_is_searched_too(loaded: Loaded) -> None:
    loaded.load(name="us.so", is_us=True)
    loaded.load(Symbol("f", 0x2000, 3 | HIDDEN), lacks=DT_VERSYM)
    libc(loaded, Symbol("f", 0x5000))
    assert loaded.find("f") == 0x2000


def test_a_library_whose_tables_are_named_by_their_places_is_searched_too(loaded: Loaded) -> None:
    """The dynamic section of this library contains the offsets of the tables instead of their
    addresses."""
    loaded.load(name="us.so", is_us=True)
    loaded.load(Symbol("f", 0x2000), is_relocated=False)
    libc(loaded, Symbol("f", 0x5000))
    assert loaded.find("f") == 0x2000


@pytest.mark.parametrize("lacks", [PT_DYNAMIC, DT_STRTAB, DT_SYMTAB, DT_GNU_HASH])
def test_a_library_without_a_table_is_left_out(loaded: Loaded, lacks: int) -> None:
    loaded.load(name="us.so", is_us=True)
    loaded.load(Symbol("f", 0x2000), lacks=lacks)
    libc(loaded, Symbol("f", 0x5000))
    assert loaded.find("f") == 0x5000


@pytest.mark.parametrize(("buckets", "blooms"), [(0, 1), (1, 0)])
def test_an_empty_hash_table_defines_nothing(loaded: Loaded, buckets: int, blooms: int) -> None:
    loaded.load(name="us.so", is_us=True)
    loaded.load(buckets=buckets, blooms=blooms)
    libc(loaded, Symbol("f", 0x5000))
    assert loaded.find("f") == 0x5000


def test_a_symbol_without_an_address_is_passed_over(loaded: Loaded) -> None:
    loaded.load(name="us.so", is_us=True)
    loaded.load(Symbol("f", 0), Symbol("g", 0x2000, is_defined=False))
    libc(loaded, Symbol("f", 0x5000), Symbol("g", 0x5100))
    assert [loaded.find(name) for name in "fg"] == [0x5000, 0x5100]


def test_a_function_that_libc_chooses_at_run_time_is_asked_for(loaded: Loaded) -> None:
    """The symbol is an IFUNC: at its address is a function that returns the address of the function
    to call."""
    loaded.load(name="us.so", is_us=True)
    libc(loaded, Symbol("f", int(loaded.lib.real_chooser()), kind=IFUNC))
    assert loaded.find("f") == loaded.lib.real_chosen()


@pytest.mark.parametrize("buckets", [1, 2, 7, 64])
@pytest.mark.parametrize("blooms", [1, 2, 16])
def test_each_name_is_found_in_a_large_table(loaded: Loaded, buckets: int, blooms: int) -> None:
    """Two of the names have the same hash."""
    assert gnu_hash("xab") == gnu_hash("xbA") == loaded.lib.real_hash(b"xab")
    names = ["xab", "xbA", *(f"name_{i}" for i in range(60))]
    loaded.load(name="us.so", is_us=True)
    libc(loaded, *(Symbol(name, 0x2000 + i) for i, name in enumerate(names)))
    assert [loaded.find(name) for name in names] == [0x2000 + i for i in range(len(names))]
    assert not any(loaded.find(f"other_{i}") for i in range(60))


def test_the_libraries_are_looked_at_once(loaded: Loaded) -> None:
    loaded.load(name="us.so", is_us=True)
    libc(loaded, Symbol("f", 0x5000))
    for name in "fgf":
        loaded.find(name)
    assert loaded.lib.real_looks() == 1


def test_functions_of_the_real_libc_are_found(lib: Any) -> None:
    """The addresses that the library finds are those that dlsym returns."""
    names = ("open", "read", "mmap", "close", "pthread_create", "gettimeofday", "time", "memcpy")
    process = ctypes.CDLL(None)
    for name in names:
        expected = ctypes.cast(getattr(process, name), ctypes.c_void_p).value
        assert int(lib.real_find(ffi.new("void **"), os.fsencode(name))) == expected, name
    assert int(lib.real_find(ffi.new("void **"), b"no_such_function")) == 0
