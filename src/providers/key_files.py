"""Recognize by its first bytes whether a file is a usable private key, so that a wrong file fails before any
connection.
"""

from __future__ import annotations

import binascii
import re
from pathlib import Path

READ_BYTES = 64 << 10  # bytes to read; the largest keys fit: an RSA key of 16,384 bits takes 12 KiB
_PUBLIC = re.compile(rb"(ssh-(rsa|dss|ed25519|ed448)|ecdsa-sha2-|sk-(ssh|ecdsa)-)\S* AAAA|-+ ?BEGIN (\w+ )?PUBLIC KEY")
_PEM = re.compile(rb"-----BEGIN (\w+ )*PRIVATE KEY-----")
_OPENSSH = re.compile(rb"-----BEGIN OPENSSH PRIVATE KEY-----([\sA-Za-z0-9+/=]+)")
_DER = b"\x30"  # the first byte of keys in binary form (PKCS#1 and PKCS#8)
# An OpenSSH key begins with "openssh-key-v1\0", then the length and the name of its cipher: see PROTOCOL.key of
# OpenSSH.
_MAGIC, _NO_CIPHER = b"openssh-key-v1\0", b"\0\0\0\x04none"


def objection(path: Path) -> str:
    """Return why the file is not a usable private key, and what to do; empty: the file may be usable."""
    try:
        with path.open("rb") as file:
            begin = file.read(READ_BYTES)
    except FileNotFoundError:
        return f"is not a file: `ls {path.parent}` shows what there is; {_WITHOUT}"
    except IsADirectoryError:
        return f"is not a file, but a folder: give one of the keys in it; {_WITHOUT}"
    except ValueError:
        return f"is not a file, and {str(path)!r} can be the path of none; {_WITHOUT}"
    except OSError as error:
        return f"cannot be read ({error.strerror}): `ls -l {path}` says whose it is"
    return objection_to(begin, path)


def objection_to(begin: bytes, path: Path) -> str:
    """Return why a file that begins with the bytes ``begin`` is not a usable private key; empty: it may be usable."""
    begin = begin.lstrip() if not begin.startswith(_DER) else begin
    if _PUBLIC.match(begin):
        private = path.with_suffix("") if path.suffix == ".pub" else "the file beside it"
        return f"is a public key, which is for the hosts: give the private one, {private}"
    if begin.startswith(b"PuTTY-User-Key-File"):
        return f"is in PuTTY's format: make one of OpenSSH's by `puttygen {path} -O private-openssh -o NEW`"
    if not begin.startswith(_DER) and not _PEM.match(begin):
        return "is no private key: such a file begins with -----BEGIN ... PRIVATE KEY-----"
    if _encrypted(begin):
        return f"has a passphrase, which nobody is asked for here: {passphrase_advice(f'ssh-add {path}')}"
    return ""


def passphrase_advice(add: str) -> str:
    return f"give it to your agent by `{add}`, and leave out key=, so that the agent's keys are tried"


_WITHOUT = "without key= your agent's keys and the usual ones in ~/.ssh are tried"


def _encrypted(begin: bytes) -> bool:
    if b"BEGIN ENCRYPTED" in begin or b"Proc-Type: 4,ENCRYPTED" in begin:
        return True
    if (match := _OPENSSH.match(begin)) is None:
        return False
    try:
        # Base64 has groups of 4 characters, and 64 is a multiple of 4.
        data = binascii.a2b_base64(b"".join(match[1].split())[:64])
    except binascii.Error:
        return False  # not decided here: the connection attempt reports the error
    cipher = data[len(_MAGIC) :][: len(_NO_CIPHER)]
    return data.startswith(_MAGIC) and len(cipher) == len(_NO_CIPHER) and cipher != _NO_CIPHER
