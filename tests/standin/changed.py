"""The simulated driver with some functions replaced by a test's: all others go to it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import support
from aliquot.devices import CUDA, NVML, elf

if TYPE_CHECKING:
    from collections.abc import Collection
    from pathlib import Path

_SOURCE = """
#define _GNU_SOURCE
#include <dlfcn.h>
#include <string.h>
static const char names[] = {names};
__attribute__((visibility("hidden"))) void *table[{count}];
__attribute__((constructor)) static void fill(void)
{{
	void *library = dlopen("{driver}", RTLD_NOW | RTLD_LOCAL);
	const char *name = names;
	for (int i = 0; i < {count}; i++, name += strlen(name) + 1)
		table[i] = dlsym(library, name);
}}
static __attribute__((unused)) void *simulated(const char *wanted)
{{
	const char *name = names;
	for (int i = 0; i < {count}; i++, name += strlen(name) + 1)
		if (strcmp(name, wanted) == 0)
			return table[i];
	return 0;
}}
{own}
{jumps}
"""

_JUMPS = {
    elf.X86_64: "jmp *table+8*{index}(%rip)",
    elf.AARCH64: "adrp x16, table+8*{index}; ldr x16, [x16, :lo12:table+8*{index}]; br x16",
}


def exported(path: Path) -> list[str]:
    return sorted(elf.read_file(path).functions())


def changed_driver(
    folder: Path, driver: Path, own: str, *, defined: Collection[str] = (), without: str = ""
) -> Path:
    """A driver with the C source `own`, which replaces the functions in `defined`.

    There, `simulated(name)` is the simulated driver's function.
    """
    names = [name for name in exported(driver / CUDA) if name != without]
    jump = _JUMPS[elf.read_file(driver / CUDA).machine]
    jumps = [
        f'__asm__(".globl {name}\\n.type {name}, %function\\n{name}: {jump.format(index=index)}");'
        for index, name in enumerate(names)
        if name not in defined
    ]
    folder.mkdir(parents=True, exist_ok=True)
    simulated = folder / "simulated.so"  # by the driver's name, dlopen opens the stand-in
    simulated.symlink_to(driver / CUDA)
    (folder / "shapes.conf").symlink_to(driver / "shapes.conf")
    source = _SOURCE.format(
        names="\n".join(f'"{name}\\0"' for name in names),
        count=len(names),
        driver=simulated,
        own=own,
        jumps="\n".join(jumps),
    )
    support.compile_library(folder, CUDA, source, "-Wl,-Bsymbolic", "-ldl")
    (folder / NVML).symlink_to(driver / NVML)
    return folder
