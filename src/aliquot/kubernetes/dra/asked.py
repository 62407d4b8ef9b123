"""What the resource claims of a pod ask for, taken together. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import islice, product
from typing import TYPE_CHECKING

from aliquot.kubernetes.api.dra_parameters import InvalidClaimError
from aliquot.kubernetes.cluster.dra import node_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from aliquot.kubernetes.api.dra import ResourceClaim
    from aliquot.kubernetes.api.objects import Pod
    from aliquot.kubernetes.cluster.dra import ResourceClaims
    from aliquot.kubernetes.dra.demand import ClaimDemand, Devices, Option

MOST_OPTIONS = 64  # of several claims together
BOTH_WAYS = (
    "it asks for GPUs by resources and by resource claims, and no node offers both: ask in one way"
)


@dataclass(frozen=True, slots=True)
class PodDemand:
    """The claims of a pod that are to be allocated, and those that have GPUs of ours already.

    `node` is that of the latter. `invalid` is the reason and the message that it cannot be decided.
    """

    claims: tuple[tuple[ResourceClaim, ClaimDemand], ...] = ()
    having: tuple[ResourceClaim, ...] = ()
    node: str | None = None
    invalid: tuple[str, str] | None = None

    @property
    def is_for_gpus(self) -> bool:
        """Whether the pod asks for GPUs of ours, or has some, by its claims."""
        return bool(self.claims or self.having or self.invalid)


def asked_by(
    pod: Pod, claims: ResourceClaims, devices: Devices, *, names_resources: bool
) -> PodDemand | None:
    """What the claims of a pod ask for; None while one does not exist yet, or is being deleted.

    An allocated claim keeps its node, also if kube-scheduler allocated it. `names_resources`: the
    pod also asks by resources.
    """
    wanted, having, node = [], [], None
    for name, claim in ((one.name, one.claim) for one in claims.of_pod(pod)):
        if claim is None or claim.metadata.deletion_timestamp:
            return None
        if claim.status.allocation is not None:
            there = node_of(claim)
            if there is not None:
                node = there
                having.append(claim)
            continue
        try:
            demand = devices.demand(name, claim, claims.classes)
        except InvalidClaimError as error:
            text = f"resource claim {claim.metadata.name!r}: {error.one_line}"
            return PodDemand(invalid=(error.reason, text))
        if demand is not None:
            wanted.append((claim, demand))
    if wanted and names_resources:
        return PodDemand(invalid=("SeveralKinds", BOTH_WAYS))
    return PodDemand(tuple(wanted), tuple(having), node)


def options_of(demands: Sequence[ClaimDemand]) -> list[tuple[Option, ...]]:
    """What several claims can ask for together: an option of each."""
    return list(islice(product(*(one.options for one in demands)), MOST_OPTIONS))
