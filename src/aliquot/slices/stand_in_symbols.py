"""Making a stand-in library export exactly the symbols that a driver exports.

A program may look up a symbol to find out whether the driver has a function. So the stand-in must
have every symbol of the driver, also those newer than the headers it was built with, and no others.
It is built for that: with a System V hash table only, with spare functions whose names have 63
characters and which forward to whatever their name becomes, and with a function `aliquot_absent`.

- A missing symbol replaces the name of a spare function, in the string table and in the table by
  which the function finds its target.
- A symbol that the driver lacks is hidden: it is renamed to `aliquot_absent`. Only symbols with the
  driver's prefixes (`cu`, `nvml`) are hidden.
- Then the hash table is filled again in place: the number of symbols has not changed.

Pure: bytes in, bytes out.
"""

from __future__ import annotations

import re
import struct
from dataclasses import dataclass

from aliquot.devices import elf
from aliquot.devices.driver import STAND_IN_MARK
from aliquot.model.errors import InstallationError

NAME_SIZE = 63  # of the name of a spare function

_SPARE = re.compile(rb"aliquot_spare_[0-9]{3}_x{45}")
_PREFIXES = ("cu", "nvml")


@dataclass(frozen=True, slots=True)
class FittedStandIn:
    """A stand-in with the symbols of a driver.

    `data` is None if nothing had to change. `missing` are symbols for which no spare function was
    left, or that are too long: programs that look them up do not find them.
    """

    data: bytes | None
    added: tuple[str, ...]
    hidden: tuple[str, ...]
    missing: tuple[str, ...]


def fit_symbols(stand_in: bytes, driver: elf.Library) -> FittedStandIn:
    """The stand-in with the symbols of that driver."""
    library = elf.read(stand_in)
    if library.has_gnu_hash or library.hash_table is None:
        raise InstallationError("the stand-in was not linked with --hash-style=sysv")
    ours, theirs = library.exported(), driver.exported()
    spares = sorted(name for name in ours if _SPARE.fullmatch(name.encode()))
    wanted = sorted(driver.functions() - ours)
    usable = [name for name in wanted if len(name) <= NAME_SIZE]
    added = dict(zip(spares, usable, strict=False))
    hidden = [
        symbol
        for symbol in library.symbols
        if symbol.defined and symbol.name.startswith(_PREFIXES) and symbol.name not in theirs
    ]
    return FittedStandIn(
        data=_rewrite(stand_in, library, added, hidden) if added or hidden else None,
        added=tuple(added.values()),
        hidden=tuple(sorted(symbol.name for symbol in hidden)),
        missing=tuple(sorted(set(wanted) - set(added.values()))),
    )


def _rewrite(
    stand_in: bytes, library: elf.Library, added: dict[str, str], hidden: list[elf.Symbol]
) -> bytes:
    def renamed(match: re.Match[bytes]) -> bytes:
        name = added.get(match[0].decode())
        return match[0] if name is None else name.encode().ljust(NAME_SIZE, b"\0")

    data = bytearray(_SPARE.sub(renamed, stand_in))
    if hidden:
        _hide(data, library, hidden)
    _fill_hash_table(data, elf.read(data))
    return bytes(data)


def _hide(data: bytearray, library: elf.Library, hidden: list[elf.Symbol]) -> None:
    mark = next((one for one in library.symbols if one.name == STAND_IN_MARK), None)
    if mark is None:
        raise InstallationError(f"the stand-in does not export {STAND_IN_MARK}")
    name_at = _entry(library, mark.at)
    for symbol in hidden:
        entry = _entry(library, symbol.at)
        data[entry : entry + 4] = data[name_at : name_at + 4]


def _entry(library: elf.Library, index: int) -> int:
    return library.symbol_table + index * elf.SYMBOL_SIZE


def _fill_hash_table(data: bytearray, library: elf.Library) -> None:
    assert library.hash_table is not None  # noqa: S101 - fit_symbols has checked
    buckets, chains = struct.unpack_from("<II", data, library.hash_table)
    first, following = [0] * buckets, [0] * chains
    for symbol in reversed(library.symbols[1:]):
        bucket = sysv_hash(symbol.name) % buckets
        following[symbol.at] = first[bucket]
        first[bucket] = symbol.at
    struct.pack_into(f"<{buckets + chains}I", data, library.hash_table + 8, *first, *following)


def sysv_hash(name: str) -> int:
    """The symbol hash of the System V ABI."""
    value = 0
    for byte in name.encode("ascii", "replace"):
        value = (value << 4) + byte
        high = value & 0xF0000000
        value = (value ^ high >> 24) & ~high & 0xFFFFFFFF
    return value
