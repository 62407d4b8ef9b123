"""Which slices may be on one GPU: labels of one user that stay apart, and grants that are alone."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from arbiter.rig import GPU, OTHER_GPU
from arbiter.test_make import USABLE
from arbiter.test_user_limits import limited, users
from arbiter.test_users import ALICE, BOB, as_user, shared
from support import GIB
from users import needs_root

if TYPE_CHECKING:
    from collections.abc import Callable

    from arbiter.rig import Arbiter, Owner

    Owners = Callable[..., Owner]

__all__ = ["limited", "shared", "users"]  # fixtures


def make(name: str, *settings: str, gpu: str = GPU) -> str:
    return " ".join((f"make name={name}", *settings, f"slice={gpu},memory={GIB}"))


def refusal(answer: dict[str, Any]) -> str:
    assert answer.get("code") == "no-capacity", answer
    return str(answer["error"])


class TestApart:
    def test_neither_joins_the_other(self, arbiter: Arbiter) -> None:
        arbiter.ask(make("train"))
        assert "has the slice train, which eval asks to be apart from" in refusal(
            arbiter.ask(make("eval", "apart=train"))
        )
        assert "grant" in arbiter.ask(make("eval", "apart=train", gpu=OTHER_GPU))
        answer = arbiter.ask(make("second", "label=train", gpu=OTHER_GPU))
        assert "has the slice eval, which asks to be apart from train" in refusal(answer)
        assert "grant" in arbiter.ask(make("other", gpu=OTHER_GPU))

    def test_a_label_may_be_apart_from_itself(self, arbiter: Arbiter) -> None:
        arbiter.ask(make("a", "label=web", "apart=x,web"))
        assert "web" in refusal(arbiter.ask(make("b", "label=web", "apart=web")))
        assert "grant" in arbiter.ask(make("c", "label=web", "apart=web", gpu=OTHER_GPU))

    def test_the_status_has_it_after_a_restart(self, arbiter: Arbiter) -> None:
        arbiter.ask(make("a", "label=web", "apart=x,web"))
        arbiter.ask(make("b", "alone=1", gpu=OTHER_GPU))
        arbiter.kill()
        arbiter.start()
        one, two = arbiter.grant("a"), arbiter.grant("b")
        assert one
        assert two
        assert (one["label"], one["apart"], one["alone"]) == ("web", ["x", "web"], False)
        assert (two["label"], two["apart"], two["alone"]) == (None, [], True)
        assert arbiter.status()["knows_neighbours"] is True
        assert "web" in refusal(arbiter.ask(make("c", "label=web")))

    @needs_root
    def test_labels_of_other_users_do_not_count(self, shared: Arbiter, owners: Owners) -> None:
        for uid, more in ((ALICE, ""), (BOB, " apart=train")):
            assert "grant" in owners(shared.state, make(f"train{more}"), uid).answer
        seen = as_user(shared, owners, ALICE, "status")["grants"]
        assert [one["apart"] for one in seen if one["owner_uid"] == BOB] == [[]]


class TestAlone:
    def test_nobody_joins_and_it_joins_nobody(self, arbiter: Arbiter) -> None:
        arbiter.ask(make("a"))
        assert "has the slice a, and b asks to be alone" in refusal(
            arbiter.ask(make("b", "alone=1"))
        )
        assert "grant" in arbiter.ask(make("b", "alone=1", gpu=OTHER_GPU))
        assert "has the slice b, which is alone on it" in refusal(
            arbiter.ask(make("c", gpu=OTHER_GPU))
        )
        assert "grant" in arbiter.ask(make("c"))

    def test_a_parked_grant_returns_only_to_a_gpu_where_it_is_alone(self, arbiter: Arbiter) -> None:
        arbiter.ask(make("a", "kept=1", "alone=1"))
        arbiter.ask("set-state name=a to=switching")
        arbiter.ask("set-state name=a to=parked")
        arbiter.ask(make("b", "kept=1"))
        answer = arbiter.ask("set-state name=a to=switching")
        assert "has the slice b, and a asks to be alone" in refusal(answer)
        arbiter.ask("end name=b")
        assert "error" not in arbiter.ask("set-state name=a to=switching")

    @needs_root
    def test_it_holds_for_all_users_and_names_no_stranger(
        self, shared: Arbiter, owners: Owners
    ) -> None:
        assert "grant" in owners(shared.state, make("secret", "alone=1"), ALICE).answer
        answer = as_user(shared, owners, BOB, make("mine"))
        assert "has the slice another user's, which is alone on it" in refusal(answer)
        assert [one["alone"] for one in as_user(shared, owners, BOB, "status")["grants"]] == [True]

    @needs_root
    def test_it_counts_as_whole_gpus_in_the_limits_of_a_user(
        self, limited: Arbiter, owners: Owners
    ) -> None:
        answer = as_user(limited, owners, BOB, make("a", "alone=1"))
        assert answer["code"] == "user-limit"
        assert f"{USABLE >> 20} MiB more requested" in answer["error"]
