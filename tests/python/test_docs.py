"""The examples of docs/python.md do what the page says."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import pytest

from pool.conftest import PoolUp
from repository.files import ROOT

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from conftest import Cli
    from python.conftest import Python

BLOCK = re.compile(r"```python\n(.*?)```\n```text\n(.*?)```", re.DOTALL)
EXAMPLES = BLOCK.findall((ROOT / "docs" / "python.md").read_text("utf-8"))


@pytest.fixture
def pool(cli: Cli, cli_env: dict[str, str], aliquot_state: Path) -> Iterator[PoolUp]:
    pool = PoolUp(cli, cli_env, aliquot_state)
    pool.up()
    yield pool
    pool.clean_up()


def test_every_example_says_what_it_prints() -> None:
    page = (ROOT / "docs" / "python.md").read_text("utf-8")
    assert len(EXAMPLES) == page.count("```python\n") > 4


@pytest.mark.parametrize("number", range(len(EXAMPLES)))
def test_examples_print_what_the_page_says(
    number: int, python: Python, request: pytest.FixtureRequest
) -> None:
    program, expected = EXAMPLES[number]
    if "submit" in program:
        request.getfixturevalue("pool")
    done = python(program)
    assert done.returncode == 0, done.stderr
    assert done.stdout == expected
