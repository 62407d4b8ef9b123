"""Lists of what there is say what there is: in docstrings, in CONTRIBUTING.md and in docs/."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from repository.files import ROOT, packages, read, texts, tracked
from repository.reference import NATIVE, every_command, pages

MODULE = re.compile(r"^- `(\w+)`:", re.MULTILINE)
GENERATED = re.compile(r"_pb2$")


def modules_of(package: Path) -> set[str]:
    """Its modules and the packages below it."""
    inside = {path.relative_to(package) for path in tracked() if path.is_relative_to(package)}
    files = {path.stem for path in inside if len(path.parts) == 1 and path.suffix == ".py"}
    folders = {path.parts[0] for path in inside if path.name == "__init__.py" and path.parts[1:]}
    return {one for one in files | folders if one[:2] != "__" and not GENERATED.search(one)}


@pytest.mark.parametrize("package", packages(), ids=str)
def test_a_packages_docstring_names_exactly_its_modules(package: Path) -> None:
    docstring = ast.get_docstring(ast.parse(read(package / "__init__.py"))) or ""
    assert sorted(MODULE.findall(docstring)) == sorted(modules_of(package))


def rooms() -> Iterator[str]:
    """The folders that CONTRIBUTING.md lists."""
    yield from (f"{one}/" for one in packages() if one != Path("src/aliquot"))
    for parent in ("native", "tests", "bench"):
        inside = {path.parts[1] for path in tracked() if path.parts[0] == parent and path.parts[2:]}
        yield from (f"{parent}/{one}/" for one in sorted(inside))
    tops = {path.parts[0] for path in tracked() if path.parts[1:]}
    yield from (f"{one}/" for one in sorted(tops - {".ci", "native", "src", "tests", "bench"}))


def test_contributing_lists_every_room() -> None:
    listed = set(re.findall(r"`([\w./]+/)`", (ROOT / "CONTRIBUTING.md").read_text("utf-8")))
    assert set(rooms()) - listed == set()
    gone = {one for one in listed if not (ROOT / one).is_dir() and not one.startswith(("/", "."))}
    assert gone == set()


@pytest.mark.parametrize("path", pages(), ids=str)
def test_pages_made_from_sources_are_up_to_date(path: Path) -> None:
    assert {"aliquot run", "aliquot simulate ways"} <= every_command().keys()
    assert read(path) == pages()[path], "run `make reference`"


def test_every_c_file_says_what_it_is_for() -> None:
    assert "|  |" not in pages()[NATIVE]


def test_every_option_of_every_command_is_in_the_docs() -> None:
    docs = "\n".join(read(p) for p in texts() if p.parts[0] == "docs" or p == Path("README.md"))
    missing = [
        f"{name} {option}"
        for name, command in every_command().items()
        for parameter in command.params
        for option in parameter.opts
        if option.startswith("--") and not re.search(rf"{re.escape(option)}(?![\w-])", docs)
    ]
    assert not missing, "\n".join(missing)


@pytest.mark.parametrize(("page", "least"), [("security", 40), ("upgrades", 10)])
def test_every_test_that_a_page_names_exists(page: str, least: int) -> None:
    """What is said to hold is shown by a test, which may have been renamed since."""
    named = set(re.findall(r"`((?:test|fuzz)_\w+)`", read(Path(f"docs/{page}.md"))))
    sources = [path for path in tracked() if path.parts[0] == "tests"]
    known = {path.stem for path in sources}
    for path in sources:
        if path.suffix == ".py":
            known |= set(re.findall(r"def (test_\w+)", read(path)))
    assert len(named) > least
    assert named - known == set()
