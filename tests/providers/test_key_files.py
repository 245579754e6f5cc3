"""What a file given as a private key is, by its first bytes."""

from __future__ import annotations

import subprocess
from pathlib import Path

import asyncssh
import pytest
from hypothesis import given
from hypothesis import strategies as st

from outrider import SSH, Host
from outrider.providers.shared import login_options
from outrider.providers.shared.login_options import key_objection, key_objection_to

KEY = asyncssh.generate_private_key("ssh-ed25519")
RSA = asyncssh.generate_private_key("ssh-rsa", key_size=1024)
AT = Path("/home/ml/.ssh/id.pub")


@pytest.mark.parametrize("kind", ["openssh", "pkcs8-pem", "pkcs8-der", "pkcs1-pem", "pkcs1-der"])
def test_a_private_key_of_any_format_may_be_one(kind: str) -> None:
    assert key_objection_to(RSA.export_private_key(kind), AT) == ""


@pytest.mark.parametrize("kind", ["openssh", "pkcs8-pem", "pkcs1-pem", "rfc4716"])
def test_a_public_key_is_told_from_the_private_one(kind: str) -> None:
    said = key_objection_to(RSA.export_public_key(kind), AT)
    assert said == "is a public key, which is for the hosts: give the private one, /home/ml/.ssh/id"


def test_public_keys_of_all_kinds_are_known() -> None:
    for name in ("ssh-ed25519", "ecdsa-sha2-nistp256"):
        assert "is a public key" in key_objection_to(
            asyncssh.generate_private_key(name).export_public_key(), Path("id")
        )
    assert "is a public key" in key_objection_to(b"sk-ssh-ed25519@openssh.com AAAAGnNr", Path("id"))


def test_a_key_with_a_passphrase_belongs_into_an_agent(tmp_path: Path) -> None:
    command = ["ssh-keygen", "-q", "-t", "ed25519", "-f", tmp_path / "locked", "-N"]
    subprocess.run([*command, "secret"], check=True)
    assert f"`ssh-add {tmp_path / 'locked'}`, and leave out key=" in key_objection(tmp_path / "locked")
    for kind in ("pkcs1-pem", "pkcs8-pem"):
        assert "has a passphrase" in key_objection_to(RSA.export_private_key(kind, "secret"), AT)


def test_a_key_of_putty_is_converted() -> None:
    assert "puttygen" in key_objection_to(b"PuTTY-User-Key-File-3: ssh-ed25519\r\n", AT)


def test_files_that_are_none_or_cannot_be_read_say_what_to_look_at(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert f"`ls {tmp_path}` shows" in key_objection(tmp_path / "none")
    assert "but a folder" in key_objection(tmp_path)

    def denied(*_: object) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "open", denied)
    assert key_objection(AT) == f"cannot be read (Permission denied): `ls -l {AT}` says whose it is"


@given(st.binary(max_size=200))
def test_whatever_the_bytes_are_there_is_a_sentence_or_none(data: bytes) -> None:
    said = key_objection_to(data, AT)
    assert said == "" or said.startswith(("is ", "has "))
    assert (said == "") == data.startswith(b"0"), "nothing of the file itself is said, which might be a secret"


@given(st.integers(0, 400))
def test_a_key_that_was_cut_is_left_to_who_reads_it(at: int) -> None:
    whole = KEY.export_private_key()
    begun = whole[: max(at, len("-----BEGIN OPENSSH PRIVATE KEY-----"))]
    assert key_objection_to(begun, AT) == ""


def test_the_error_names_the_key_and_the_host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    KEY.write_public_key(tmp_path / "id.pub")
    KEY.write_private_key(tmp_path / "id")
    with pytest.raises(ValueError, match=rf"the key .*id.pub of ml@gpu1 is a public key.*give .*{tmp_path / 'id'}\."):
        SSH(["ml@gpu1"], key=tmp_path / "id.pub")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert SSH([Host("gpu1", key="~/id")]).hosts[0].key == "~/id"
    with pytest.raises(ValueError, match=f"`ls {tmp_path}/.ssh` shows"):
        SSH(["gpu1"], key="~/.ssh/id_rsa")
    assert login_options.READ_BYTES > 16384
