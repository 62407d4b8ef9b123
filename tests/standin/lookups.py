"""How a program finds the driver's functions; run in a process with a driver or a stand-in.

    python -m standin.lookups LIBRARY QUESTION...

Answers are JSON. A function is told as [file it lies in, offset in that file].
"""

from __future__ import annotations

import ctypes as c
import json
import sys
from functools import partial
from pathlib import Path

Place = tuple[str, int] | None


class _Info(c.Structure):
    _fields_ = (
        ("file", c.c_char_p),
        ("base", c.c_void_p),
        ("symbol", c.c_char_p),
        ("at", c.c_void_p),
    )


libc = c.CDLL(None)
for _name in ("dlsym", "dlvsym"):
    getattr(libc, _name).restype = c.c_void_p


def place(address: int | None) -> Place:
    if not address:
        return None
    info = _Info()
    assert libc.dladdr(c.c_void_p(address), c.byref(info))
    return str(Path(info.file.decode()).resolve()), address - info.base


def by_name(library: c.CDLL, names: list[str]) -> dict[str, Place]:
    handle = c.c_void_p(library._handle)
    return {name: place(libc.dlsym(handle, name.encode())) for name in names}


def by_version(library: c.CDLL, names: list[str], version: str) -> dict[str, Place]:
    handle, wanted = c.c_void_p(library._handle), version.encode()
    return {name: place(libc.dlvsym(handle, name.encode(), wanted)) for name in names}


def by_driver(
    library: c.CDLL, names: list[str], versions: list[int], flags: list[int]
) -> list[tuple[str, int, int, int, int, Place]]:
    """cuGetProcAddress_v2 of all names, with all versions and flags: code, status, function."""
    answers = []
    for name in names:
        for version in versions:
            for flag in flags:
                function, status = c.c_void_p(), c.c_int(-1)
                code = library.cuGetProcAddress_v2(
                    name.encode(), c.byref(function), version, c.c_uint64(flag), c.byref(status)
                )
                found = place(function.value)
                answers.append((name, version, flag, code, status.value, found))
    return answers


def by_driver_v1(
    library: c.CDLL, names: list[str], versions: list[int], flags: list[int]
) -> list[tuple[str, int, int, int, Place]]:
    answers = []
    for name in names:
        for version in versions:
            for flag in flags:
                function = c.c_void_p()
                code = library.cuGetProcAddress(
                    name.encode(), c.byref(function), version, c.c_uint64(flag)
                )
                answers.append((name, version, flag, code, place(function.value)))
    return answers


def edges(library: c.CDLL) -> list[int]:
    """Unusual lookups: no name, no place for the result, no status wanted."""
    ask, function, status = library.cuGetProcAddress_v2, c.c_void_p(), c.c_int(-1)
    none, put, told = c.c_uint64(0), c.byref(function), c.byref(status)
    return [
        ask(None, put, 13000, none, told),
        ask(b"cuInit", None, 13000, none, told),
        ask(b"cuInit", put, 13000, none, None),
        ask(b"", put, 13000, none, told),
        ask(b"cuInit", put, -1, none, told),
        library.cuGetProcAddress(b"cuNoSuch", put, 13000, none),
        library.cuGetProcAddress(None, put, 13000, none),
    ]


def main() -> None:
    library = c.CDLL(sys.argv[1])
    question = json.load(sys.stdin)
    known = {
        name: partial(function, library)
        for name, function in (
            ("by_name", by_name),
            ("by_version", by_version),
            ("by_driver", by_driver),
            ("by_driver_v1", by_driver_v1),
            ("edges", edges),
        )
    }
    answers = [known[name](*arguments) for name, *arguments in question]
    json.dump(answers, sys.stdout)


if __name__ == "__main__":
    main()
