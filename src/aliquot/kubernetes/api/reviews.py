"""Questions about users to the API server: whose a token is, and what that user may do.

Both are objects that are created and never stored: the answer is in the `status`.
"""

from __future__ import annotations

from typing import TypeVar

import msgspec

from aliquot.kubernetes.api.objects import ApiObject, Meta, Resource


class Token(msgspec.Struct, frozen=True, rename="camel"):
    """The token in question."""

    token: str


class ReviewedUser(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    """A user, as the API server knows the holder of a token."""

    username: str = ""
    uid: str = ""
    groups: tuple[str, ...] = ()
    extra: dict[str, tuple[str, ...]] = {}


class TokenReviewStatus(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    """Whether the token is valid, and whose it is."""

    authenticated: bool = False
    user: ReviewedUser = ReviewedUser()


class TokenReview(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    """Whose a token is."""

    spec: Token
    metadata: Meta = Meta()
    status: TokenReviewStatus = TokenReviewStatus()


class ResourceAttributes(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    """An action; without a namespace, in all namespaces."""

    verb: str
    resource: str
    group: str = ""
    namespace: str = ""


class AccessQuestion(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    """A user and an action."""

    resource_attributes: ResourceAttributes
    user: str
    uid: str = ""
    groups: tuple[str, ...] = ()
    extra: dict[str, tuple[str, ...]] = {}


class AccessStatus(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    """Whether the user may."""

    allowed: bool = False


class SubjectAccessReview(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    """Whether a user may do something."""

    spec: AccessQuestion
    metadata: Meta = Meta()
    status: AccessStatus = AccessStatus()


TOKEN_REVIEWS = Resource(
    TokenReview, "authentication.k8s.io/v1", "TokenReview", "tokenreviews", namespaced=False
)
ACCESS_REVIEWS = Resource(
    SubjectAccessReview,
    "authorization.k8s.io/v1",
    "SubjectAccessReview",
    "subjectaccessreviews",
    namespaced=False,
)

T = TypeVar("T", bound=ApiObject)


def attributes(verb: str, of: Resource[T], namespace: str = "") -> ResourceAttributes:
    """The action on a kind of object."""
    group = of.api_version.rpartition("/")[0]
    return ResourceAttributes(verb, of.plural, group, namespace)
