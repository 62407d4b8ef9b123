"""Every way in which a program finds the driver's functions leads to the stand-in.

What it finds there is what it would find in the driver: the same names, the same answers.
"""

from __future__ import annotations

import json
import subprocess
import sys
from functools import cache
from pathlib import Path
from typing import Any

import pytest

import support
from aliquot.devices import CUDA, NVML
from standin.changed import changed_driver, exported
from standin.conftest import MakeMachine
from standin.machine import GIB, TESTS, Grant, Machine, fitted_library

HOOKS = TESTS.parent / "native" / "cuda" / "hooks.txt"
VERSIONS = [2000, 3020, 4000, 7000, 10000, 11000, 11020, 11030, 12000, 12050, 13000, 99000]
FLAGS = [0, 1, 2, 3, 4, 64]


@pytest.fixture
def grant(machine: Machine) -> Grant:
    return machine.grant(GIB)


@cache
def hooked() -> frozenset[str]:
    lines = (line.split("#")[0].split() for line in HOOKS.read_text("utf-8").splitlines())
    return frozenset(line[0] for line in lines if line)


def ask(environment: dict[str, str], library: str, *questions: list[Any]) -> list[Any]:
    done = subprocess.run(
        [sys.executable, "-S", "-m", "standin.lookups", library],
        env={**environment, "PYTHONPATH": str(TESTS)},
        input=json.dumps(questions),
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return list(json.loads(done.stdout))


# --- by name


@pytest.mark.parametrize("name", [CUDA, NVML])
def test_the_stand_in_has_exactly_the_drivers_names(
    machine: Machine, grant: Grant, name: str
) -> None:
    names = exported(machine.driver / name)
    assert len(names) > 300
    wrong = ["cuNoSuchFunction", "nvmlNoSuchFunction", "aliquot_spare_000_", "printf"]
    (alone,) = ask(machine.bare(), name, ["by_name", [*names, *wrong]])
    (found,) = ask(machine.inside(grant), name, ["by_name", [*names, *wrong]])
    assert {key: value is not None for key, value in found.items()} == {
        key: value is not None for key, value in alone.items()
    }
    assert {found[key][0] for key in names} == {str((machine.library / name).resolve())}
    assert len({found[key][1] for key in names}) == len(names)


@pytest.mark.parametrize("name", [CUDA, NVML])
def test_symbol_versions_resolve_as_in_the_driver(
    machine: Machine, grant: Grant, name: str
) -> None:
    names = [*exported(machine.driver / name)[:50], "cuNoSuch"]
    questions = [["by_version", names, version] for version in ("GLIBC_2.17", name, "X")]
    alone, found = (ask(env, name, *questions) for env in (machine.bare(), machine.inside(grant)))
    assert [[key for key, at in answer.items() if at] for answer in found] == [
        [key for key, at in answer.items() if at] for answer in alone
    ]


def program_that_links(folder: Path, names: list[str], libraries: list[Path]) -> Path:
    """A C program that names every function, and prints the file each was found in."""
    lines = [
        "#define _GNU_SOURCE",
        "#include <dlfcn.h>",
        "#include <stdio.h>",
        *(f"extern int {name}();" for name in names),
        "static void *const all[] = {",
        *(f"\t(void *){name}," for name in names),
        "};",
        "int main(void) {",
        "\tDl_info info;",
        "\tfor (unsigned i = 0; i < sizeof(all) / sizeof(*all); i++)",
        '\t\tputs(dladdr(all[i], &info) ? info.dli_fname : "?");',
        "\treturn 0;",
        "}",
    ]
    program = folder / "program"
    command = [
        "gcc",
        "-std=gnu11",
        "-fno-builtin",
        "-x",
        "c",
        "-",
        "-o",
        str(program),
        "-x",
        "none",
    ]
    subprocess.run(
        [*command, *map(str, libraries), "-ldl"], input="\n".join(lines), text=True, check=True
    )
    return program


@pytest.mark.parametrize("name", [CUDA, NVML])
@pytest.mark.parametrize("now", ["", "1"])
def test_a_program_linked_to_the_driver_finds_the_stand_in(
    machine: Machine, grant: Grant, tmp_path: Path, name: str, now: str
) -> None:
    names = exported(machine.driver / name)
    program = program_that_links(tmp_path, names, [machine.driver / name])
    done = machine.run(grant, str(program), LD_BIND_NOW=now)
    assert done.returncode == 0, done.stderr
    assert {Path(line).resolve() for line in done.stdout.splitlines()} == {
        (machine.library / name).resolve()
    }
    assert len(done.stdout.splitlines()) == len(names)


# --- by the driver's own look-up


def bases(names: list[str]) -> list[str]:
    """The names that a program asks cuGetProcAddress for."""
    plain = {name.removesuffix("_ptsz").removesuffix("_ptds") for name in names}
    return sorted({name.rpartition("_v")[0] or name for name in plain} | plain)


def expected_place(alone: Any, in_stand_in: dict[str, Any], in_driver: dict[str, Any]) -> Any:
    """The stand-in's function if it hooks what the driver answers."""
    if alone is None:
        return None
    names = [name for name, at in in_driver.items() if at == alone and name in hooked()]
    return in_stand_in[names[0]] if names else alone


@pytest.mark.parametrize("way", ["by_driver", "by_driver_v1"])
def test_cugetprocaddress_answers_like_the_driver(machine: Machine, grant: Grant, way: str) -> None:
    names = exported(machine.driver / CUDA)
    asked = [*bases(names), "cuNoSuch", "", "cuMemAlloc_v2_ptsz", "printf"]
    question = [way, asked, VERSIONS, FLAGS]
    in_driver, alone = ask(machine.bare(), CUDA, ["by_name", names], question)
    in_stand_in, found = ask(machine.inside(grant), CUDA, ["by_name", names], question)
    assert len(found) == len(alone) == len(asked) * len(VERSIONS) * len(FLAGS)
    for before, after in zip(alone, found, strict=True):
        assert after[:-1] == before[:-1]
        assert after[-1] == expected_place(before[-1], in_stand_in, in_driver), after
    assert any(answer[-1] and answer[-1] in in_stand_in.values() for answer in found)


def test_unusual_lookups_are_answered_like_the_driver(machine: Machine, grant: Grant) -> None:
    assert ask(machine.inside(grant), CUDA, ["edges"]) == ask(machine.bare(), CUDA, ["edges"])


def test_a_lookup_needs_no_grant(machine: Machine) -> None:
    (found,) = ask(
        machine.inside(None), CUDA, ["by_driver", ["cuMemAlloc", "cuInit"], [13000], [0]]
    )
    assert [answer[3:5] for answer in found] == [[0, 0], [0, 0]]


# --- a driver newer than our headers

FUTURE = """
int cuFromTheFuture(int number)
{
	return number + 1;
}
int cuGetProcAddress_v2(const char *name, void **function, int version, unsigned long flags,
                        int *status)
{
	if (strcmp(name, "cuFromTheFuture") == 0) {
		*function = (void *)cuFromTheFuture;
		*status = 0;
		return 0;
	}
	int (*real)(const char *, void **, int, unsigned long, int *);
	real = simulated("cuGetProcAddress_v2");
	return real(name, function, version, flags, status);
}
"""


def test_a_function_newer_than_our_headers_is_found(
    make_machine: MakeMachine, native_dir: Path, tmp_path: Path
) -> None:
    lacks = "cuMemAllocManaged"
    driver = changed_driver(
        tmp_path / "driver",
        native_dir / "sim",
        FUTURE,
        defined=["cuGetProcAddress_v2"],
        without=lacks,
    )
    fitted = fitted_library(tmp_path / "fitted", native_dir, driver)
    machine = make_machine(driver=driver, fitted=fitted)
    grant = machine.grant(GIB)
    names = ["cuFromTheFuture", lacks, "cuInit", "cuMemAlloc_v2"]
    stand_in = str((fitted / CUDA).resolve())

    found, looked_up = ask(
        machine.inside(grant), CUDA, ["by_name", names], ["by_driver", names, [13000], [0]]
    )
    assert found["cuFromTheFuture"][0] == found["cuInit"][0] == stand_in
    assert found[lacks] is None
    assert looked_up[0][3:5] == [0, 0]
    assert looked_up[0][5][0] == str((driver / CUDA).resolve())

    program = program_that_links(tmp_path, ["cuFromTheFuture", "cuInit"], [driver / CUDA])
    done = machine.run(grant, str(program))
    assert {str(Path(line).resolve()) for line in done.stdout.split()} == {stand_in}

    code = "import ctypes; print(ctypes.CDLL('libcuda.so.1').cuFromTheFuture(41))"
    assert machine.python(grant, code) == 42
    machine.tenant(grant).start().ok("alloc", 1 << 20)


# --- by every name of the library

OPEN = """
import ctypes, json, sys
found = {}
for name in sys.argv[1:]:
    try:
        ctypes.CDLL(name)
    except OSError as error:
        found[name] = str(error)
maps = {line.split()[-1] for line in open("/proc/self/maps") if "/lib" in line}
print(json.dumps(sorted(path for path in maps if "libcuda" in path or "libnvidia" in path)))
"""


def opened(machine: Machine, grant: Grant, *names: str, **changes: str | None) -> list[str]:
    done = machine.run(grant, sys.executable, "-S", "-c", OPEN, *names, **changes)
    assert done.returncode == 0, done.stderr
    return list(json.loads(done.stdout))


def all_names(machine: Machine) -> list[str]:
    return [
        *(CUDA, "libcuda.so", str(machine.driver / CUDA)),
        *(NVML, "libnvidia-ml.so", str(machine.driver / NVML)),
    ]


def test_every_name_of_the_library_leads_to_the_stand_in(machine: Machine, grant: Grant) -> None:
    ours = [str((machine.library / name).resolve()) for name in (CUDA, NVML)]
    assert opened(machine, grant, *all_names(machine)) == ours


def test_a_program_that_drops_the_search_path_still_gets_the_stand_in(
    machine: Machine, grant: Grant
) -> None:
    ours = [str((machine.library / name).resolve()) for name in (CUDA, NVML)]
    assert opened(machine, grant, *all_names(machine), LD_LIBRARY_PATH=None) == ours


def test_a_program_that_drops_the_preload_still_gets_the_stand_in(
    machine: Machine, grant: Grant
) -> None:
    ours = [str((machine.library / name).resolve()) for name in (CUDA, NVML)]
    names = [CUDA, "libcuda.so", NVML, "libnvidia-ml.so"]
    assert opened(machine, grant, *names, LD_PRELOAD=None) == ours


@pytest.mark.parametrize("dropped", ["LD_PRELOAD", "LD_LIBRARY_PATH"])
def test_the_limit_holds_with_only_the_preload_or_the_search_path(
    machine: Machine, grant: Grant, dropped: str
) -> None:
    tenant = machine.tenant(grant, **{dropped: None})
    assert tenant.start().ok("total", 0) == GIB
    assert tenant("fill_up", 64 << 20)[1] == 2


def test_a_program_that_bypasses_the_stand_in_is_reported(machine: Machine, grant: Grant) -> None:
    stranger = machine.stranger().start()
    machine.tenant(grant).start()
    support.wait_until(
        lambda: [one["pid"] for one in machine.status()["gpus"][0]["strangers"]] == [stranger.pid]
    )


def test_other_libraries_are_found_as_before(
    machine: Machine, grant: Grant, tmp_path: Path
) -> None:
    """Our dlopen keeps its caller: the search uses the caller's RUNPATH."""
    support.compile_library(tmp_path / "beside", "libbeside.so", "int beside(void) { return 5; }")
    opener = support.compile_library(
        tmp_path,
        "libopener.so",
        '#include <dlfcn.h>\nint found(void) { return dlopen("libbeside.so", RTLD_NOW) != 0; }',
        "-Wl,-rpath,$ORIGIN/beside",
        "-Wl,--enable-new-dtags",
    )
    code = f"import ctypes; print(ctypes.CDLL('{opener}').found())"
    assert machine.python(grant, code) == 1
