"""Packages whose names are imported when they are used first.

A command starts in the time that its imports take. So a package that gives names of its modules
imports no module itself: `from aliquot.slices import control` costs what `control` costs.

    if TYPE_CHECKING:
        from aliquot.slices.state_directory import locate, prepare

    __getattr__ = lazy.names_of(__name__, {"state_directory": "locate prepare"})
"""

from __future__ import annotations

import sys
from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping


def names_of(package: str, modules: Mapping[str, str]) -> Callable[[str], object]:
    """The `__getattr__` of a package; `modules` has the names that each of its modules gives."""
    places = {name: module for module, names in modules.items() for name in names.split()}

    def find(name: str) -> object:
        if name not in places:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        found = getattr(import_module(f"{package}.{places[name]}"), name)
        setattr(sys.modules[package], name, found)
        return found

    return find
