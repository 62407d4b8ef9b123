"""Generate a stand-in library's symbols from NVIDIA's header and our list of hooks.

    standin.py --compiler CC --header cuda.h --define NAME --result CUresult --prefix cu
               --extra extra_symbols.txt --hooks hooks.txt --out DIR

Every name the header declares, and every name in the extra file, becomes a slot. Out come:

- ``slots.h``    the slots, and ``REAL(name)``: the driver's own function with its own type;
- ``forward.S``  for each symbol with no hook a jump through its slot, and the spare symbols that
                 the fitting step gives to names newer than the header;
- ``names.c``    the names by slot, as one text: no relocation, so loading costs nothing;
- ``hooks.c``    for each hooked symbol an exported function that calls what the list names.

A line of the list is ``symbol implementation``, ``symbol then:function`` or ``symbol own``. An
implementation gets the driver's function and then the arguments; a ``then`` function is called
after a success; an ``own`` symbol is written by hand, name and all.
"""

from __future__ import annotations

import argparse
import re
import subprocess
from dataclasses import dataclass
from pathlib import Path

SPARES = 256
SPARE_SIZE = 64
OWN = "own"

PROTOTYPE = r"\b{result}\s+({prefix}\w+)\s*\(([^;{{}}]*?)\)\s*;"
NAME_IN_PARAMETER = re.compile(r"(\w+)\s*(?:\[[^\]]*\]\s*)*$")
FUNCTION_POINTER = re.compile(r"\(\s*\*\s*(\w+)\s*\)")


@dataclass(frozen=True)
class Hook:
    symbol: str
    implementation: str
    then: bool


def prototypes(args: argparse.Namespace) -> dict[str, str]:
    """The declared functions and their parameter lists, as the preprocessor leaves them."""
    command = [*args.compiler.split(";"), "-E", "-P", f"-D{args.define}", args.header]
    text = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    text = re.sub(r"__attribute__\s*\(\(.*?\)\)", "", text)
    pattern = PROTOTYPE.format(result=args.result, prefix=args.prefix)
    return {m[1]: " ".join(m[2].split()) for m in re.finditer(pattern, text)}


def words(path: str) -> list[list[str]]:
    lines = (line.split("#")[0].split() for line in Path(path).read_text().splitlines())
    return [line for line in lines if line]


def read_hooks(path: str, known: dict[str, str]) -> list[Hook]:
    hooks = []
    for symbol, implementation in words(path):
        if symbol not in known and implementation != OWN:
            raise SystemExit(f"{path}: {symbol} is not declared in the header")
        then = implementation.startswith("then:")
        hooks.append(Hook(symbol, implementation.removeprefix("then:"), then))
    return hooks


def split_parameters(parameters: str) -> list[str]:
    parts, depth, start = [], 0, 0
    for i, character in enumerate(parameters):
        depth += (character == "(") - (character == ")")
        if character == "," and depth == 0:
            parts.append(parameters[start:i])
            start = i + 1
    parts.append(parameters[start:])
    return [part.strip() for part in parts if part.strip() not in ("", "void")]


def argument_name(parameter: str) -> str:
    match = FUNCTION_POINTER.search(parameter) or NAME_IN_PARAMETER.search(parameter)
    if match is None:
        raise SystemExit(f"no name in parameter {parameter!r}")
    return match[1]


def slots_header(names: list[str]) -> str:
    slots = "\n".join(f"\tSLOT_{name}," for name in names)
    return f"""#pragma once
enum {{
{slots}
\tSLOT_SPARES,
\tSLOT_COUNT = SLOT_SPARES + {SPARES},
}};
extern void *forward_real[SLOT_COUNT];
/* Two threads may fill the slots at once, with the same. */
#define REAL(name) \\
\t((__typeof__(&name))__atomic_load_n(&forward_real[SLOT_##name], __ATOMIC_RELAXED))
"""


def spare_name(index: int) -> str:
    return f"aliquot_spare_{index:03d}_".ljust(SPARE_SIZE - 1, "x")


def forward_assembly(names: list[str], hooked: set[str]) -> str:
    lines = ['#include "forward_entry.inc"', ""]
    lines += [f"FORWARD {name}, {i}" for i, name in enumerate(names) if name not in hooked]
    lines += [f"FORWARD {spare_name(i)}, {len(names) + i}" for i in range(SPARES)]
    return "\n".join([*lines, "FORWARD_END", ""])


def names_source(names: list[str]) -> str:
    text = "\n".join(f'\t"{name}\\0"' for name in names)
    spares = "\n".join(f'\t"{spare_name(i)}",' for i in range(SPARES))
    return f"""#include "forward.h"
#include "slots.h"

void *forward_real[SLOT_COUNT];
const unsigned forward_known = SLOT_SPARES;
const unsigned forward_count = SLOT_COUNT;
const char forward_names[] =
{text};
const char forward_spares[][{SPARE_SIZE}] = {{
{spares}
}};
"""


def hooks_source(hooks: list[Hook], known: dict[str, str], result: str) -> str:
    declared: set[str] = set()
    declarations, functions, table = [], [], []
    for hook in hooks:
        parameters = split_parameters(known[hook.symbol])
        arguments = [argument_name(parameter) for parameter in parameters]
        if hook.implementation not in declared:
            declared.add(hook.implementation)
            listed = ", ".join([f"__typeof__(&{hook.symbol}) real", *parameters])
            declarations.append(
                f"void {hook.implementation}(void);"
                if hook.then
                else f"{result} {hook.implementation}({listed});"
            )
        call = (
            f"\t{result} result = real({', '.join(arguments)});\n"
            f"\tif (result == 0)\n\t\t{hook.implementation}();\n\treturn result;"
            if hook.then
            else f"\treturn {hook.implementation}({', '.join(['real', *arguments])});"
        )
        functions.append(
            f"FORWARD_EXPORT {result} {hook.symbol}({', '.join(parameters) or 'void'})\n{{\n"
            f"\tforward_begin();\n"
            f"\t__typeof__(&{hook.symbol}) real = REAL({hook.symbol});\n"
            f"\tif (__builtin_expect(!real, 0))\n\t\treturn forward_missing();\n{call}\n}}\n"
        )
        table.append(
            f"\tif (function == (void *)REAL({hook.symbol}))\n\t\treturn (void *){hook.symbol};"
        )
    joined_declarations = "\n".join(declarations)
    joined_functions = "\n".join(functions)
    joined_table = "\n".join(table)
    return f"""#include "hooked.h"

{joined_declarations}

{joined_functions}
void *forward_substitute(void *function)
{{
\tif (!function)
\t\treturn 0;
{joined_table}
\treturn function;
}}
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    for option in ("compiler", "header", "define", "result", "prefix", "extra", "hooks", "out"):
        parser.add_argument(f"--{option}", required=True)
    args = parser.parse_args()
    known = prototypes(args)
    names = sorted(set(known) | {line[0] for line in words(args.extra)})
    hooks = read_hooks(args.hooks, known)
    out = Path(args.out)
    out.mkdir(parents=True, exist_ok=True)
    (out / "slots.h").write_text(slots_header(names))
    (out / "forward.S").write_text(forward_assembly(names, {hook.symbol for hook in hooks}))
    (out / "names.c").write_text(names_source(names))
    generated = [hook for hook in hooks if hook.implementation != OWN]
    (out / "hooks.c").write_text(hooks_source(generated, known, args.result))


if __name__ == "__main__":
    main()
