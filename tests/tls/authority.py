"""Make certificates for tests, by an authority of their own."""

from __future__ import annotations

import datetime as dt
import shutil
from pathlib import Path

import trustme
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, load_pem_private_key

HOST = "127.0.0.1"
DAY = dt.timedelta(days=1)


class Authority:
    """A CA with a folder for its own certificate (`ca`) and those that it signs."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(exist_ok=True)
        self._ca = trustme.CA()
        self._folder = folder
        self.ca = folder / "ca.pem"
        self._ca.cert_pem.write_to_path(self.ca)

    def issue(
        self, name: str, *hosts: str, days: float = 10, common_name: str | None = None
    ) -> tuple[Path, Path]:
        """Make the files `NAME.pem` and `NAME.key`, and replace former ones. The certificate
        expires in `days`.
        """
        now = dt.datetime.now(dt.UTC)
        issued = self._ca.issue_cert(
            *(hosts or (HOST,)),
            not_before=now - 30 * DAY,
            not_after=now + days * DAY,
            common_name=common_name,
        )
        certificate, key = self._folder / f"{name}.pem", self._folder / f"{name}.key"
        for path, blobs in ((certificate, issued.cert_chain_pems), (key, [issued.private_key_pem])):
            path.write_bytes(b"".join(blob.bytes() for blob in blobs))
        return certificate, key

    def revoke(self, *certificates: Path, days: float = 10) -> Path:
        """Write the list of the revoked certificates, `crl.pem`, in place of the former one. It
        expires in `days`.
        """
        now, path = dt.datetime.now(dt.UTC), self._folder / "crl.pem"
        issuer, key = (
            x509.load_pem_x509_certificate(self.ca.read_bytes()),
            load_pem_private_key(self._ca.private_key_pem.bytes(), None),
        )
        assert isinstance(key, EllipticCurvePrivateKey)
        made = x509.CertificateRevocationListBuilder(
            issuer.subject, now - 30 * DAY, now + days * DAY
        )
        for each in certificates:
            number = x509.load_pem_x509_certificate(each.read_bytes()).serial_number
            made = made.add_revoked_certificate(
                x509.RevokedCertificateBuilder(number, now - DAY).build()
            )
        path.write_bytes(made.sign(key, hashes.SHA256()).public_bytes(Encoding.PEM))
        return path

    def settings(
        self, name: str, *hosts: str, days: float = 10, is_mutual: bool = False
    ) -> dict[str, object]:
        """Return the settings of a broker with a new certificate, whose common name is `name`."""
        certificate, key = self.issue(name, *hosts, days=days, common_name=name)
        return {
            "tls_certificate": certificate,
            "tls_key": key,
            "tls_ca": self.ca,
            "tls_require_client_certificate": is_mutual,
        }

    def process_settings(self, name: str, *hosts: str) -> dict[str, str]:
        """Return the same settings as texts, for a broker in a process."""
        return {setting: str(value) for setting, value in self.settings(name, *hosts).items()}


def replaced(files: tuple[Path, Path], by: tuple[Path, Path]) -> None:
    """Replace a certificate and its key, as a program that renews them does."""
    for old, new in zip(files, by, strict=True):
        shutil.move(new, old)
