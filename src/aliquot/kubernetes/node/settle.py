"""Putting names right by what the kubelet tells of one pod. Pure.

An Allocate call does not say whose it is, so what it was answered with stands in the books under
the likeliest name. Here the kubelet has told which ids each container of a pod has. What was given
for just these ids is then that container's, and what stood under its name gets the other's, which
is likely, until the kubelet tells of that one too. Only names change places: the container keeps
the cards and the grant that it was told of. Its share of compute becomes what it asked for itself.

The kubelet does not tell of init containers. Those whose ids it has given on are known by that; of
the others, what was given just before the pod's first container is theirs, where it has their size.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import msgspec

from aliquot.kubernetes.node.match import carrier

if TYPE_CHECKING:
    from collections.abc import Sequence

    from aliquot.kubernetes.api.requests import ContainerRequest
    from aliquot.kubernetes.node.books import Books
    from aliquot.kubernetes.node.held import Held, Owner

Units = Mapping[str, tuple[str, ...]]
"""By resource: ids."""

Told = Mapping[str, Units]
"""By container."""


def settle(books: Books, pod: Owner, told: Told, requests: Sequence[ContainerRequest]) -> int:
    """Write in what the kubelet tells of a pod; how many stood under another name."""
    asked = {one.container: one for one in requests}
    wrong = 0
    found: list[str] = []
    for container, every in told.items():
        units = {name: tuple(sorted(ids)) for name, ids in every.items() if name in books.offers}
        held = _given_for(books, units)
        if held is None:
            continue
        owner = msgspec.structs.replace(pod, container=container)
        wrong += held.owner != owner
        _claim(books, held, owner)
        _set_units(books, held.name, units)
        _set_share(books, held.name, asked.get(container))
        found.append(held.name)
    if found:
        _name_inits(books, pod, found, [one for one in requests if one.init])
    return wrong


def rename(books: Books, pod: Owner, name: str) -> None:
    """What a grant holds is that pod's, by the word of its processes."""
    held = books.held[name]
    owner = msgspec.structs.replace(pod, container=held.owner.container)
    _claim(books, held, owner)


def _given_for(books: Books, units: Units) -> Held | None:
    """What was given for just these ids."""
    if not units:
        return None
    roles = {name: books.offers[name].role for name in units}
    brings = carrier({name: len(ids) for name, ids in units.items()}, roles)
    return books.find(brings, units[brings])


def _claim(books: Books, held: Held, owner: Owner) -> None:
    """Give a name to what is held; what had that name gets the other's."""
    others = [one for one in books.held.values() if one.owner == owner and one.name != held.name]
    for one in others[:1]:
        books.change(msgspec.structs.replace(one, owner=held.owner, sure=False))
    now = books.held[held.name]
    books.change(msgspec.structs.replace(now, owner=owner, sure=True))


def _set_units(books: Books, name: str, units: Units) -> None:
    """What the kubelet says it has; others do not have it, but those that it was given on from."""
    books.change(msgspec.structs.replace(books.held[name], units=dict(units)))
    held = books.held[name]
    for resource, ids in units.items():
        books.strip(resource, ids, but=[held, *books.not_beside(held)])


def _set_share(books: Books, name: str, request: ContainerRequest | None) -> None:
    held = books.held[name]
    if request is None or request.kind != held.kind or held.joined:
        return
    if held.asked.compute == request.compute:
        return
    asked = msgspec.structs.replace(held.asked, compute=request.compute)
    parts = tuple(msgspec.structs.replace(one, reserved=request.reserved) for one in held.parts)
    now = msgspec.structs.replace(held, asked=asked, now=asked, parts=parts)
    books.rewrite([now if one.name == name else one for one in books.held.values()])


def _name_inits(
    books: Books, pod: Owner, found: Sequence[str], inits: Sequence[ContainerRequest]
) -> None:
    names = [one.container for one in inits]
    mine = [books.held[name] for name in found]
    before = dict.fromkeys(name for held in mine for name in held.after)
    given_on = [books.held[name] for name in before if name in books.held]
    for held in given_on:
        known = held.owner.uid == pod.uid and held.owner.container in names
        container = held.owner.container if known else next(iter(names), "")
        _claim(books, held, msgspec.structs.replace(pod, container=container))
    resources = {name for held in mine for name in held.units}
    order = list(books.held)
    at = min(order.index(name) for name in (*found, *(held.name for held in given_on)))
    for request in reversed(inits):
        if resources.intersection(dict(request.units)):
            continue  # its ids were given on
        at -= 1
        held = books.held[order[at]]
        counts = {name: len(ids) for name, ids in held.units.items()}
        if at < 0 or held.sure or counts != dict(request.units):
            return
        _claim(books, held, msgspec.structs.replace(pod, container=request.container))
