"""Fails if source files depend on each other in a circle.

File A depends on file B if A's object uses an external symbol that B's object defines. A circle is
a strongly connected component of more than one file.

Usage: circles.py NM ALLOWED OBJECT...

ALLOWED lists the files of the only circle that may exist, separated by commas, each as the end of
its path.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

STRONG, WEAK = "TDBRC", "VW"
Graph = Mapping[str, set[str]]


def symbols(nm: str, objects: list[str]) -> tuple[dict[str, set[str]], dict[str, str]]:
    """The symbols that each object uses, and the object that defines each symbol."""
    uses: dict[str, set[str]] = {name: set() for name in objects}
    weak: dict[str, str] = {}
    strong: dict[str, str] = {}
    for name in objects:
        listing = subprocess.run([nm, name], check=True, capture_output=True, text=True).stdout
        for line in listing.splitlines():
            *_, kind, symbol = line.split()
            if kind == "U":
                uses[name].add(symbol)
            elif kind in STRONG:
                strong[symbol] = name
            elif kind in WEAK:
                weak[symbol] = name
    return uses, {**weak, **strong}


def dependencies(nm: str, objects: list[str]) -> dict[str, set[str]]:
    uses, owner = symbols(nm, objects)
    return {
        name: {owner[symbol] for symbol in used if symbol in owner} - {name}
        for name, used in uses.items()
    }


def reachable(graph: Graph, start: str) -> set[str]:
    found: set[str] = set()
    todo = [start]
    while todo:
        new = graph[todo.pop()] - found
        found |= new
        todo += new
    return found


def circles(graph: Graph) -> list[frozenset[str]]:
    reach = {name: reachable(graph, name) for name in graph}
    return sorted(
        {
            frozenset(other for other in reach[name] if name in reach[other])
            for name in graph
            if name in reach[name]
        },
        key=len,
    )


def main() -> int:
    nm, allowed, *objects = sys.argv[1:]
    ends = tuple(f"{name}.o" for name in allowed.split(",") if name)
    wrong = [
        circle
        for circle in circles(dependencies(nm, objects))
        if not all(name.endswith(ends) for name in circle)
    ]
    found = [" ".join(sorted(Path(name).name for name in circle)) for circle in wrong]
    sys.stdout.write("\n".join([*found, f"{len(objects)} files, {len(wrong)} circles", ""]))
    return 1 if wrong or not objects else 0


if __name__ == "__main__":
    sys.exit(main())
