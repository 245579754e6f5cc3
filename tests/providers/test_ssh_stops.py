"""The way to a host: which keys are used, which host keys count, and what of a configuration cannot work."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import asyncssh
import pytest

from outrider.providers.base import Address, Login
from outrider.providers.shared import ssh_stops
from outrider.providers.shared.ssh_config import ConfigMistake
from outrider.providers.shared.ssh_stops import Stop

pytestmark = [
    pytest.mark.anyio,
    pytest.mark.skipif(shutil.which("ssh") is None, reason="OpenSSH's client is not installed"),
]
HOST_KEY = asyncssh.generate_private_key("ssh-ed25519").export_public_key().decode().strip()


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


def key(path: Path, passphrase: str | None = None) -> str:
    """Write a key pair; return the public line."""
    made = asyncssh.generate_private_key("ssh-ed25519")
    made.write_private_key(path, "pkcs8-pem", passphrase)
    made.write_public_key(f"{path}.pub")
    return made.export_public_key().decode().strip()


async def stop(folder: Path, text: str, host: str = "gpu", **login: Any) -> Stop:
    (config := folder / "config").write_text(text)
    return (await ssh_stops.stops(Address(host), Login(config=(str(config),), **login), ""))[-1]


async def test_keys_that_are_of_no_use_are_skipped_and_named(tmp_path: Path) -> None:
    key(tmp_path / "good")
    key(tmp_path / "locked", "secret")
    (tmp_path / "other").write_text("no key\n")
    names = ("gone", "locked", "other", "good")
    config = "".join(f"IdentityFile {tmp_path}/{name}\n" for name in names) + "CertificateFile /no-cert.pub\n"
    found = await stop(tmp_path, config)
    assert len(found.options.client_keys or ()) == 1
    words = dict(zip(("cert", "gone", "locked", "other"), found.skipped, strict=True))
    assert words["cert"] == "CertificateFile /no-cert.pub is not there"
    assert words["gone"] == f"IdentityFile {tmp_path}/gone is not there"
    assert "has a passphrase" in words["locked"]
    assert "is no private key" in words["other"]


async def test_without_any_key_of_the_configuration_the_usual_files_are_not_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / ".ssh").mkdir()
    key(tmp_path / ".ssh/id_ed25519")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert len((await stop(tmp_path, "")).options.client_keys or ()) == 1
    assert not (await stop(tmp_path, "IdentityFile /gone\n")).options.client_keys


async def test_a_public_key_names_one_of_the_agent(tmp_path: Path) -> None:
    line = key(tmp_path / "a")
    found = await stop(tmp_path, f"IdentityFile {tmp_path}/a.pub\nIdentitiesOnly yes\nIdentityAgent /agent\n")
    assert found.options.agent_identities == [asyncssh.import_public_key(line).public_data]
    assert (found.options.agent_path, found.skipped) == ("/agent", ())


async def test_with_identities_only_and_none_of_them_no_agent_is_used(tmp_path: Path) -> None:
    found = await stop(tmp_path, "IdentityFile /gone\nIdentitiesOnly yes\nIdentityAgent /agent\n")
    assert found.options.agent_path == ""


async def test_a_key_that_is_given_is_used_alone(tmp_path: Path) -> None:
    key(tmp_path / "a")
    key(tmp_path / "b")
    found = await stop(tmp_path, f"IdentityFile {tmp_path}/a\n", keys=(str(tmp_path / "b"),))
    assert len(found.options.client_keys or ()) == 1
    assert not found.options.agent_path


async def test_algorithms_that_asyncssh_has_hold(tmp_path: Path) -> None:
    found = await stop(tmp_path, "KexAlgorithms sntrup761x25519-sha512@openssh.com,curve25519-sha256\n")
    assert b"curve25519-sha256" in found.options.kex_algs
    assert set(found.options.kex_algs) <= {b"curve25519-sha256", b"sntrup761x25519-sha512@openssh.com"}
    assert [each.decode() for each in found.options.encryption_algs] == list(ssh_stops.CIPHERS)


async def test_a_terminal_is_never_asked_for(tmp_path: Path) -> None:
    assert (await stop(tmp_path, "RequestTTY force\n")).options.request_pty is False


async def test_lines_of_known_hosts_that_are_none_are_skipped(tmp_path: Path) -> None:
    (known := tmp_path / "known").write_text(f"garbage\n\n# gpu\ngpu {HOST_KEY}\n")
    assert (await stop(tmp_path, f"UserKnownHostsFile {known}\n")).knows()
    assert not (await stop(tmp_path, f"UserKnownHostsFile {known}\n", host="cpu")).knows()


async def test_an_alias_is_looked_up_in_place_of_the_name(tmp_path: Path) -> None:
    (known := tmp_path / "known").write_text(f"cluster {HOST_KEY}\n")
    assert (await stop(tmp_path, f"UserKnownHostsFile {known}\nHostKeyAlias cluster\n")).knows()


@pytest.mark.parametrize("port", [22, 2222])
async def test_revoked_keys_of_a_file_count(tmp_path: Path, port: int) -> None:
    (tmp_path / "revoked").write_text(f"# old\n{HOST_KEY}\n")
    found = await stop(tmp_path, f"RevokedHostKeys {tmp_path}/revoked\nPort {port}\n")
    revoked = asyncssh.match_known_hosts(found.known_hosts, "gpu", "", port)[2]
    assert [each.public_data for each in revoked] == [asyncssh.import_public_key(HOST_KEY).public_data]


@pytest.mark.parametrize(("content", "words"), [(None, "cannot be read"), (b"SSHKRL\n\0\0\0", "binary")])
async def test_revoked_keys_that_cannot_be_read_let_no_host_pass(
    tmp_path: Path, content: bytes | None, words: str
) -> None:
    if content is not None:
        (tmp_path / "revoked").write_bytes(content)
    with pytest.raises(ConfigMistake, match=f"RevokedHostKeys names .*{words}"):
        await stop(tmp_path, f"RevokedHostKeys {tmp_path}/revoked\n")


@pytest.mark.parametrize(
    ("text", "host", "port", "user"),
    [
        ("gate", "gate", None, None),
        ("kim@gate:2222", "gate", 2222, "kim"),
        ("ssh://kim@gate:2222", "gate", 2222, "kim"),
        ("ssh://gate/", "gate", None, None),
        ("[2001:db8::1]:2222", "2001:db8::1", 2222, None),
        ("ssh://kim@[2001:db8::1]", "2001:db8::1", None, "kim"),
        ("2001:db8::1", "2001:db8::1", None, None),
    ],
)
def test_jump_host_is_parsed(text: str, host: str, port: int | None, user: str | None) -> None:
    assert ssh_stops.jump_address(text) == Address(host, port, user=user)


def test_jump_host_without_a_port_after_its_colon_is_a_mistake() -> None:
    with pytest.raises(ConfigMistake, match="user@host:port"):
        ssh_stops.jump_address("gate:ssh")


async def test_jump_hosts_have_their_own_configuration(tmp_path: Path) -> None:
    (tmp_path / "config").write_text(
        "Host gpu\n  ProxyJump ssh://kim@gate\nHost gate\n  HostName g.example\n  Port 2200\n"
    )
    way = await ssh_stops.stops(Address("gpu"), Login(config=(str(tmp_path / "config"),)), "")
    assert [(each.host, each.port, each.options.username) for each in way][:1] == [("g.example", 2200, "kim")]
    assert [each.host for each in way] == ["g.example", "gpu"]
