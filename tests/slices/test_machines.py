from __future__ import annotations

import os
from pathlib import Path

import pytest

from aliquot.devices import Shape
from aliquot.model.errors import InvalidValueError, NoSuchGrantError
from aliquot.slices import (
    LocalMachine,
    StateDirectory,
    check_address,
    control,
    find_grant,
    local_machines,
    state_directory,
)
from aliquot.slices.arbiter_status import Status
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


def test_silence_of_the_only_arbiter_is_not_reported_as_no_arbiter(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    frozen, alive = StateDirectory(Path("/frozen"), None), StateDirectory(Path("/alive"), H100)
    directories = [frozen]

    def status(directory: Path, _timeout: float | None) -> Status:
        if directory == frozen.directory:
            raise control.SilentArbiterError("the arbiter in /frozen runs and did not answer")
        return Status(1, (make_shared(),), (), {})

    monkeypatch.setattr(state_directory, "all_directories", lambda: iter(directories))
    monkeypatch.setattr(control, "status", status)
    with pytest.raises(control.SilentArbiterError, match="/frozen"):
        local_machines()
    directories.append(alive)
    assert [one.state for one in local_machines()] == [alive]


class TestUsers:
    """Root names grants of other users `USER:NAME`."""

    @pytest.mark.parametrize(
        ("text", "address"), [("a", "a"), ("4001:a", "4001:a"), ("daemon:a", "1:a")]
    )
    def test_addresses(self, text: str, address: str) -> None:
        assert check_address(text) == address

    def test_the_own_user_needs_no_number(self) -> None:
        assert check_address(f"{os.geteuid()}:a") == "a"

    def test_an_unknown_user_is_named(self) -> None:
        with pytest.raises(InvalidValueError, match="no user 'no-such-user'"):
            check_address("no-such-user:a")

    @pytest.mark.parametrize("text", ["4001:", "4001:-", ":", "-"])
    def test_an_invalid_name_is_refused(self, text: str) -> None:
        with pytest.raises(InvalidValueError, match="not a valid name"):
            check_address(text)

    def test_an_own_grant_comes_before_those_of_others(self) -> None:
        _, grant = find_grant([machine(None, "4001:a", "a")], "a")
        assert grant.name == "a"

    def test_a_plain_name_finds_the_only_grant_of_that_name(self) -> None:
        _, grant = find_grant([machine(None, "4001:a", "4001:b")], "a")
        assert grant.name == "4001:a"

    def test_a_name_that_several_users_have_is_ambiguous(self) -> None:
        with pytest.raises(NoSuchGrantError, match="2 users have") as caught:
            find_grant([machine(None, "4001:a", "4002:a")], "a")
        assert "4001:a, 4002:a" in str(caught.value)

    def test_a_user_is_named_as_people_do(self) -> None:
        with pytest.raises(NoSuchGrantError) as caught:
            find_grant([machine(None, "1:b", "4001:b")], "1:a")
        assert str(caught.value) == (
            "there is no grant named daemon:a\n  Existing grants: 4001:b, daemon:b."
        )

    def test_hidden_grants_are_not_found_or_named(self) -> None:
        with pytest.raises(NoSuchGrantError) as caught:
            find_grant([machine(None, "4001:-", "b")], "a")
        assert "4001" not in str(caught.value)
