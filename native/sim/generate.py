"""Generates the exports that are not simulated, and the table behind cuGetProcAddress.

The simulated driver and the simulated NVML export exactly the functions listed in
`cuda/symbols.txt` and `nvml/symbols.txt`. This script writes a weak definition of each that returns
NOT_SUPPORTED. The C sources in `cuda/` and `nvml/` define the simulated ones; a strong definition
replaces a weak one. A `_ptsz` or `_ptds` function calls its base function with the
per-thread default stream. `cuda/procaddr.txt` becomes the table behind cuGetProcAddress.

Usage: generate.py cuda|nvml PREPROCESSED_HEADER OUTPUT_DIRECTORY
"""

from __future__ import annotations

import re
import sys
from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).resolve().parent
BY_HAND = {"nvmlErrorString"}  # the only one that does not return a result code
PER_THREAD = re.compile(r"_(ptsz|ptds)$")


@dataclass(frozen=True)
class Library:
    """What the functions of one library have in common."""

    prefix: str
    result: str
    unsupported: str
    header: str


LIBRARIES = {
    "cuda": Library("cu", "CUresult", "CUDA_ERROR_NOT_SUPPORTED", "cuda/core/sim.h"),
    "nvml": Library("nvml", "nvmlReturn_t", "NVML_ERROR_NOT_SUPPORTED", "nvml/nvml_sim.h"),
}


def read_lines(path: Path) -> list[str]:
    lines = (line.strip() for line in path.read_text().splitlines())
    return [line for line in lines if line and not line.startswith("#")]


def prototypes(text: str, library: Library) -> dict[str, str]:
    flat = re.sub(r"__attribute__ *\(\(.*?\)\)", "", re.sub(r"\s+", " ", text))
    pattern = rf"{library.result} ({library.prefix}\w+) ?\(([^;]*?)\) ?;"
    return {match[1]: match[2] for match in re.finditer(pattern, flat)}


def argument_names(parameters: str) -> list[str]:
    if parameters.strip() in ("", "void"):
        return []
    names = []
    for parameter in parameters.split(","):
        match = re.search(r"(\w+)(\[\w*\])?\s*$", parameter)
        if match is None:
            raise SystemExit(f"cannot read the parameter {parameter!r}")
        names.append(match[1])
    return names


def stub(symbol: str, known: dict[str, str], library: Library) -> str:
    base = PER_THREAD.sub("", symbol)
    if base != symbol and base in known:
        parameters = known[base]
        call = f"{base}({', '.join(argument_names(parameters))})"
        return (
            f"WEAK {library.result} {symbol}({parameters})\n{{\n"
            f"\tsim_enter_per_thread();\n\t{library.result} result = {call};\n"
            f"\tsim_leave_per_thread();\n\treturn result;\n}}\n"
        )
    parameters = known.get(symbol, "void")
    unused = "".join(f"\t(void){name};\n" for name in argument_names(parameters))
    return (
        f"WEAK {library.result} {symbol}({parameters})\n{{\n{unused}"
        f"\treturn {library.unsupported};\n}}\n"
    )


def declarations(symbols: list[str], known: dict[str, str], library: Library) -> str:
    """Declarations of the table's functions that the header lacks."""
    lines = []
    for symbol in symbols:
        if symbol not in known:
            base = PER_THREAD.sub("", symbol)
            lines.append(f"{library.result} {symbol}({known.get(base, 'void')});")
    return "\n".join(lines) + "\n"


def stubs(symbols: list[str], known: dict[str, str], library: Library) -> str:
    head = (
        f'#include "{library.header}"\n\n'
        "#pragma GCC visibility push(default)\n"
        '#pragma GCC diagnostic ignored "-Wmissing-prototypes"\n'
        '#pragma GCC diagnostic ignored "-Wdeprecated-declarations"\n'
        "#define WEAK __attribute__((weak))\n\n"
    )
    return head + "\n".join(
        stub(symbol, known, library) for symbol in symbols if symbol not in BY_HAND
    )


def table_entries(text: str) -> list[tuple[int, str]]:
    pairs = (entry.split(":") for entry in text.split())
    return [(int(version), symbol) for version, symbol in pairs]


def look_up_table(symbols: list[str], known: dict[str, str], library: Library) -> str:
    rows = []
    for line in read_lines(HERE / "cuda" / "procaddr.txt"):
        name, _, rest = line.partition(" ")
        legacy, bar, per_thread = rest.partition("|")
        for flag, text in ((0, legacy), (1, per_thread if bar else legacy)):
            for version, symbol in table_entries(text):
                rows.append((name, flag, version, symbol))
    rows.sort()
    body = "".join(
        f'\t{{"{name}", {flag}, {version}, (void *){symbol}}},\n'
        for name, flag, version, symbol in rows
    )
    return (
        '#include "cuda/core/procaddr.h"\n#include "cuda/core/sim.h"\n\n'
        "#pragma GCC visibility push(default)\n"
        + declarations(symbols, known, library)
        + "#pragma GCC visibility pop\n\nconst struct sim_proc sim_procs[] = {\n"
        + body
        + "};\nconst size_t sim_proc_count = sizeof(sim_procs) / sizeof(sim_procs[0]);\n"
    )


def exports(symbols: list[str]) -> str:
    return "{\n\tglobal:\n" + "".join(f"\t\t{s};\n" for s in symbols) + "\tlocal: *;\n};\n"


def main() -> None:
    kind, header, output = sys.argv[1], Path(sys.argv[2]), Path(sys.argv[3])
    library = LIBRARIES[kind]
    symbols = read_lines(HERE / kind / "symbols.txt")
    known = prototypes(header.read_text(), library)
    output.mkdir(parents=True, exist_ok=True)
    (output / f"{kind}_stubs.c").write_text(stubs(symbols, known, library))
    (output / f"{kind}.map").write_text(exports(symbols))
    if kind == "cuda":
        (output / "procaddr_table.c").write_text(look_up_table(symbols, known, library))


if __name__ == "__main__":
    main()
