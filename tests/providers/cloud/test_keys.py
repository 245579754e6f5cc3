"""Host keys are OpenSSH's own."""

from __future__ import annotations

import subprocess
import sys

import asyncssh

from outrider.providers.cloud.machine_start import host_key


def test_openssh_reads_both_halves() -> None:
    made = host_key()
    private, public = asyncssh.import_private_key(made.private), asyncssh.import_public_key(made.public)
    assert private.get_algorithm() == "ssh-ed25519"
    assert private.public_data == public.public_data
    assert made.private.startswith("-----BEGIN OPENSSH PRIVATE KEY-----\n")
    assert made.private.endswith("\n")
    assert len(made.public.split()) == 2


def test_no_two_are_alike_and_none_is_shown() -> None:
    one, other = host_key(), host_key()
    assert one.public != other.public
    assert one.private not in repr(one)


def test_importing_it_does_not_import_cryptography() -> None:
    code = "import sys, outrider.providers.cloud.machine_start; sys.exit('cryptography' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
