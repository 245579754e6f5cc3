"""The key pair with which all nodes of a pool authenticate each other. It is made here, and kept in memory only."""

from __future__ import annotations

import datetime as dt

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from ..wire import messages as wire

# The certificate is valid for any date, as clocks of nodes may be wrong. Its key exists only as long as the pool.
_FROM = dt.datetime(2000, 1, 1, tzinfo=dt.UTC)
_UNTIL = dt.datetime(9999, 12, 31, tzinfo=dt.UTC)


def new_keys() -> wire.Keys:
    """Return a self-signed certificate and its private key, as PEM. It takes 1 ms."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "outrider")])
    builder = x509.CertificateBuilder().subject_name(name).issuer_name(name).public_key(key.public_key())
    builder = builder.serial_number(x509.random_serial_number()).not_valid_before(_FROM).not_valid_after(_UNTIL)
    builder = builder.add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
    private = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    certificate = builder.sign(key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM)
    return wire.Keys(certificate, private)
