"""Small libraries that are linked like the stand-ins, for the tests of fitting."""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING

import support
from aliquot.devices import elf
from aliquot.slices.stand_in_symbols import sysv_hash

if TYPE_CHECKING:
    from pathlib import Path

SPARES = 8
NAMES = ("cuAlpha", "cuBeta", "cuGamma", "cuBeta_v2", "nvmlDelta", "dlopen_like")


def spare(number: int) -> str:
    return f"aliquot_spare_{number:03}_".ljust(63, "x")


def source_of_stand_in() -> str:
    """Each function returns its number; `name_of_spare` reads the table of names."""
    functions = [f"int {name}(void) {{ return {i}; }}" for i, name in enumerate(NAMES)]
    functions += [f"int {spare(i)}(void) {{ return {100 + i}; }}" for i in range(SPARES)]
    table = ", ".join(f'"{spare(i)}"' for i in range(SPARES))
    return "\n".join(
        [
            *functions,
            "int aliquot_absent(void) { return -1; }",
            f"static const char names[][64] = {{ {table} }};",
            "const char *name_of_spare(int i) { return names[i]; }",
        ]
    )


def build_stand_in(folder: Path, compiler: str = "gcc", *flags: str) -> Path:
    flags = flags or ("-Wl,--hash-style=sysv",)
    return support.compile_library(
        folder, "libcuda.so.1", source_of_stand_in(), *flags, compiler=compiler
    )


def build_driver(folder: Path, *names: str, hash_style: str = "gnu") -> Path:
    source = "\n".join(f"int {name}(void) {{ return 1; }}" for name in names)
    return support.compile_library(folder, "libcuda.so.1", source, f"-Wl,--hash-style={hash_style}")


def driver_with(*functions: str, objects: tuple[str, ...] = ()) -> elf.Library:
    """A driver that exports these symbols."""
    kinds = [(name, elf.STT_FUNC) for name in functions] + [(name, 1) for name in objects]
    return elf.Library(
        machine=elf.X86_64,
        symbols=tuple(
            elf.Symbol(at=at, name=name, kind=kind, defined=True)
            for at, (name, kind) in enumerate(kinds)
        ),
        symbol_table=0,
        string_table=0,
        hash_table=None,
        has_gnu_hash=True,
    )


def look_up(data: bytes, name: str) -> int | None:
    """Look a symbol up in the hash table like the dynamic linker; its value."""
    library = elf.read(data)
    assert library.hash_table is not None
    buckets, _ = struct.unpack_from("<II", data, library.hash_table)
    start = library.hash_table + 8
    (at,) = struct.unpack_from("<I", data, start + sysv_hash(name) % buckets * 4)
    while at:
        symbol = library.symbols[at]
        if symbol.name == name and symbol.defined:
            (value,) = struct.unpack_from("<Q", data, library.symbol_table + at * 24 + 8)
            return int(value)
        (at,) = struct.unpack_from("<I", data, start + (buckets + at) * 4)
    return None
