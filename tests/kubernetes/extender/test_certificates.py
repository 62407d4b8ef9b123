"""Certificates: made once, renewed in time, and believed only by whom they are for."""

from __future__ import annotations

import asyncio
import ssl
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from aliquot.kubernetes.extender.certificates import (
    AUTHORITY_LIFE,
    CLIENT_LIFE,
    SERVER_LIFE,
    Authority,
    InvalidCertificateError,
    KeyPair,
)
from aliquot.kubernetes.extender.serve import TlsFiles, server_context
from aliquot.model.errors import AliquotError

NAME = "extender.ns.svc"
NOW = datetime.now(UTC)


@pytest.fixture(scope="module")
def authority() -> Authority:
    return Authority.create("test")


def test_an_authority_reads_back_what_it_wrote(authority: Authority) -> None:
    again = Authority.read(authority.pair)
    assert again.certificate == authority.certificate
    assert again.is_fresh(authority.sign_client("a"))


def test_a_certificate_is_renewed_when_a_third_of_its_life_is_left(authority: Authority) -> None:
    server = authority.sign_server([NAME], NOW)
    assert authority.is_fresh(server, NOW + SERVER_LIFE * 0.6)
    assert not authority.is_fresh(server, NOW + SERVER_LIFE * 0.7)
    client = authority.sign_client("c", NOW)
    assert authority.is_fresh(client, NOW + CLIENT_LIFE * 0.6)
    assert not authority.is_fresh(client, NOW + CLIENT_LIFE * 0.7)


def test_what_another_authority_signed_is_not_fresh(authority: Authority) -> None:
    assert not authority.is_fresh(Authority.create("test").sign_client("a"))


@pytest.mark.parametrize("part", ["certificate", "key"])
def test_a_damaged_certificate_is_not_fresh(authority: Authority, part: str) -> None:
    pair = authority.sign_client("a")
    good = {"certificate": pair.certificate, "key": pair.key}
    for bad in (b"", b"nonsense", good[part][:80]):
        assert not authority.is_fresh(KeyPair(**{**good, part: bad}))
    assert not authority.is_fresh(KeyPair(pair.certificate, authority.sign_client("a").key))


def test_a_certificate_does_not_outlive_its_authority(authority: Authority) -> None:
    late = authority.ends - timedelta(days=1)
    pair = authority.sign_server([NAME], late)
    assert not authority.is_fresh(pair, authority.ends)


@pytest.mark.parametrize(
    ("damage", "said"),
    [
        (lambda pair: KeyPair(b"nonsense", pair.key), "the certificate cannot be read"),
        (lambda pair: KeyPair(pair.certificate, b""), "the key cannot be read"),
        (lambda pair: KeyPair(pair.certificate, Authority.create("b").pair.key), "not the cert"),
    ],
)
def test_an_authority_that_cannot_sign_is_refused(
    authority: Authority, damage: object, said: str
) -> None:
    with pytest.raises(InvalidCertificateError, match=said):
        Authority.read(damage(authority.pair))  # type: ignore[operator]


def test_an_authority_that_has_ended_is_refused() -> None:
    old = Authority.create("test", NOW - AUTHORITY_LIFE - timedelta(days=1))
    with pytest.raises(InvalidCertificateError, match="it ended on"):
        Authority.read(old.pair)


def test_what_an_authority_signed_is_no_authority(authority: Authority) -> None:
    with pytest.raises(InvalidCertificateError, match="not one of an authority"):
        Authority.read(authority.sign_client("a"))


# --- who gets through -----------------------------------------------------------------------------


def shake(server: ssl.SSLContext, client: ssl.SSLContext, name: str = NAME) -> None:
    """A handshake in memory; the error of whichever side refuses, the server's first."""
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    theirs = server.wrap_bio(to_server, to_client, server_side=True)
    ours = client.wrap_bio(to_client, to_server, server_hostname=name)
    waiting: list[ssl.SSLObject] = [ours, theirs]
    for _ in range(10):
        for one in list(waiting):
            try:
                one.do_handshake()
                waiting.remove(one)
            except ssl.SSLWantReadError:
                pass
        if not waiting:
            return
    raise AssertionError("the handshake does not end")


def client_context(authority: Authority, own: KeyPair | None) -> ssl.SSLContext:
    context = ssl.create_default_context(cadata=authority.certificate.decode())
    if own is not None:
        own.load_into(context)
    return context


def test_extender_and_kube_scheduler_believe_each_other(authority: Authority) -> None:
    server = server_context(authority.sign_server([NAME, "10.0.0.7"]), authority.certificate)
    client = client_context(authority, authority.sign_client("kube-scheduler"))
    shake(server, client)
    shake(server, client, "10.0.0.7")
    with pytest.raises(ssl.SSLCertVerificationError, match="mismatch"):
        shake(server, client, "another.ns.svc")


def test_a_caller_without_a_certificate_of_the_authority_is_refused(authority: Authority) -> None:
    server = server_context(authority.sign_server([NAME]), authority.certificate)
    with pytest.raises(ssl.SSLError, match="PEER_DID_NOT_RETURN_A_CERTIFICATE"):
        shake(server, client_context(authority, None))
    stranger = Authority.create("test").sign_client("kube-scheduler")
    with pytest.raises(ssl.SSLCertVerificationError):
        shake(server, client_context(authority, stranger))


def test_a_servers_certificate_identifies_no_caller(authority: Authority) -> None:
    server = server_context(authority.sign_server([NAME]), authority.certificate)
    with pytest.raises(ssl.SSLCertVerificationError, match="purpose"):
        shake(server, client_context(authority, authority.sign_server([NAME])))


def test_a_caller_whose_certificate_has_ended_is_refused(authority: Authority) -> None:
    server = server_context(authority.sign_server([NAME]), authority.certificate)
    old = authority.sign_client("kube-scheduler", NOW - CLIENT_LIFE - timedelta(days=1))
    with pytest.raises(ssl.SSLCertVerificationError, match="expired"):
        shake(server, client_context(authority, old))


def test_a_renewed_certificate_is_presented_at_the_next_connection(authority: Authority) -> None:
    server = server_context(authority.sign_server(["old"]), authority.certificate)
    client = client_context(authority, authority.sign_client("kube-scheduler"))
    with pytest.raises(ssl.SSLCertVerificationError, match="mismatch"):
        shake(server, client)
    authority.sign_server([NAME]).load_into(server)
    shake(server, client)


def test_certificate_files_that_cannot_be_read_are_named(tmp_path: Path) -> None:
    files = TlsFiles(tmp_path / "certificate", tmp_path / "key")
    with pytest.raises(AliquotError, match=r"/certificate, key .*/key: No such file"):
        asyncio.run(files.context())
