"""The certificates of extender and kube-scheduler, signed by an authority of their own.

kube-scheduler reads the authority of an extender once, when it starts, and its own certificate
whenever it connects. So the authority stays for years, and what it signs is renewed when a third of
its life is left. A server's certificate does not identify a client, nor the other way round.
"""

from __future__ import annotations

import os
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from ipaddress import ip_address
from typing import TYPE_CHECKING, Self

from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

if TYPE_CHECKING:
    import ssl
    from collections.abc import Iterator, Sequence

AUTHORITY_LIFE = timedelta(days=3650)
SERVER_LIFE = timedelta(days=30)
CLIENT_LIFE = timedelta(days=90)
SKEW = timedelta(hours=1)  # by which the clock of another machine may be late


class InvalidCertificateError(ValueError):
    """A certificate or key that cannot be used; the message says why."""


@dataclass(frozen=True, slots=True)
class KeyPair:
    """A certificate and its key, both in PEM."""

    certificate: bytes
    key: bytes

    def load_into(self, context: ssl.SSLContext) -> None:
        """Make the context present it from the next connection on. Nothing is written to a disk."""
        with _in_memory(self.certificate + b"\n" + self.key) as path:
            context.load_cert_chain(path)


class Authority:
    """A certificate authority with its key."""

    def __init__(self, certificate: x509.Certificate, key: ec.EllipticCurvePrivateKey) -> None:
        self._certificate = certificate
        self._key = key

    @classmethod
    def create(cls, name: str, now: datetime | None = None) -> Self:
        """A new authority."""
        key = ec.generate_private_key(ec.SECP256R1())
        began = now or datetime.now(UTC)
        subject = _named(name)
        made = (
            _builder(subject, subject, key.public_key(), began, began + AUTHORITY_LIFE)
            .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
            .add_extension(_usage(authority=True), critical=True)
            .sign(key, hashes.SHA256())
        )
        return cls(made, key)

    @classmethod
    def read(cls, pair: KeyPair, now: datetime | None = None) -> Self:
        """An authority from PEM; InvalidCertificateError if it cannot sign."""
        certificate = _certificate(pair.certificate)
        try:
            key = serialization.load_pem_private_key(pair.key, None)
        except (ValueError, TypeError) as error:
            raise InvalidCertificateError(f"the key cannot be read: {error}") from error
        if not isinstance(key, ec.EllipticCurvePrivateKey):
            raise InvalidCertificateError("the key is not one of an elliptic curve")
        if certificate.public_key() != key.public_key():
            raise InvalidCertificateError("the key is not the certificate's")
        if not _is_authority(certificate):
            raise InvalidCertificateError("the certificate is not one of an authority")
        if certificate.not_valid_after_utc <= (now or datetime.now(UTC)):
            raise InvalidCertificateError(f"it ended on {certificate.not_valid_after_utc:%Y-%m-%d}")
        return cls(certificate, key)

    @property
    def pair(self) -> KeyPair:
        """The authority in PEM."""
        return _pair(self._certificate, self._key)

    def is_in(self, pair: KeyPair) -> bool:
        """Whether it is this authority that is written there, in whatever form of PEM."""
        try:
            certificate = _certificate(pair.certificate)
            key = serialization.load_pem_private_key(pair.key, None)
        except (ValueError, TypeError):
            return False
        return certificate == self._certificate and key.public_key() == self._key.public_key()

    @property
    def certificate(self) -> bytes:
        """Its certificate in PEM, which others trust."""
        return self.pair.certificate

    @property
    def ends(self) -> datetime:
        """When it is valid no longer."""
        return self._certificate.not_valid_after_utc

    def sign_server(self, names: Sequence[str], now: datetime | None = None) -> KeyPair:
        """A certificate for a server with these DNS names and addresses; the first is its name."""
        alternatives = x509.SubjectAlternativeName([_general_name(name) for name in names])
        return self._sign(names[0], ExtendedKeyUsageOID.SERVER_AUTH, SERVER_LIFE, now, alternatives)

    def sign_client(self, name: str, now: datetime | None = None) -> KeyPair:
        """A certificate for a client."""
        return self._sign(name, ExtendedKeyUsageOID.CLIENT_AUTH, CLIENT_LIFE, now)

    def is_fresh(self, pair: KeyPair, now: datetime | None = None) -> bool:
        """Whether it is this authority's, has its key, and needs no renewal yet."""
        try:
            certificate = _certificate(pair.certificate)
            key = serialization.load_pem_private_key(pair.key, None)
            certificate.verify_directly_issued_by(self._certificate)
        except (ValueError, TypeError, InvalidSignature):
            return False
        end = certificate.not_valid_after_utc
        left = end - (now or datetime.now(UTC))
        due = (end - certificate.not_valid_before_utc) / 3
        return certificate.public_key() == key.public_key() and left > due

    def _sign(
        self,
        name: str,
        purpose: x509.ObjectIdentifier,
        life: timedelta,
        now: datetime | None,
        alternatives: x509.SubjectAlternativeName | None = None,
    ) -> KeyPair:
        key = ec.generate_private_key(ec.SECP256R1())
        began = now or datetime.now(UTC)
        own = self._certificate.extensions.get_extension_for_class(x509.SubjectKeyIdentifier).value
        builder = (
            _builder(
                _named(name),
                self._certificate.subject,
                key.public_key(),
                began,
                min(began + life, self.ends),
            )
            .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
            .add_extension(_usage(authority=False), critical=True)
            .add_extension(x509.ExtendedKeyUsage([purpose]), critical=False)
            .add_extension(
                x509.AuthorityKeyIdentifier.from_issuer_subject_key_identifier(own), critical=False
            )
        )
        if alternatives is not None:
            builder = builder.add_extension(alternatives, critical=False)
        return _pair(builder.sign(self._key, hashes.SHA256()), key)


def _builder(
    subject: x509.Name,
    issuer: x509.Name,
    key: ec.EllipticCurvePublicKey,
    began: datetime,
    end: datetime,
) -> x509.CertificateBuilder:
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(began - SKEW)
        .not_valid_after(end)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key), critical=False)
    )


def _named(name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name[:64])])


def _general_name(name: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ip_address(name))
    except ValueError:
        return x509.DNSName(name)


def _usage(*, authority: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=True,
        key_cert_sign=authority,
        crl_sign=authority,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )


def _certificate(pem: bytes) -> x509.Certificate:
    try:
        return x509.load_pem_x509_certificate(pem)
    except ValueError as error:
        raise InvalidCertificateError(f"the certificate cannot be read: {error}") from error


def _is_authority(certificate: x509.Certificate) -> bool:
    try:
        extensions = certificate.extensions
        extensions.get_extension_for_class(x509.SubjectKeyIdentifier)
        return extensions.get_extension_for_class(x509.BasicConstraints).value.ca
    except (x509.ExtensionNotFound, ValueError):
        return False


def _pair(certificate: x509.Certificate, key: ec.EllipticCurvePrivateKey) -> KeyPair:
    encoding = serialization.Encoding.PEM
    secret = key.private_bytes(
        encoding, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    return KeyPair(certificate.public_bytes(encoding), secret)


@contextmanager
def _in_memory(content: bytes) -> Iterator[str]:
    """A file with this content, in memory: the library of TLS reads keys from files only."""
    file = os.memfd_create("certificate", os.MFD_CLOEXEC)
    try:
        os.write(file, content)
        yield f"/proc/self/fd/{file}"
    finally:
        os.close(file)
