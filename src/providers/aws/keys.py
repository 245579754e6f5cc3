"""A machine's host key, made here, so that it is pinned before the first connection."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class HostKey:
    """An ed25519 pair as OpenSSH's files have it: ``private`` in PEM, ``public`` one line without a comment."""

    private: str = field(repr=False)
    public: str


def host_key() -> HostKey:
    """A new one, in some 0.1 ms. It crosses with the machine's user data, so it is replaced at first contact."""
    from cryptography.hazmat.primitives import serialization  # which only users of this provider need
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

    key = Ed25519PrivateKey.generate()
    private = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.OpenSSH, serialization.NoEncryption()
    )
    public = key.public_key().public_bytes(serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH)
    return HostKey(private.decode("ascii"), public.decode("ascii"))
