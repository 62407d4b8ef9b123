"""Every function of the driver's header is hooked, or forwarded for a written reason."""

from __future__ import annotations

import argparse
import functools
import importlib.util
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

NATIVE = Path(__file__).parents[2] / "native"
HOOKS, FORWARDED = NATIVE / "cuda" / "hooks.txt", NATIVE / "cuda" / "forwarded.txt"
REASON = "because "


def standin() -> ModuleType:
    """The generator of the stand-in, which reads the header."""
    spec = importlib.util.spec_from_file_location("standin_tool", NATIVE / "tools" / "standin.py")
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


@functools.cache
def prototypes() -> dict[str, str]:
    """The functions of the driver's header with their parameters."""
    command = [sys.executable, str(NATIVE / "tools" / "find_headers.py")]
    folder = subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
    options = argparse.Namespace(
        compiler="cc",
        header=f"{folder}/cuda.h",
        define="__CUDA_API_VERSION_INTERNAL",
        result="CUresult",
        prefix="cu",
    )
    return dict(standin().prototypes(options))


@pytest.fixture(scope="module")
def header() -> set[str]:
    return set(prototypes())


def hooked() -> list[str]:
    return [words[0] for words in standin().words(HOOKS)]


def forwarded() -> dict[str, list[str]]:
    """The functions by the reason why they are forwarded."""
    lines = [line for line in FORWARDED.read_text().splitlines() if line and line[0] != "#"]
    found: dict[str, list[str]] = {}
    for line in lines:
        if line.startswith(REASON):
            reason = line.removeprefix(REASON)
            found[reason] = []
        else:
            found[reason] += line.split()
    return found


def test_every_function_of_the_header_was_looked_at(header: set[str]) -> None:
    listed = hooked() + [name for names in forwarded().values() for name in names]
    assert header - set(listed) == set(), "hook it, or say in forwarded.txt why not"


def test_no_function_is_in_both_lists_or_twice_in_one() -> None:
    listed = hooked() + [name for names in forwarded().values() for name in names]
    assert sorted(name for name in set(listed) if listed.count(name) > 1) == []


def test_the_list_of_forwarded_functions_has_no_others(header: set[str]) -> None:
    listed = {name for names in forwarded().values() for name in names}
    assert listed - header == set()


@pytest.mark.parametrize("suffix", ["_ptsz", "_ptds"])
def test_a_call_and_its_form_for_streams_of_threads_are_in_the_same_list(
    header: set[str], suffix: str
) -> None:
    known = set(hooked())
    pairs = [(name, name + suffix) for name in header if name + suffix in header]
    assert [pair for pair in pairs if (pair[0] in known) != (pair[1] in known)] == []
