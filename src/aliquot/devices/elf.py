"""The dynamic symbols of a shared library, read as the dynamic linker reads them.

ELF64 little-endian only (x86-64 and arm64). It uses program headers and the dynamic section, so a
library without section headers can be read too. An offset outside the file is an ElfError, never a
crash.
"""

from __future__ import annotations

import mmap
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

Bytes = bytes | bytearray | mmap.mmap

X86_64 = 62
AARCH64 = 183

DT_NULL, DT_HASH, DT_STRTAB, DT_SYMTAB, DT_STRSZ, DT_SYMENT = 0, 4, 5, 6, 10, 11
DT_GNU_HASH = 0x6FFFFEF5

STT_FUNC, STT_GNU_IFUNC = 2, 10
SYMBOL_SIZE = 24

_PT_LOAD, _PT_DYNAMIC = 1, 2
_ET_DYN = 3
_HEADER = struct.Struct("<16sHHIQQQIHHHHHH")
_PROGRAM = struct.Struct("<IIQQQQQQ")
_DYNAMIC = struct.Struct("<qQ")
_SYMBOL = struct.Struct("<IBBHQQ")
_WORD = struct.Struct("<I")


class ElfError(ValueError):
    """The file is not a shared library that this module can read."""


class Symbol(NamedTuple):
    """One entry of the dynamic symbol table."""

    at: int
    name: str
    kind: int
    defined: bool


@dataclass(frozen=True, slots=True)
class Library:
    """The parts of a shared library that matter for its dynamic symbols, as file offsets."""

    machine: int
    symbols: tuple[Symbol, ...]
    symbol_table: int
    string_table: int
    hash_table: int | None
    has_gnu_hash: bool

    def exported(self) -> frozenset[str]:
        """The names of all symbols that it exports."""
        return frozenset(symbol.name for symbol in self.symbols if symbol.defined)

    def functions(self) -> frozenset[str]:
        """The names of all functions that it exports."""
        return frozenset(
            symbol.name
            for symbol in self.symbols
            if symbol.defined and symbol.kind in (STT_FUNC, STT_GNU_IFUNC)
        )


def machine_of(path: Path) -> int | None:
    """The machine that a file is compiled for; None: not an ELF64 little-endian library."""
    try:
        with path.open("rb") as file:
            return _header(file.read(_HEADER.size))[0]
    except (OSError, ElfError):
        return None


def read_file(path: Path) -> Library:
    """Read a library without reading the whole file."""
    with path.open("rb") as file:
        try:
            data = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        except ValueError as error:
            raise ElfError("the file is empty") from error
        with data:
            return read(data)


def read(data: Bytes) -> Library:
    """Read a library from its bytes."""
    try:
        return _read(data)
    except (struct.error, OverflowError) as error:
        raise ElfError("the file is cut short") from error


def _read(data: Bytes) -> Library:
    machine, programs, count = _header(data[: _HEADER.size])
    segments = [_PROGRAM.unpack_from(data, programs + i * _PROGRAM.size) for i in range(count)]
    loads = [(s[3], s[2], s[5]) for s in segments if s[0] == _PT_LOAD]
    tags = _dynamic(data, [(s[2], s[5]) for s in segments if s[0] == _PT_DYNAMIC])
    if DT_SYMTAB not in tags or DT_STRTAB not in tags:
        raise ElfError("no dynamic symbols")
    symbol_table = _offset(loads, tags[DT_SYMTAB])
    string_table = _offset(loads, tags[DT_STRTAB])
    hash_table = _offset(loads, tags[DT_HASH]) if DT_HASH in tags else None
    if hash_table is not None:
        total = _WORD.unpack_from(data, hash_table + 4)[0]
    elif DT_GNU_HASH in tags:
        total = _gnu_hash_total(data, _offset(loads, tags[DT_GNU_HASH]))
    else:
        raise ElfError("no hash table")
    if symbol_table + total * SYMBOL_SIZE > len(data):
        raise ElfError("the symbol table is cut short")
    return Library(
        machine=machine,
        symbols=tuple(_symbols(data, symbol_table, string_table, total)),
        symbol_table=symbol_table,
        string_table=string_table,
        hash_table=hash_table,
        has_gnu_hash=DT_GNU_HASH in tags,
    )


def _header(data: bytes | bytearray) -> tuple[int, int, int]:
    if len(data) < _HEADER.size:
        raise ElfError("the file is cut short")
    ident, kind, machine, _, _, programs, _, _, _, size, count, *_ = _HEADER.unpack(data)
    if ident[:6] != b"\x7fELF\x02\x01" or kind != _ET_DYN or size != _PROGRAM.size:
        raise ElfError("not an ELF64 little-endian shared library")
    return machine, programs, count


def _dynamic(data: Bytes, sections: list[tuple[int, int]]) -> dict[int, int]:
    tags: dict[int, int] = {}
    for offset, size in sections:
        for position in range(offset, offset + size, _DYNAMIC.size):
            tag, value = _DYNAMIC.unpack_from(data, position)
            if tag == DT_NULL:
                break
            tags[tag] = value
    return tags


def _offset(loads: list[tuple[int, int, int]], address: int) -> int:
    for start, offset, size in loads:
        if start <= address < start + size:
            return address - start + offset
    raise ElfError(f"address {address:#x} is in no loaded segment")


def _symbols(data: Bytes, table: int, strings: int, total: int) -> list[Symbol]:
    found = []
    for index in range(total):
        name_at, info, other, section, _, _ = _SYMBOL.unpack_from(data, table + index * SYMBOL_SIZE)
        start = strings + name_at
        end = data.find(b"\0", start)
        if end < 0:
            raise ElfError("a symbol's name is cut short")
        visible = info >> 4 != 0 and other & 3 in (0, 3)  # not local; default or protected
        found.append(
            Symbol(
                at=index,
                name=bytes(data[start:end]).decode("ascii", "replace"),
                kind=info & 15,
                defined=visible and section != 0,
            )
        )
    return found


def _gnu_hash_total(data: Bytes, table: int) -> int:
    """The number of symbols: one more than the last in the longest chain."""
    buckets, first, bloom, _ = struct.unpack_from("<IIII", data, table)
    starts = table + 16 + bloom * 8
    chains = starts + buckets * 4
    last: int = max(struct.unpack_from(f"<{buckets}I", data, starts), default=0)
    if last < first:
        return int(first)
    while not _WORD.unpack_from(data, chains + (last - first) * 4)[0] & 1:
        last += 1
    return last + 1
