"""No two modules import each other, not even for types alone; what is imported late exists."""

from __future__ import annotations

import ast
import importlib
import pkgutil
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

from repository.files import packages, read, tracked


def module_name(path: Path) -> str:
    parts = path.relative_to("src").with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def imports(path: Path, names: set[str]) -> set[str]:
    """The modules among `names` that a file imports; of a package, the module that is meant."""
    found = set()
    for node in ast.walk(ast.parse(read(path))):
        if isinstance(node, ast.ImportFrom) and node.module:
            inner = {f"{node.module}.{one.name}" for one in node.names}
            found |= inner & names or {node.module}
        elif isinstance(node, ast.Import):
            found |= {one.name for one in node.names}
    return (found & names) - {module_name(path)}


def test_no_import_circle_in_src() -> None:
    assert packages()
    sources = [p for p in tracked() if p.is_relative_to("src/aliquot") and p.suffix == ".py"]
    names = {module_name(path) for path in sources}
    graph = {module_name(path): imports(path, names) for path in sources}
    assert len(graph) > 100
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        circle = " imports ".join(reversed(error.args[1]))
        raise AssertionError(circle) from None


@pytest.mark.parametrize("name", ["aliquot.devices", "aliquot.model", "aliquot.slices"])
def test_names_that_a_package_imports_late_exist(name: str) -> None:
    package = importlib.import_module(name)
    for one in package.__all__:
        assert getattr(package, one) is not None
    modules = {one.name for one in pkgutil.iter_modules(package.__path__)}
    assert not modules & set(package.__all__), "a module hides a name of its package"
