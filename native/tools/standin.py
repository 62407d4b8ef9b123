"""Generate a stand-in library's symbols from NVIDIA's header and our list of hooks.

    standin.py --compiler CC --header cuda.h --define NAME --result CUresult --prefix cu
               --extra extra_symbols.txt --hooks hooks.txt --out DIR

Every name that the header declares or the extra file lists gets a slot. The output is:

- ``slots.h``    the slots, and ``REAL(name)``: the driver's own function with its type;
- ``forward.S``  for each symbol without a hook a jump through its slot, and the spare symbols that
                 later get the names of functions newer than the header (stand_in_symbols.py);
- ``names.c``    the names by slot in one string: no relocations, so loading is fast;
- ``hooks.c``    for each hooked symbol an exported function that calls what the list says.

A line of the list is a symbol, followed by any of these:

- ``before:function``  called first, without arguments;
- ``implementation``   called instead of the driver, with the driver's function and the arguments;
- ``then:function``    called after a success, without arguments;
- ``failed:function``  called after a failure, with the result;
- ``barrier``          the call is counted, and blocks while the process is frozen
                       (cuda/freeze_barrier.h);
- ``resident``         the call waits first while the program's memory is not on the GPU
- ``memory``           with ``resident``: it asks for memory, and may be refused instead of waiting
                       (cuda/swap/residence.h);
- ``own``              only this: the symbol is written by hand.
"""

from __future__ import annotations

import argparse
import re
import subprocess
from dataclasses import dataclass
from pathlib import Path

SPARES = 256
SPARE_SIZE = 64
OWN, BARRIER, RESIDENT, MEMORY = "own", "barrier", "resident", "memory"

PROTOTYPE = r"\b{result}\s+({prefix}\w+)\s*\(([^;{{}}]*?)\)\s*;"
NAME_IN_PARAMETER = re.compile(r"(\w+)\s*(?:\[[^\]]*\]\s*)*$")
FUNCTION_POINTER = re.compile(r"\(\s*\*\s*(\w+)\s*\)")


@dataclass(frozen=True)
class Hook:
    symbol: str
    implementation: str  # "": call the driver
    before: str
    then: str
    failed: str
    barrier: bool
    resident: bool
    memory: bool


def prototypes(args: argparse.Namespace) -> dict[str, str]:
    """The declared functions with their parameter lists, after preprocessing."""
    command = [*args.compiler.split(";"), "-E", "-P", f"-D{args.define}", args.header]
    text = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    text = re.sub(r"__attribute__\s*\(\(.*?\)\)", "", text)
    pattern = PROTOTYPE.format(result=args.result, prefix=args.prefix)
    return {m[1]: " ".join(m[2].split()) for m in re.finditer(pattern, text)}


def words(path: str) -> list[list[str]]:
    lines = (line.split("#")[0].split() for line in Path(path).read_text().splitlines())
    return [line for line in lines if line]


def read_hook(path: str, symbol: str, around: list[str]) -> Hook:
    parts = {"": "", "before": "", "then": "", "failed": ""}
    for word in around:
        if word in (BARRIER, RESIDENT, MEMORY):
            continue
        when, _, function = word.rpartition(":")
        if parts.get(when) != "":
            raise SystemExit(f"{path}: {symbol} cannot have {word}")
        parts[when] = function
    if MEMORY in around and RESIDENT not in around:
        raise SystemExit(f"{path}: {symbol} has memory and not resident")
    return Hook(
        symbol,
        parts[""],
        parts["before"],
        parts["then"],
        parts["failed"],
        BARRIER in around,
        RESIDENT in around,
        MEMORY in around,
    )


def read_hooks(path: str, known: dict[str, str]) -> list[Hook]:
    hooks = [read_hook(path, symbol, around) for symbol, *around in words(path)]
    for hook in hooks:
        if hook.symbol not in known and hook.implementation != OWN:
            raise SystemExit(f"{path}: {hook.symbol} is not declared in the header")
    if len({hook.symbol for hook in hooks}) < len(hooks):
        raise SystemExit(f"{path}: a symbol is listed twice")
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


def declarations(hook: Hook, parameters: list[str], result: str) -> list[str]:
    """Declarations of the functions that a hook names."""
    listed = ", ".join([f"__typeof__(&{hook.symbol}) real", *parameters])
    named = [
        (hook.before, f"void {hook.before}(void);"),
        (hook.implementation, f"{result} {hook.implementation}({listed});"),
        (hook.then, f"void {hook.then}(void);"),
        (hook.failed, f"void {hook.failed}({result} result);"),
        (hook.barrier, "bool freeze_barrier_enter(void);"),
        (hook.barrier, "void freeze_barrier_leave(void);"),
    ]
    return [text for name, text in named if name]


def hook_function(hook: Hook, parameters: list[str], result: str) -> str:
    arguments = [argument_name(parameter) for parameter in parameters]
    call = (
        f"{hook.implementation}({', '.join(['real', *arguments])})"
        if hook.implementation
        else f"real({', '.join(arguments)})"
    )
    lines = [
        "forward_begin();",
        f"__typeof__(&{hook.symbol}) real = REAL({hook.symbol});",
        "if (__builtin_expect(!real, 0))",
        "\treturn forward_missing();",
    ]
    if hook.resident:
        enter = "residence_enter_to_allocate" if hook.memory else "residence_enter"
        lines.append(f"struct residence_call resident = {enter}();")
    if hook.memory:
        lines += ["if (resident.is_refused)", "\treturn CUDA_ERROR_OUT_OF_MEMORY;"]
    if hook.before:
        lines.append(f"{hook.before}();")
    if hook.barrier:
        lines.append("bool inside = freeze_barrier_enter();")
    if hook.then or hook.failed or hook.barrier or hook.resident:
        lines.append(f"{result} result = {call};")
        if hook.barrier:
            lines += ["if (inside)", "\tfreeze_barrier_leave();"]
        if hook.then:
            lines += ["if (result == 0)", f"\t{hook.then}();"]
        if hook.failed:
            lines += ["if (result != 0)", f"\t{hook.failed}(result);"]
        if hook.resident:
            lines.append("residence_leave(resident);")
        call = "result"
    body = "".join(f"\t{line}\n" for line in [*lines, f"return {call};"])
    signature = f"{hook.symbol}({', '.join(parameters) or 'void'})"
    return f"FORWARD_EXPORT {result} {signature}\n{{\n{body}}}\n"


def hooks_source(hooks: list[Hook], known: dict[str, str], result: str) -> str:
    declared: dict[str, str] = {}  # by name: an implementation may serve several symbols
    functions = []
    for hook in hooks:
        if hook.implementation == OWN:
            continue
        parameters = split_parameters(known[hook.symbol])
        for text in declarations(hook, parameters, result):
            declared.setdefault(text.partition("(")[0], text)
        functions.append(hook_function(hook, parameters, result))
    table = "\n".join(
        f"\tif (function == (void *)REAL({hook.symbol}))\n\t\treturn (void *){hook.symbol};"
        for hook in hooks
        if hook.symbol in known
    )
    joined_declarations = "\n".join(declared.values())
    joined_functions = "\n".join(functions)
    include = '#include "swap/residence.h"\n' if any(hook.resident for hook in hooks) else ""
    return f"""#include "hooked.h"
{include}
{joined_declarations}

{joined_functions}
void *forward_substitute(void *function)
{{
\tif (!function)
\t\treturn 0;
{table}
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
    (out / "hooks.c").write_text(hooks_source(hooks, known, args.result))


if __name__ == "__main__":
    main()
