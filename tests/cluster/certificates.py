"""The cluster's own certificate authority and what it signs, made with openssl."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from cluster.machine import run

_KEY = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes")


@dataclass(frozen=True)
class Signed:
    """A key and the certificate for it."""

    key: Path
    certificate: Path


@dataclass(frozen=True)
class Authority:
    """A certificate authority in a folder."""

    folder: Path

    @property
    def certificate(self) -> Path:
        return self.folder / "ca.crt"

    @property
    def _own_key(self) -> Path:
        return self.folder / "ca.key"

    def create(self) -> None:
        self.folder.mkdir(parents=True)
        self._request("ca", "/CN=aliquot-test-ca", "-x509", "-days", "30")

    def sign(self, name: str, subject: str, names: Sequence[str] = ()) -> Signed:
        """A certificate for a server of these names (`IP:1.2.3.4`, `DNS:host`), or for a client."""
        options = ["-x509", "-days", "30"]
        options += ["-CA", str(self.certificate), "-CAkey", str(self._own_key)]
        options += ["-addext", "basicConstraints=critical,CA:FALSE"]
        if names:
            options += ["-addext", f"subjectAltName={','.join(names)}"]
        return self._request(name, subject, *options)

    def key_pair(self, name: str) -> Signed:
        """A key, and itself in public."""
        pair = Signed(self.folder / f"{name}.key", self.folder / f"{name}.pub")
        curve = ["-pkeyopt", "ec_paramgen_curve:prime256v1"]
        run(["openssl", "genpkey", "-algorithm", "EC", *curve, "-out", str(pair.key)])
        run(["openssl", "pkey", "-in", str(pair.key), "-pubout", "-out", str(pair.certificate)])
        return pair

    def _request(self, name: str, subject: str, *options: str) -> Signed:
        made = Signed(self.folder / f"{name}.key", self.folder / f"{name}.crt")
        out = ["-keyout", str(made.key), "-out", str(made.certificate), "-subj", subject]
        run(["openssl", "req", *_KEY, *options, *out])
        return made
