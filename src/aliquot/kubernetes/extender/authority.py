"""Certificates that the extender makes itself, from an authority in a Secret.

The chart makes the Secret empty. The first replica that finds it empty makes the authority; of two
at once the API server refuses one, which then reads the other's. From then on the authority stays,
so that nobody has to trust another: if somebody empties the Secret, the leader fills it again with
the same. So a replica that finds the Secret empty while another leads waits for that, for
`FILL_SECONDS`: a leader of an earlier version, or with certificates from elsewhere, does not.

Every replica signs its own server certificate, whose key never leaves its memory. The leader keeps
kube-scheduler's certificate in a second Secret, with the authority's, and renews it in time.
"""

from __future__ import annotations

import asyncio
import ssl
import time
from base64 import b64decode, b64encode
from binascii import Error as Base64Error
from dataclasses import dataclass
from typing import TYPE_CHECKING

import structlog

from aliquot.kubernetes.api.backoff import Backoff
from aliquot.kubernetes.api.client import ApiError
from aliquot.kubernetes.api.objects import SECRETS
from aliquot.kubernetes.extender.certificates import (
    Authority,
    InvalidCertificateError,
    KeyPair,
)
from aliquot.kubernetes.extender.serve import server_context
from aliquot.model.errors import AliquotError

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from aliquot.kubernetes.api.client import Client
    from aliquot.kubernetes.api.objects import Secret

AUTHORITY_NAME = "aliquot-extender"
CLIENT_NAME = "kube-scheduler"
CHECK_SECONDS = 20.0
FILL_SECONDS = 3 * CHECK_SECONDS  # within which a leader has filled an empty Secret
AGAIN_SECONDS = 1.0  # after a failure, and while another replica leads
CERTIFICATE, KEY, TRUSTED = "tls.crt", "tls.key", "ca.crt"  # as Secrets of kubernetes.io/tls

_log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class TlsSecrets:
    """The Secrets of the authority and of kube-scheduler, and the extender's names."""

    authority: str
    client: str
    names: tuple[str, ...]


class OwnCertificates:
    """The extender's certificates from its own authority.

    `leading`: whether this replica leads; `another_leads` asks whether another one does.
    """

    def __init__(
        self,
        client: Client,
        namespace: str,
        secrets: TlsSecrets,
        leading: Callable[[], bool],
        another_leads: Callable[[], Awaitable[bool]],
    ) -> None:
        self._client = client
        self._namespace = namespace
        self._secrets = secrets
        self._leading = leading
        self._another_leads = another_leads
        self._authority: Authority | None = None
        self._there = asyncio.Event()
        self._own: KeyPair | None = None

    @property
    def loaded(self) -> bool:
        """Whether the authority is there, so that this replica can serve."""
        return self._authority is not None

    async def wait_loaded(self) -> None:
        """Wait until the authority is there."""
        await self._there.wait()

    @property
    def authority_ends(self) -> float:
        """When the authority is valid no longer, in seconds since 1970; 0 if it is not read yet."""
        return self._authority.ends.timestamp() if self._authority else 0.0

    async def context(self) -> ssl.SSLContext:
        """How to serve, as soon as the authority is there. AliquotError if it is invalid."""
        authority = self._authority = await self._load_persistently()
        self._there.set()
        self._own = authority.sign_server(self._secrets.names)
        return server_context(self._own, authority.certificate)

    async def keep(self, context: ssl.SSLContext) -> None:
        """Renew what must be renewed, until cancelled."""
        authority = self._authority
        assert authority is not None  # noqa: S101 - `context` was awaited
        while True:
            if self._own is None or not authority.is_fresh(self._own):
                self._own = authority.sign_server(self._secrets.names)
                self._own.load_into(context)
                _log.info("made a new certificate", names=self._secrets.names)
            kept = self._leading() and await self._keep_secrets(authority)
            await asyncio.sleep(CHECK_SECONDS if kept else AGAIN_SECONDS)

    async def _load(self, patient_until: float) -> Authority | None:
        """The authority; None while a leader is expected to fill the Secret again."""
        secret = await self._read(self._secrets.authority)
        if not secret.data:
            if time.monotonic() < patient_until and await self._another_leads():
                return None
            made = Authority.create(AUTHORITY_NAME)
            await self._write(secret, made.pair)
            _log.info("made a certificate authority", secret=self._secrets.authority)
            return made
        try:
            return Authority.read(_pair_in(secret))
        except InvalidCertificateError as error:
            raise AliquotError(
                f"the certificate authority in the Secret {self._name(self._secrets.authority)}"
                f" cannot be used: {error}",
                "docs/runbook.md says how to make a new authority.",
            ) from error

    async def _keep_secrets(self, authority: Authority) -> bool:
        """See to the authority's Secret and to kube-scheduler's; whether that succeeded."""
        try:
            if await self._keep_authority(authority):
                await self._keep_client(authority)
        except ApiError as error:
            _log.warning(
                "cannot keep the certificates",
                secrets=[self._name(self._secrets.authority), self._name(self._secrets.client)],
                why=error.message,
            )
            return False
        return True

    async def _keep_authority(self, authority: Authority) -> bool:
        """Fill its Secret again if somebody has emptied it; False if it has another authority."""
        secret = await self._read(self._secrets.authority)
        if not secret.data:
            await self._write(secret, authority.pair)
            _log.warning(
                "the certificate authority was missing; wrote it again",
                secret=self._name(self._secrets.authority),
            )
        elif not authority.is_in(_pair_in(secret)):
            _log.warning(
                "another certificate authority was put in place; restart the extender to use it",
                secret=self._name(self._secrets.authority),
            )
            return False
        return True

    async def _keep_client(self, authority: Authority) -> None:
        secret = await self._read(self._secrets.client)
        trusted = _decoded(secret, TRUSTED)
        if trusted == authority.certificate and authority.is_fresh(_pair_in(secret)):
            return
        pair = authority.sign_client(CLIENT_NAME)
        await self._write(secret, pair, authority.certificate)
        _log.info("made a new certificate of kube-scheduler", secret=self._secrets.client)

    async def _load_persistently(self) -> Authority:
        backoff, patient_until = Backoff(), time.monotonic() + FILL_SECONDS
        while True:
            try:
                found = await self._load(patient_until)
                if found is not None:
                    return found
                await asyncio.sleep(AGAIN_SECONDS)
            except ApiError as error:
                if not error.conflict:
                    _log.warning(
                        "cannot read the certificate authority",
                        secret=self._name(self._secrets.authority),
                        why=error.message,
                    )
                await asyncio.sleep(backoff.wait())

    async def _read(self, name: str) -> Secret:
        return await self._client.get(SECRETS, name, self._namespace)

    async def _write(self, read: Secret, pair: KeyPair, trusted: bytes | None = None) -> None:
        """Fill a Secret; a conflict if it has changed since it was read."""
        values = {CERTIFICATE: pair.certificate, KEY: pair.key}
        if trusted is not None:
            values[TRUSTED] = trusted
        patch = {
            "metadata": {"resourceVersion": read.metadata.resource_version},
            "data": {name: b64encode(value).decode() for name, value in values.items()},
        }
        await self._client.patch(SECRETS, read.metadata.name, patch, namespace=self._namespace)

    def _name(self, name: str) -> str:
        return f"{self._namespace}/{name}"


def _pair_in(secret: Secret) -> KeyPair:
    return KeyPair(_decoded(secret, CERTIFICATE), _decoded(secret, KEY))


def _decoded(secret: Secret, name: str) -> bytes:
    try:
        return b64decode(secret.data.get(name, ""), validate=True)
    except Base64Error:
        return b""
