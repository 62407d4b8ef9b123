from __future__ import annotations

from pathlib import Path

import pytest

from aliquot.devices import Shape
from aliquot.model.errors import NoSuchGrantError
from aliquot.slices import LocalMachine, StateDirectory, find_grant
from aliquot.slices.control import Status
from support import GIB, make_grant, make_shared

H100 = Shape("h100", 1)
T4 = Shape("t4", 2)


def machine(shape: Shape | None, *names: str, directory: str = "/nowhere") -> LocalMachine:
    grants = tuple(make_grant(name, gpu0=GIB) for name in names)
    return LocalMachine(
        StateDirectory(Path(directory), shape), Status(1, (make_shared(),), grants, {})
    )


def test_a_grant_is_found_on_any_machine() -> None:
    found, grant = find_grant([machine(None, "a"), machine(H100, "b")], "b")
    assert str(found) == "simulated h100:1"
    assert grant.name == "b"


def test_a_grant_of_this_machine_comes_first() -> None:
    found, _ = find_grant([machine(H100, "a"), machine(None, "a")], "a")
    assert str(found) == "this machine"


def test_an_ambiguous_name_lists_all_machines() -> None:
    with pytest.raises(NoSuchGrantError, match="2 grants are named a") as caught:
        find_grant([machine(H100, "a"), machine(T4, "a")], "a")
    assert "simulated h100:1 (/nowhere), simulated t4:2 (/nowhere)" in caught.value.message
    assert "--simulate" in str(caught.value.hint)


def test_two_arbiters_of_this_machine_are_listed_by_folder() -> None:
    both = [machine(None, "a", directory="/run/aliquot"), machine(None, "a", directory="/tmp/mine")]
    with pytest.raises(NoSuchGrantError, match=r"\(/run/aliquot\), this machine \(/tmp/mine\)"):
        find_grant(both, "a")


def test_an_unknown_name_lists_existing_grants() -> None:
    with pytest.raises(NoSuchGrantError, match="no grant named c") as caught:
        find_grant([machine(None, "b"), machine(H100, "a")], "c")
    assert caught.value.hint == "Existing grants: a (simulated h100:1), b."
    with pytest.raises(NoSuchGrantError) as caught:
        find_grant([], "c")
    assert caught.value.hint == "There are no grants."
