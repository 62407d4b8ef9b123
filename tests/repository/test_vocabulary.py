"""The words that docs/glossary.md replaced do not come back.

`ANYWHERE` are words that have no other meaning here: they are looked for in every text, also inside
identifiers. `IN_NAMES` are looked for in the names of files, classes and functions, and
`IN_FILES_AND_CLASSES`, which English needs, only in the names of files and classes.
"""

from __future__ import annotations

import ast
import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from repository.files import read, texts, tracked

ANYWHERE = (
    "books",
    "card",
    "cards",
    "claims",
    "deed",
    "deeds",
    "holdings",
    "roster",
    "tally",
    "teller",
)
PHRASES = ("makes no sense", "make no sense", "made no sense", "who is on their way", "of whom")
IN_NAMES = (
    *ANYWHERE,
    "book",
    "claim",
    "door",
    "doors",
    "keeper",
    "leaver",
    "leavers",
    "picture",
    "promise",
    "promised",
    "promises",
    "sick",
)
IN_FILES_AND_CLASSES = (*IN_NAMES, "aside", "beside", "ground", "known", "sight", "whose")

# Where another project's words are quoted, or the old words are the subject.
EXEMPT = {
    Path("CHANGELOG.md"): "names the words that changed",
    Path("docs/glossary.md"): "names the words that are not used",
    Path("tests/repository/test_vocabulary.py"): "has the list",
    Path("LICENSE"): "a licence's own text",
}
FOREIGN = re.compile(
    r"ResourceClaims?|PersistentVolumeClaims?|volumeClaims?|DeviceClaims?|resource[ _-]claims?"
    r"|volume[ _-]claims?",
    re.IGNORECASE,
)
PART = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+")  # of an identifier: snake_case or CamelCase
C_FUNCTION = re.compile(r"^[a-z][\w \*]*?\b(\w+)\([^;]*$", re.MULTILINE)

# Files about Kubernetes' resource claims, where "claim" means what it means there.
ABOUT_RESOURCE_CLAIMS = re.compile(r"(^|[/_])dra([_./]|$)")
CLAIM = {"claim", "claims"}


def parts(name: str) -> set[str]:
    return {part.lower() for part in PART.findall(name)}


def words_against(path: Path, words: tuple[str, ...]) -> tuple[str, ...]:
    """Those of the words that this file may not use."""
    about_claims = ABOUT_RESOURCE_CLAIMS.search(str(path)) is not None
    return tuple(word for word in words if not (about_claims and word in CLAIM))


def replaced_names(path: Path) -> Iterator[str]:
    """The classes and functions of a source file that have a replaced word in their name."""
    in_names = words_against(path, IN_NAMES)
    in_classes = words_against(path, IN_FILES_AND_CLASSES)
    if path.suffix in {".c", ".h"}:
        yield from (name for name in C_FUNCTION.findall(read(path)) if has_word(name, in_names))
    if path.suffix != ".py":
        return
    for node in ast.walk(ast.parse(read(path))):
        if isinstance(node, ast.ClassDef) and has_word(node.name, in_classes):
            yield node.name
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield from (name for name in (node.name,) if has_word(name, in_names))


def has_word(name: str, words: tuple[str, ...]) -> bool:
    return not parts(FOREIGN.sub("", name)).isdisjoint(words)


def found_in(path: Path) -> Iterator[str]:
    anywhere = words_against(path, ANYWHERE)
    for number, line in enumerate(read(path).splitlines(), 1):
        words = parts(FOREIGN.sub("", line))
        for word in sorted(words.intersection(anywhere)):
            yield f"{path}:{number}: {word}: {line.strip()[:80]}"
        for phrase in PHRASES:
            if phrase in line.lower():
                yield f"{path}:{number}: {phrase}: {line.strip()[:80]}"


def is_ours(path: Path) -> bool:
    return path not in EXEMPT and path.name not in {"go.sum", "uv.lock"}


def test_no_file_is_named_by_a_replaced_word() -> None:
    every = [path for path in tracked() if is_ours(path)]
    wrong = [str(one) for one in every if has_word(str(one), IN_FILES_AND_CLASSES)]
    assert not wrong


def test_no_class_or_function_is_named_by_a_replaced_word() -> None:
    sources = [path for path in texts() if is_ours(path)]
    wrong = [f"{path}: {name}" for path in sources for name in replaced_names(path)]
    assert not wrong, "\n".join(wrong)


def test_replaced_words_are_in_no_text() -> None:
    wrong = [line for path in texts() if is_ours(path) for line in found_in(path)]
    assert not wrong, f"{len(wrong)} lines\n" + "\n".join(wrong)


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("GangBooks", {"gang", "books"}),
        ("_take_claims", {"take", "claims"}),
        ("GPUCard", {"gpu", "card"}),
        ("discard", {"discard"}),
    ],
)
def test_identifiers_are_split_into_words(name: str, expected: set[str]) -> None:
    assert parts(name) == expected


def test_no_two_classes_share_a_name() -> None:
    found = Counter(
        node.name
        for path in texts()
        if path.is_relative_to("src") and path.suffix == ".py"
        for node in ast.parse(read(path)).body
        if isinstance(node, ast.ClassDef) and not node.name.startswith("_")
    )
    assert not [name for name, count in found.items() if count > 1]
