"""No circles between the C files: within a library or program, calls only go down.

A file depends on another if it calls a function that the other defines (`nm` of the object files
tells). A circle is a set of two or more files that all depend on each other, directly or through
others. Data that one file defines and another reads makes no dependency.
"""

from __future__ import annotations

import os
import re
import subprocess
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
BUILD = ROOT / "build" / "python"
OBJECT = re.compile(r"\bnative/[\w/]+?/CMakeFiles/[\w-]+\.dir/[\w./]+\.o\b")

# The circles that may stay, each with its reason.
ALLOWED: dict[frozenset[str], str] = {
    frozenset({"cuda/generated/hooks.c", "cuda/lookup.c"}): (
        "cuGetProcAddress is itself hooked, and its hook hands out the hooked functions."
    ),
}

Calls = dict[str, set[str]]


def source_of(path: str) -> str:
    """The source file's path below native/ for an object file's path below the build folder."""
    folder, _, rest = path.removeprefix("native/").partition("/CMakeFiles/")
    name = rest.partition("/")[2].removesuffix(".o").replace("__/", "../")
    return os.path.normpath(f"{folder}/{name}")


@cache
def objects() -> dict[str, list[str]]:
    """The object files of each target that the build makes now, by the target's folder."""
    text = (BUILD / "build.ninja").read_text()
    found: dict[str, list[str]] = {}
    for path in sorted(set(OBJECT.findall(text))):
        target = path[: path.index(".dir/")]
        if (BUILD / path).exists():
            found.setdefault(target, []).append(path)
    return found


def symbols(path: str) -> tuple[set[str], set[str]]:
    """The functions that an object file defines for others, and the names that it needs."""
    command = ["nm", "--format=posix", "--extern-only", str(BUILD / path)]
    text = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    lines = [line.split() for line in text.splitlines()]
    defined = {name for name, kind, *_ in lines if kind in "TWi"}
    return defined, {name for name, kind, *_ in lines if kind in "Uw"}


def calls_between(paths: list[str]) -> Calls:
    tables = {source_of(path): symbols(path) for path in paths}
    owner = {name: source for source, (defined, _) in tables.items() for name in defined}
    return {
        source: {owner[name] for name in wanted if name in owner} - {source}
        for source, (_, wanted) in tables.items()
    }


def circles(calls: Calls) -> list[frozenset[str]]:
    """The sets of two or more files that all reach each other (Tarjan's algorithm)."""
    index: dict[str, int] = {}
    low: dict[str, int] = {}
    stack: list[str] = []
    found: list[frozenset[str]] = []

    def visit(file: str) -> None:
        index[file] = low[file] = len(index)
        stack.append(file)
        for other in sorted(calls[file]):
            if other not in index:
                visit(other)
                low[file] = min(low[file], low[other])
            elif other in stack:
                low[file] = min(low[file], index[other])
        if low[file] == index[file]:
            at = stack.index(file)
            component = frozenset(stack[at:])
            del stack[at:]
            if len(component) > 1:
                found.append(component)

    for file in sorted(calls):
        if file not in index:
            visit(file)
    return found


@cache
def circles_now() -> set[frozenset[str]]:
    return {circle for paths in objects().values() for circle in circles(calls_between(paths))}


needs_build = pytest.mark.skipif(
    not (BUILD / "build.ninja").exists(), reason="the C code was not built in build/python"
)


@needs_build
def test_c_files_form_no_circles() -> None:
    new = [sorted(circle) for circle in circles_now() - ALLOWED.keys()]
    assert not new, f"files that call each other in a circle: {new}"


@needs_build
def test_allowed_circles_still_exist() -> None:
    gone = [sorted(circle) for circle in ALLOWED.keys() - circles_now()]
    assert not gone, f"remove these from ALLOWED: {gone}"


def test_a_circle_is_found_with_all_its_files() -> None:
    calls = {"a": {"b"}, "b": {"c"}, "c": {"a", "d"}, "d": {"e"}, "e": {"d"}, "f": {"a"}}
    assert set(circles(calls)) == {frozenset("abc"), frozenset("de")}


def test_files_that_only_call_down_form_no_circle() -> None:
    assert circles({"a": {"b", "c"}, "b": {"c"}, "c": set()}) == []
