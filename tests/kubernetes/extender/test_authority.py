"""The extender's own authority: one for all replicas, kept in a Secret, whoever comes first."""

from __future__ import annotations

import asyncio
import ssl
from base64 import b64decode, b64encode
from collections.abc import Callable
from datetime import UTC, datetime

import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec

from aliquot.kubernetes.api.client import Client
from aliquot.kubernetes.api.leader import Elector, LeaseTimes
from aliquot.kubernetes.extender import authority
from aliquot.kubernetes.extender.authority import OwnCertificates, TlsSecrets
from aliquot.kubernetes.extender.certificates import CLIENT_LIFE, Authority, KeyPair
from aliquot.model.errors import AliquotError
from kubernetes.fake_api import FakeApi, Json, until

READ_AUTHORITY = ("GET", "/api/v1/namespaces/ns/secrets/ca")
SECRETS = TlsSecrets("ca", "client", ("extender.ns.svc",))


def with_empty_secrets() -> FakeApi:
    api = FakeApi()
    for name in (SECRETS.authority, SECRETS.client):
        api.put("secrets", {"metadata": {"name": name, "namespace": "ns"}})
    return api


def replica(client: Client, leading: Callable[[], bool]) -> OwnCertificates:
    """The certificates of a replica that may take the lease `lease`."""
    elector = Elector(
        client,
        namespace="ns",
        name="lease",
        on_change=lambda _: None,
        times=LeaseTimes(duration=2.0),
    )
    return OwnCertificates(client, "ns", SECRETS, leading, elector.sees_a_leader)


def put_lease(api: FakeApi, holder: str, renewed: int = 0) -> None:
    """The lease, as its holder renewed it."""
    spec = {"holderIdentity": holder, "renewTime": f"2026-11-15T12:00:{renewed:02}.000000Z"}
    api.put("leases", {"metadata": {"name": "lease", "namespace": "ns"}, "spec": spec})


def data_of(api: FakeApi, name: str) -> dict[str, bytes]:
    found: Json = api.objects["secrets", "ns", name].get("data", {})
    return {key: b64decode(value) for key, value in found.items()}


def pair_of(api: FakeApi, name: str) -> KeyPair:
    data = data_of(api, name)
    return KeyPair(data["tls.crt"], data["tls.key"])


def test_all_replicas_that_start_at_once_have_one_authority() -> None:
    async def play() -> None:
        api = with_empty_secrets()
        async with api.serving(), api.client() as client:
            several = [replica(client, lambda: False) for _ in range(5)]
            contexts = await asyncio.gather(*(one.context() for one in several))
            kept = data_of(api, "ca")["tls.crt"]
            trusted = ssl.PEM_cert_to_DER_cert(kept.decode())
            for context in contexts:
                assert context.get_ca_certs(binary_form=True) == [trusted]
            later = replica(client, lambda: False)
            await later.context()
            assert data_of(api, "ca")["tls.crt"] == kept

    asyncio.run(play())


def test_the_leader_keeps_the_certificate_of_kube_scheduler() -> None:
    async def play() -> None:
        api = with_empty_secrets()
        leads = False
        async with api.serving(), api.client() as client:
            one = replica(client, lambda: leads)
            keeping = asyncio.create_task(one.keep(await one.context()))
            kept = Authority.read(pair_of(api, "ca"))
            assert data_of(api, "client") == {}
            leads = True
            await until(lambda: data_of(api, "client"))
            assert kept.is_fresh(pair_of(api, "client"))
            assert data_of(api, "client")["ca.crt"] == kept.certificate
            keeping.cancel()

    asyncio.run(play())


@pytest.mark.parametrize("case", ["old", "strange", "damaged"])
def test_the_leader_replaces_a_certificate_that_is_old_or_not_its_own(case: str) -> None:
    async def play() -> None:
        api = with_empty_secrets()
        async with api.serving(), api.client() as client:
            one = replica(client, lambda: True)
            context = await one.context()
            kept = Authority.read(pair_of(api, "ca"))
            if case == "old":
                pair = kept.sign_client("k", datetime.now(UTC) - CLIENT_LIFE * 0.8)
            else:
                pair = Authority.create("other").sign_client("k")
            values = {"tls.crt": pair.certificate, "tls.key": pair.key}
            values["ca.crt"] = b"" if case == "damaged" else kept.certificate
            data = {name: b64encode(value).decode() for name, value in values.items()}
            meta = {"name": "client", "namespace": "ns"}
            api.put("secrets", {"metadata": meta, "data": data})
            keeping = asyncio.create_task(one.keep(context))
            await until(lambda: kept.is_fresh(pair_of(api, "client")))
            assert data_of(api, "client")["ca.crt"] == kept.certificate
            keeping.cancel()

    asyncio.run(play())


def test_the_authority_stays_if_somebody_empties_its_secret() -> None:
    async def play() -> None:
        api = with_empty_secrets()
        async with api.serving(), api.client() as client:
            one = replica(client, lambda: True)
            context = await one.context()
            before = pair_of(api, "ca")
            api.put("secrets", {"metadata": {"name": "ca", "namespace": "ns"}})
            keeping = asyncio.create_task(one.keep(context))
            await until(lambda: data_of(api, "ca"))
            assert pair_of(api, "ca") == before
            keeping.cancel()

    asyncio.run(play())


def test_an_authority_that_is_written_in_another_form_is_the_same() -> None:
    """As people bring it: with text around the certificate, and the key as OpenSSL writes it."""
    made = Authority.create("brought").pair
    key = serialization.load_pem_private_key(made.key, None)
    assert isinstance(key, ec.EllipticCurvePrivateKey)
    plain = serialization.NoEncryption()
    form = serialization.PrivateFormat.TraditionalOpenSSL
    written = key.private_bytes(serialization.Encoding.PEM, form, plain)
    values = {"tls.crt": b"the authority\n" + made.certificate + b"\n", "tls.key": written}

    async def play() -> None:
        api = with_empty_secrets()
        data = {name: b64encode(value).decode() for name, value in values.items()}
        api.put("secrets", {"metadata": {"name": "ca", "namespace": "ns"}, "data": data})
        async with api.serving(), api.client() as client:
            one = replica(client, lambda: True)
            keeping = asyncio.create_task(one.keep(await one.context()))
            await until(lambda: data_of(api, "client"))
            assert data_of(api, "ca") == values
            keeping.cancel()

    asyncio.run(play())


def test_a_leader_with_an_old_authority_does_not_touch_what_the_new_one_signed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(authority, "CHECK_SECONDS", 0.0)

    async def play() -> None:
        api = with_empty_secrets()
        async with api.serving(), api.client() as client:
            old = replica(client, lambda: True)
            context = await old.context()
            api.put("secrets", {"metadata": {"name": "ca", "namespace": "ns"}})
            new = replica(client, lambda: True)
            keeping = asyncio.create_task(new.keep(await new.context()))
            await until(lambda: data_of(api, "client"))
            keeping.cancel()
            signed = pair_of(api, "client")
            api.requests.clear()
            late = asyncio.create_task(old.keep(context))
            await until(lambda: api.requests.count(READ_AUTHORITY) >= 2)  # one round is over
            assert pair_of(api, "client") == signed
            assert Authority.read(pair_of(api, "ca")).is_fresh(signed)
            late.cancel()

    asyncio.run(play())


def test_a_replica_waits_for_a_leader_that_fills_an_emptied_secret() -> None:
    async def play() -> None:
        api = with_empty_secrets()
        put_lease(api, "leader")
        async with api.serving(), api.client() as client:
            loading = asyncio.create_task(replica(client, lambda: False).context())
            for renewed in range(1, 4):  # the leader is alive, and the lease changes
                api.requests.clear()
                await until(lambda: READ_AUTHORITY in api.requests)
                put_lease(api, "leader", renewed)
                assert data_of(api, "ca") == {}
            kept = Authority.create("kept")
            data = {"tls.crt": kept.pair.certificate, "tls.key": kept.pair.key}
            coded = {name: b64encode(value).decode() for name, value in data.items()}
            meta = {"name": "ca", "namespace": "ns"}
            api.put("secrets", {"metadata": meta, "data": coded})
            trusted = ssl.PEM_cert_to_DER_cert(kept.certificate.decode())
            assert (await loading).get_ca_certs(binary_form=True) == [trusted]
            assert pair_of(api, "ca") == kept.pair

    asyncio.run(play())


@pytest.mark.parametrize("leader", ["released", "dead", "without an authority"])
def test_a_replica_makes_the_authority_if_no_leader_does(
    monkeypatch: pytest.MonkeyPatch, leader: str
) -> None:
    monkeypatch.setattr(authority, "FILL_SECONDS", 60.0)

    async def play() -> None:
        api = with_empty_secrets()
        put_lease(api, "" if leader == "released" else "leader")
        async with api.serving(), api.client() as client:
            if leader == "without an authority":
                monkeypatch.setattr(authority, "FILL_SECONDS", 0.0)
            async with asyncio.timeout(20):
                await replica(client, lambda: False).context()
            assert data_of(api, "ca")

    asyncio.run(play())


def test_an_authority_that_cannot_be_used_is_named() -> None:
    async def play() -> None:
        api = with_empty_secrets()
        meta = {"name": "ca", "namespace": "ns"}
        api.put("secrets", {"metadata": meta, "data": {"tls.crt": "bm9uc2Vuc2U="}})
        async with api.serving(), api.client() as client:
            one = replica(client, lambda: True)
            with pytest.raises(AliquotError, match="Secret ns/ca cannot be used"):
                await one.context()

    asyncio.run(play())


def test_an_api_server_that_fails_delays_the_authority_and_no_more() -> None:
    async def play() -> None:
        api = with_empty_secrets()
        failures = iter([500, 500, 403])
        api.faults.refuse = lambda _method, _path: next(failures, None)
        async with api.serving(), api.client() as client:
            await replica(client, lambda: False).context()
            assert data_of(api, "ca")

    asyncio.run(play())
