"""The effective configuration of a host: many configurations as people have them, read by ``ssh -G``."""

from __future__ import annotations

import asyncio
import getpass
import os
import shutil
import socket
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from outrider.providers.shared import ssh_config
from outrider.providers.shared.ssh_config import ConfigMistake, Effective, Query

pytestmark = [
    pytest.mark.anyio,
    pytest.mark.skipif(shutil.which("ssh") is None, reason="OpenSSH's client is not installed"),
]
HOST = "Host gpu\n  HostName 10.0.0.5\n"
HOME = str(Path.home())
CIPHERS = "chacha20-poly1305@openssh.com,aes128-ctr,aes192-ctr,aes256-ctr"
Expected = Mapping[str, Any]

# A name, a configuration, and what it sets for the host ``gpu``. A field with a dot is one of ``more``.
CONFIGS: list[tuple[str, str, Expected]] = [
    ("empty", "", {"host": "gpu", "port": 22, "user": getpass.getuser(), "jump": "", "identity_files": None}),
    ("comments alone", "# nothing\n\n  # here\n", {"host": "gpu"}),
    ("host name", HOST, {"host": "10.0.0.5"}),
    ("host name of a token", "Host gpu\n  HostName %h.example.org\n", {"host": "gpu.example.org"}),
    ("host name in capitals", "Host gpu\n  HostName GPU.Example.org\n", {"host": "gpu.example.org"}),
    ("port", f"{HOST}  Port 2222\n", {"port": 2222}),
    ("port with an equals sign", f"{HOST}  Port=2222\n", {"port": 2222}),
    ("port with an equals sign and spaces", f"{HOST}  Port = 2222\n", {"port": 2222}),
    ("quoted value", f'{HOST}  User "kim"\n', {"user": "kim"}),
    ("comment after a value", f"{HOST}  Port 2222 # of the lab\n", {"port": 2222}),
    ("keyword in capitals", f"{HOST}  PORT 2222\n", {"port": 2222}),
    ("tabs and carriage returns", "Host gpu\r\n\tPort\t2222\r\n", {"port": 2222}),
    ("no newline at the end", "Host gpu\n  Port 2222", {"port": 2222}),
    ("first value wins", f"{HOST}  User kim\nHost *\n  User ann\n", {"user": "kim"}),
    ("default at the end", "Host *\n  User ann\n", {"user": "ann"}),
    ("default before any host", "User ann\nHost gpu\n  Port 2222\n", {"user": "ann", "port": 2222}),
    ("several patterns", "Host cpu gpu\n  Port 2222\n", {"port": 2222}),
    ("wildcard", "Host g?u\n  Port 2222\n", {"port": 2222}),
    ("negated pattern", "Host * !gpu\n  Port 2222\n", {"port": 22}),
    ("another host", "Host cpu\n  Port 2222\n", {"port": 22}),
    ("match all", "Match all\n  Port 2222\n", {"port": 2222}),
    ("match host", f"{HOST}Match host 10.0.0.5\n  Port 2222\n", {"port": 2222}),
    ("match originalhost", f"{HOST}Match originalhost gpu\n  Port 2222\n", {"port": 2222}),
    ("match user", "Host gpu\n  User kim\nMatch user kim\n  Port 2222\n", {"port": 2222}),
    ("match localuser", f"Match localuser {getpass.getuser()}\n  Port 2222\n", {"port": 2222}),
    ("match exec", "Match exec true\n  Port 2222\n", {"port": 2222}),
    ("match exec that fails", "Match exec false\n  Port 2222\n", {"port": 22}),
    ("quoted match exec", 'Match originalhost gpu exec "test %n = gpu"\n  Port 2222\n', {"port": 2222}),
    ("quoted match exec with quotes", "Match exec \"test '%h' = 'gpu'\"\n  Port 2222\n", {"port": 2222}),
    ("negated match", 'Match !exec "false"\n  Port 2222\n', {"port": 2222}),
    ("match final", f"{HOST}Match final host 10.0.0.*\n  User kim\n", {"user": "kim"}),
    ("match final all", "Match final all\n  Port 2222\n", {"port": 2222}),
    ("match canonical", "CanonicalizeHostname no\nMatch canonical\n  Port 2222\n", {"port": 22}),
    ("include", "Include {folder}/more\n", {"port": 2022}),
    ("include with a pattern", "Include {folder}/mor*\n", {"port": 2022}),
    ("include of nothing", "Include {folder}/none-*\nPort 2222\n", {"port": 2222}),
    ("include for a host", "Host gpu\n  Include {folder}/more\n", {"port": 2022}),
    ("include for another host", "Host cpu\n  Include {folder}/more\n", {"port": 22}),
    ("identity", f"{HOST}  IdentityFile ~/.ssh/lab\n", {"identity_files": (f"{HOME}/.ssh/lab",)}),
    ("two identities", "IdentityFile /a\nIdentityFile /b\n", {"identity_files": ("/a", "/b")}),
    ("identity with a space", 'IdentityFile "/my keys/a"\n', {"identity_files": ("/my keys/a",)}),
    ("identity with tokens", "IdentityFile %d/%h-%r-%%\nUser kim\n", {"identity_files": (f"{HOME}/gpu-kim-%",)}),
    ("identity with a variable", "IdentityFile ${OUTRIDER_KEYS}/a\n", {"identity_files": ("/keys/a",)}),
    ("identity none", "IdentityFile none\n", {"identity_files": ()}),
    ("certificate", "CertificateFile ~/c.pub\n", {"certificate_files": (f"{HOME}/c.pub",), "identity_files": None}),
    ("identities only", "IdentityFile /a\nIdentitiesOnly yes\n", {"identities_only": True, "identity_files": ("/a",)}),
    ("agent", "IdentityAgent ~/agent.sock\n", {"agent": f"{HOME}/agent.sock"}),
    ("agent none", "IdentityAgent none\n", {"agent": ""}),
    ("agent by its usual variable", "IdentityAgent SSH_AUTH_SOCK\n", {"agent": None}),
    ("agent by a variable", "IdentityAgent $OUTRIDER_AGENT\n", {"agent": "/agents/one"}),
    ("jump host", "ProxyJump kim@gate:2222\n", {"jump": "kim@gate:2222"}),
    ("jump host by a URI", "ProxyJump ssh://kim@gate:2222\n", {"jump": "kim@gate:2222"}),
    ("two jump hosts", "ProxyJump gate,kim@inner\n", {"jump": "gate,kim@inner"}),
    ("jump host none", "Host gpu\n  ProxyJump none\nHost *\n  ProxyJump gate\n", {"jump": ""}),
    ("jump host for others", "Host * !gate\n  ProxyJump gate\n", {"jump": "gate"}),
    ("proxy command", "ProxyCommand nc -x proxy %h %p\nPort 2222\n", {"proxy_command": "nc -x proxy gpu 2222"}),
    (
        "proxy command for a shell",
        'ProxyCommand test -n "$HOME" && nc %h %p 2>/dev/null\n',
        {"proxy_command": 'test -n "$HOME" && nc gpu 22 2>/dev/null'},
    ),
    ("proxy command none", "ProxyCommand none\n", {"proxy_command": ""}),
    ("proxy command with a percent sign", "ProxyCommand date +%%s\n", {"proxy_command": "date +%s"}),
    ("known hosts", "UserKnownHostsFile {folder}/known\n", {"known_hosts+": "{folder}/known"}),
    ("two known hosts", "UserKnownHostsFile /a {folder}/known\n", {"known_hosts+": "{folder}/known"}),
    ("known hosts with a space", 'UserKnownHostsFile "{folder}/my hosts"\n', {"known_hosts+": "{folder}/my hosts"}),
    ("known hosts none", "UserKnownHostsFile none\nGlobalKnownHostsFile none\n", {"known_hosts": ()}),
    ("global known hosts", "GlobalKnownHostsFile {folder}/known\n", {"known_hosts+": "{folder}/known"}),
    ("revoked keys", "RevokedHostKeys ~/revoked\n", {"revoked_keys": f"{HOME}/revoked"}),
    ("no check of host keys", "StrictHostKeyChecking no\n", {"known_hosts": ()}),
    ("alias of the host key", "HostKeyAlias cluster\n", {"more.host_key_alias": "cluster"}),
    ("ciphers", "Ciphers aes256-ctr\n", {"more.encryption_algs": ("aes256-ctr",)}),
    ("one more cipher", "Ciphers +aes128-cbc\n", {"more.encryption_algs<": "aes128-cbc"}),
    ("fewer ciphers", "Ciphers -aes*-gcm@openssh.com\n", {"more.encryption_algs": tuple(CIPHERS.split(","))}),
    ("preferred cipher", "Ciphers ^aes256-ctr\n", {"more.encryption_algs>": "aes256-ctr"}),
    ("macs", "MACs hmac-sha2-256,hmac-sha1\n", {"more.mac_algs": ("hmac-sha2-256", "hmac-sha1")}),
    ("one more mac", "MACs +hmac-md5\n", {"more.mac_algs<": "hmac-md5"}),
    ("key exchange", "KexAlgorithms curve25519-sha256\n", {"more.kex_algs": ("curve25519-sha256",)}),
    (
        "old key exchange",
        "KexAlgorithms +diffie-hellman-group1-sha1\n",
        {"more.kex_algs<": "diffie-hellman-group1-sha1"},
    ),
    ("host key algorithms", "HostKeyAlgorithms ssh-ed25519\n", {"more.server_host_key_algs": ("ssh-ed25519",)}),
    ("old host keys", "HostKeyAlgorithms +ssh-rsa\n", {"more.server_host_key_algs<": "ssh-rsa"}),
    ("key algorithms", "PubkeyAcceptedAlgorithms ssh-ed25519\n", {"more.signature_algs": ("ssh-ed25519",)}),
    ("old keys", "PubkeyAcceptedAlgorithms +ssh-rsa\n", {"more.signature_algs<": "ssh-rsa"}),
    ("algorithms left alone", f"{HOST}  Compression yes\n", {"more.encryption_algs": None, "more.kex_algs": None}),
    ("address family", "AddressFamily inet6\n", {"more.family": socket.AF_INET6}),
    ("bind address", "BindAddress 10.0.0.1\n", {"more.local_addr": ("10.0.0.1", 0)}),
    ("no keys at all", "PubkeyAuthentication no\n", {"more.public_key_auth": False}),
    ("rekey limit", "RekeyLimit 1G 1h\n", {"more.rekey_bytes": 1 << 30, "more.rekey_seconds": 3600}),
    ("environment", "SetEnv A=1 B=two\nSendEnv LC_*\n", {"more.env": ["A=1", "B=two"], "more.send_env": ["LC_*"]}),
    ("terminal", "RequestTTY force\n", {"host": "gpu"}),
    ("command of one's own", "RemoteCommand tmux new -A\n", {"host": "gpu"}),
    ("shared connections", "ControlMaster auto\nControlPath ~/.ssh/%C\nControlPersist 10m\n", {"host": "gpu"}),
    ("forwards", "LocalForward 8080 localhost:80\nForwardAgent yes\nForwardX11 yes\n", {"host": "gpu"}),
    ("options of another system", "IgnoreUnknown UseKeychain\nUseKeychain yes\nPort 2222\n", {"port": 2222}),
    ("keep-alives", "ServerAliveInterval 60\nTCPKeepAlive yes\nConnectTimeout 5\n", {"host": "gpu"}),
]

MISTAKES: list[tuple[str, str, str]] = [
    ("unknown option", "Hots gpu\n", "line 1: Bad configuration option: hots"),
    ("port that is none", "Host gpu\n  Port abc\n", "line 2"),
    ("value that is missing", "Host gpu\n  HostName\n", "line 2"),
    ("quote that is open", 'Host gpu\n  User "kim\n', "line 2"),
    ("cipher that is none", "Ciphers aes-256\n", "line 1"),
    ("condition that is none", "Match weather rainy\n", "line 1"),
    ("two values", "Port 22 23\n", "line 1"),
    ("descriptor from a proxy", "ProxyCommand nc -F %h %p\nProxyUseFdpass yes\n", "ProxyUseFdpass"),
]


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture(autouse=True)
def _environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("OUTRIDER_KEYS", "/keys")
    monkeypatch.setenv("OUTRIDER_AGENT", "/agents/one")
    (tmp_path / "more").write_text("Port 2022\n")
    (tmp_path / "known").touch()
    (tmp_path / "my hosts").touch()


def query(folder: Path, text: str, host: str = "gpu", **wishes: Any) -> Query:
    config = folder / "config"
    config.write_text(text.replace("{folder}", str(folder)))
    return Query((str(config),), host, **wishes)


def value_of(settings: Effective, name: str) -> object:
    field, _, option = name.rstrip("<>+").partition(".")
    return settings.more.get(option) if option else getattr(settings, field)


@pytest.mark.parametrize(("text", "expected"), [row[1:] for row in CONFIGS], ids=[row[0] for row in CONFIGS])
async def test_configuration_holds(text: str, expected: Expected, tmp_path: Path) -> None:
    """A field with a sign: the value is the first (>), the last (<) or one (+) of those that hold."""
    settings = await ssh_config.effective(query(tmp_path, text))
    for name, entry in expected.items():
        value: Any = value_of(settings, name)
        wanted = entry.replace("{folder}", str(tmp_path)) if isinstance(entry, str) else entry
        match name[-1]:
            case ">":
                assert value[0] == wanted
            case "<":
                assert value[-1] == wanted
                assert len(value) > 3
            case "+":
                assert wanted in value
            case _:
                assert value == wanted


@pytest.mark.parametrize(("text", "words"), [row[1:] for row in MISTAKES], ids=[row[0] for row in MISTAKES])
async def test_mistake_is_an_error_with_its_place(text: str, words: str, tmp_path: Path) -> None:
    asked = query(tmp_path, text)
    with pytest.raises(ConfigMistake, match=words):
        await ssh_config.effective(asked)


async def test_mistakes_name_the_command_that_shows_whether_they_are_mended(tmp_path: Path) -> None:
    asked = query(tmp_path, "Hots gpu\n")
    with pytest.raises(ConfigMistake, match=f"`ssh -G -F {asked.config[0]} gpu`"):
        await ssh_config.effective(asked)


async def test_port_and_user_that_are_given_come_first(tmp_path: Path) -> None:
    text = "Match user kim\n  IdentityFile /kims\nHost gpu\n  Port 2222\n  User ann\n"
    settings = await ssh_config.effective(query(tmp_path, text, port=22, user="kim"))
    assert (settings.port, settings.user, settings.identity_files) == (22, "kim", ("/kims",))


async def test_without_files_no_process_is_started(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ssh_config, "_run", None)
    assert await ssh_config.effective(Query((), "gpu", 2222, "kim")) == Effective("gpu", 2222, "kim")


class Counted:
    """Counts the runs of ``ssh -G``, which ends each with this answer."""

    def __init__(self, status: int = 0, errors: str = "") -> None:
        self.hosts: list[str] = []
        self._answer = status, "host gpu\nuser kim\nhostname gpu\nport 22\n", errors

    def __call__(self, argv: list[str]) -> tuple[int, str, str]:
        self.hosts.append(argv[-1])
        return self._answer


async def test_a_host_is_computed_once_for_all_that_ask(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(ssh_config, "_defaults", lambda _: {})
    monkeypatch.setattr(ssh_config, "_run", counted := Counted())
    gpu, gate = query(tmp_path, ""), query(tmp_path, "", host="gate")
    await asyncio.gather(*(ssh_config.effective(each) for each in (gpu, gate) * 20))
    assert sorted(counted.hosts) == ["gate", "gpu"]


async def test_a_file_that_was_changed_is_read_anew(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(ssh_config, "_defaults", lambda _: {})
    monkeypatch.setattr(ssh_config, "_run", counted := Counted())
    await ssh_config.effective(query(tmp_path, ""))
    await ssh_config.effective(query(tmp_path, "Port 2222\n"))
    assert len(counted.hosts) == 2


async def test_failures_are_not_kept(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    failing = Counted(255, "ssh: Could not resolve hostname gpu: Temporary failure in name resolution")
    monkeypatch.setattr(ssh_config, "_run", failing)
    for _ in range(2):
        with pytest.raises(ConnectionError, match="Temporary failure in name resolution"):
            await ssh_config.effective(query(tmp_path, ""))
    assert len(failing.hosts) == 2


@pytest.mark.parametrize(
    "errors", ["No user exists for uid 1234", "unknown option -- G\nusage: ssh [-46]", "jumphost loop via 10.0.0.5"]
)
async def test_asyncssh_reads_what_ssh_does_not_compute(
    errors: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(ssh_config, "_run", Counted(255, errors))
    settings = await ssh_config.effective(query(tmp_path, "Host gpu\n  ProxyJump gate\n  IdentityFile ~/a\n"))
    assert (settings.jump, settings.identity_files) == ("gate", (f"{HOME}/a",))
    assert settings.read_by_asyncssh


async def test_without_ssh_mistakes_are_told_with_the_parser_that_knows_more(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(ConfigMistake, match=r"line 2: Extra data at end.*install OpenSSH's client"):
        await ssh_config.effective(query(tmp_path, "Host gpu\n  Port 2222 # of the lab\n"))


async def test_a_configuration_that_hangs_is_given_up(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(ssh_config, "READ_S", 0.05)
    asked = query(tmp_path, f'Match exec "echo $PPID >{tmp_path}/pid; exec sleep 1000"\n  Port 2222\n')
    with pytest.raises(ConnectionError, match="`Match exec` that hangs"):
        await ssh_config.effective(asked)
    if (pid := tmp_path / "pid").exists() and pid.read_text():  # a busy machine may not have come so far
        with pytest.raises(ProcessLookupError):
            os.kill(int(pid.read_text()), 0)
