"""Generation of a machine's SSH host key on this computer: thus the key is known before the first connection."""

from __future__ import annotations

from dataclasses import field

from ...lazy_dataclass import dataclass


@dataclass(frozen=True, slots=True)
class HostKey:
    """An ed25519 key pair in OpenSSH's formats: ``private`` is PEM, ``public`` one line without a comment."""

    private: str = field(repr=False)
    public: str


def host_key() -> HostKey:
    """Generate a host key (takes 0.1 ms). The launch request contains the private key, so the machine gets a new key at
    the first contact.
    """
    from cryptography.hazmat.primitives import serialization  # imported here, because only clouds need this package
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

    key = Ed25519PrivateKey.generate()
    private = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.OpenSSH, serialization.NoEncryption()
    )
    public = key.public_key().public_bytes(serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH)
    return HostKey(private.decode("ascii"), public.decode("ascii"))
