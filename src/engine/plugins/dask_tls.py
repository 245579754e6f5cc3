"""A self-signed certificate for one pool; any process with its key can use the pool's Dask cluster."""

from __future__ import annotations

from dataclasses import field
from datetime import UTC, datetime, timedelta

from ...lazy_dataclass import dataclass

LIFE = timedelta(days=365)


@dataclass(frozen=True)
class Certificate:
    """A certificate and its key, both as PEM."""

    cert: str = field(repr=False)
    key: str = field(repr=False)

    @classmethod
    def new(cls) -> Certificate:
        from cryptography import x509
        from cryptography.hazmat.primitives import hashes, serialization
        from cryptography.hazmat.primitives.asymmetric import ec
        from cryptography.x509.oid import NameOID

        key = ec.generate_private_key(ec.SECP256R1())
        name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "outrider")])
        now = datetime.now(UTC)
        certificate = (
            x509.CertificateBuilder()
            .subject_name(name)
            .issuer_name(name)
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - timedelta(days=1))  # the clocks of computers differ
            .not_valid_after(now + LIFE)
            .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
            .sign(key, hashes.SHA256())
        )
        private = key.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        )
        return cls(certificate.public_bytes(serialization.Encoding.PEM).decode(), private.decode())
