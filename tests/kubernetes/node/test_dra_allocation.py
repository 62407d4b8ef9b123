"""From what a claim got to its grant, and what of it is refused."""

from __future__ import annotations

import random
from typing import Any

import msgspec
import pytest

import support
from aliquot.kubernetes.api.dra import ResourceClaim
from aliquot.kubernetes.api.dra_parameters import DEEPEST, LONGEST, InvalidClaimError
from aliquot.kubernetes.node.dra.allocation import grant_of
from aliquot.kubernetes.node.grants.allocations import HostGpu
from aliquot.kubernetes.node.grants.grant import ContainerGrant
from aliquot.model import Policy, Priority
from kubernetes.node.dra_objects import NODE, claim, parameters, result
from support import GIB

A, B = support.uuid_of(0), support.uuid_of(1)
GPUS = {uuid: HostGpu(uuid, index, 80 * GIB) for index, uuid in enumerate((A, B))}


def read(one: dict[str, Any]) -> ResourceClaim:
    """As the API client reads it."""
    return msgspec.json.decode(msgspec.json.encode(one), type=ResourceClaim)


def grant(one: dict[str, Any]) -> ContainerGrant:
    return grant_of(read(one), NODE, GPUS, 2)


def refusal(one: dict[str, Any]) -> str:
    with pytest.raises(InvalidClaimError) as error:
        grant(one)
    return error.value.message


def sizes(one: ContainerGrant) -> list[tuple[str, int, int]]:
    return [(part.gpu, part.memory, part.reserved) for part in one.allocated]


def test_a_slice_has_what_the_claim_consumes() -> None:
    found = grant(claim("c", result(A, memory="10Gi", compute="30")))
    assert sizes(found) == [(A, 10 * GIB, 30)]
    assert (found.kind, found.current.compute, found.current.memory) == ("sliced", 30, (10 * GIB,))
    assert found.cdi
    assert found.confirmed


def test_capacities_may_be_written_with_the_domain_of_the_driver() -> None:
    one = result(A)
    one["consumedCapacity"] = {"aliquot.io/memory": "1Gi", "aliquot.io/compute": "7"}
    assert sizes(grant(claim("c", one))) == [(A, GIB, 7)]


def test_capacities_may_have_an_exponent_as_their_author_wrote_them() -> None:
    found = grant(claim("c", result(A, memory="268435456e1", compute="1e1")))
    assert sizes(found) == [(A, 2684354560, 10)]


def test_whole_and_shared_gpus_have_what_their_kind_gives() -> None:
    assert sizes(grant(claim("c", result(A, "whole"), result(B, "whole")))) == [
        (A, 80 * GIB, 100),
        (B, 80 * GIB, 100),
    ]
    assert sizes(grant(claim("c", result(A, "shared", 1)))) == [(A, 40 * GIB, 0)]


def test_devices_of_one_gpu_are_one_slice_of_their_sum() -> None:
    parts = [result(A, memory="1Gi", compute="10", request=name) for name in ("a", "b")]
    found = grant(claim("c", *parts))
    assert sizes(found) == [(A, 2 * GIB, 20)]
    assert found.claim
    assert [one.request for one in found.claim.devices] == ["a", "b"]
    assert sizes(grant(claim("c", result(A, "shared", 0), result(A, "shared", 1)))) == [
        (A, 80 * GIB, 0)
    ]


def test_an_alternative_counts_for_its_main_request() -> None:
    found = grant(claim("c", result(A, request="gpu/small")))
    assert found.claim
    assert found.claim.devices[0].request == "gpu"


def test_devices_of_other_drivers_are_not_ours() -> None:
    other = result(B, "whole") | {"driver": "net.example", "pool": "elsewhere"}
    assert sizes(grant(claim("c", other, result(A, "whole")))) == [(A, 80 * GIB, 100)]


def test_the_claims_parameters_come_over_those_of_its_class() -> None:
    config = (
        parameters(of_class=True, policy="hard", priority="latency"),
        parameters("gpu", priority="background"),
        parameters("another", priority="normal"),
    )
    found = grant(claim("c", result(A, compute="20"), config=config))
    assert (found.current.policy, found.current.priority) == (Policy.HARD, Priority.BACKGROUND)
    assert sizes(found) == [(A, 10 * GIB, 0)]


def test_parameters_of_other_drivers_are_ignored() -> None:
    foreign = {"opaque": {"driver": "net.example", "parameters": {"policy": "nonsense"}}}
    assert grant(claim("c", result(A), config=(foreign,))).current.policy is Policy.ELASTIC


@pytest.mark.parametrize(
    "written",
    [
        {"policy": "strict"},
        {"priority": 3},
        {"memory": "10Gi"},
        {"kind": "Other"},
        {"apiVersion": "aliquot.io/v2"},
        {"policy": ["hard"]},
    ],
)
def test_invalid_parameters_are_refused(written: dict[str, Any]) -> None:
    assert "parameters are invalid" in refusal(
        claim("c", result(A), config=(parameters(**written),))
    )


def test_parameters_that_are_nested_too_deep_or_too_long_are_refused() -> None:
    deep: Any = []
    for _ in range(DEEPEST):
        deep = [deep]
    for value in (deep, "x" * LONGEST):
        config = (parameters(policy=value),)
        assert "too long or nested too deep" in refusal(claim("c", result(A), config=config))


def test_the_policy_hard_needs_a_share_to_enforce() -> None:
    config = (parameters(policy="hard"),)
    assert "no share of compute" in refusal(claim("c", result(A), config=config))
    assert "no share of compute" in refusal(claim("c", result(A, "shared"), config=config))
    assert grant(claim("c", result(A, compute="1"), config=config)).current.policy is Policy.HARD


@pytest.mark.parametrize(
    ("results", "expected"),
    [
        ([], "no devices of this driver"),
        ([result(A, "whole"), result(B)], "GPUs of one kind"),
        ([result(A) | {"pool": "n2"}], "on node n2"),
        ([result(A) | {"adminAccess": True}], "admin access"),
        ([result(support.uuid_of(9))], "no device"),
        ([result(A, compute="10"), result(B, compute="20")], "different shares of compute"),
        ([result(A, memory="0")], "no memory"),
        ([result(A, memory="81Gi")], "more than its GPU has"),
        ([result(A, memory="ten")], "no quantity"),
        ([result(A, compute="500m")], "not whole"),
    ],
)
def test_what_no_grant_can_be_made_of_is_refused(
    results: list[dict[str, Any]], expected: str
) -> None:
    assert expected in refusal(claim("c", *results))


def test_requests_with_different_parameters_are_refused() -> None:
    config = (parameters("a", priority="latency"),)
    parts = [result(gpu, request=name) for gpu, name in ((A, "a"), (B, "b"))]
    assert "different parameters" in refusal(claim("c", *parts, config=config))


def test_a_claim_without_an_allocation_is_refused() -> None:
    one = claim("c", result(A))
    del one["status"]["allocation"]
    assert "no devices" in refusal(one)


def test_whatever_is_written_gives_a_valid_grant_or_a_refusal() -> None:
    chance = random.Random(1)  # noqa: S311 - chance, not secrets

    def any_result() -> dict[str, Any]:
        one = result(
            chance.choice((A, B, support.uuid_of(5))),
            chance.choice(("whole", "shared", "sliced", "sliced", "sliced")),
            chance.choice((0, 1)),
            memory=chance.choice(("256Mi", "10Gi", "80Gi", "-1", "1e3", "", "0.5")),
            compute=chance.choice(("0", "30", "100", "101", "x")),
            request=chance.choice(("a", "b", "a/one", "")),
        )
        return one | chance.choice(({}, {}, {"pool": "n2"}, {"driver": "other"}))

    made = 0
    for number in range(2000):
        config = tuple(
            parameters(
                *chance.choice(((), ("a",), ("b",))),
                of_class=bool(number % 2),
                **chance.choice(({}, {"policy": "hard"}, {"priority": "background"}, {"x": 1})),
            )
            for _ in range(chance.randrange(3))
        )
        one = claim("c", *(any_result() for _ in range(chance.randrange(4))), config=config)
        try:
            found = grant(one)
        except InvalidClaimError as error:
            assert error.message
            continue
        made += 1
        assert len({part.gpu for part in found.allocated}) == len(found.allocated) > 0
        for part in found.allocated:
            assert 0 < part.memory <= GPUS[part.gpu].memory
            assert 0 <= part.reserved <= 100
    assert made > 100
