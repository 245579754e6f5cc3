"""SSH configurations and logins as people have them, on OpenSSH's own server; and the mistakes of a first day."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import asyncssh
import pytest
from netlab import Host, Lab, Sshd

from outrider import SSH, AuthError, BootstrapError, HostKeyError, OutriderError, Pool, SpecError, compute
from outrider.engine.api.errors import CapacityError
from outrider.engine.transport import ssh as transport
from outrider.engine.transport.ssh import RemoteShell
from outrider.providers.base import Address, Login, Machine, MachineId

pytestmark = pytest.mark.anyio
SOON_S = 60.0  # on a busy machine; nothing here waits for a time-out


@compute
def one() -> int:
    return 1


@pytest.fixture
def written(lab: Lab, tmp_path: Path) -> Callable[[Host, str], Path]:
    """``written(host, text)``: a configuration; ``{usual}`` in it is what leads to the host, called ``gpu``."""

    def write(host: Host, text: str) -> Path:
        (known := tmp_path / "known").write_text(lab.known_hosts)
        access = f"  User root\n  IdentityFile {lab.key}\n  UserKnownHostsFile {known}\n"
        usual = f"Host gpu\n  HostName {host.address}\n  Port {host.port}\n{access}"
        words = {"usual": usual, "access": access, "address": host.address, "key": lab.key, "port": host.port}
        (config := tmp_path / "config").write_text(text.format(**words, known=known, folder=tmp_path))
        return config

    return write


WORKING = {
    "usual": "{usual}",
    "identity that is not there": "Host *\n  IdentityFile {folder}/id_old\n{usual}",
    "certificate that is not there": "{usual}  CertificateFile {folder}/id-cert.pub\n",
    "identities only": "{usual}  IdentitiesOnly yes\n",
    "terminal": "{usual}  RequestTTY force\n",
    "command of one's own": "{usual}  RemoteCommand tmux new -A\n",
    "proxy command for a shell": "{usual}"
    "  ProxyCommand bash -c 'exec 3<>/dev/tcp/%h/%p; cat <&3 & exec cat >&3' 2>/dev/null\n",
    "jump host by a URI": "{usual}  ProxyJump ssh://root@{address}:{port}\nHost {address}\n{access}",
    "comment after a value": "Host gpu\n  HostName {address} # of the lab\n{access}",
    "quoted match exec": 'Match originalhost gpu exec "test %n = gpu"\n  Compression no\n{usual}',
    "match final": "{usual}Match final host {address}\n  ForwardAgent no\n",
    "include": "Include {folder}/no-*\n{usual}",
    "ciphers": "{usual}  Ciphers aes256-ctr\n  MACs hmac-sha2-256\n  KexAlgorithms curve25519-sha256\n",
    "one cipher more": "{usual}  Ciphers +aes256-cbc\n",
    "cipher in CBC mode": "{usual}  Ciphers aes256-cbc\n",
    "key algorithms": "{usual}  PubkeyAcceptedAlgorithms ssh-ed25519\n  HostKeyAlgorithms ssh-ed25519\n",
    "alias of the host key": "{usual}  HostKeyAlias {address}\n",
    "shared connections": "{usual}  ControlMaster auto\n  ControlPath {folder}/%C\n",
    "forwardings": "{usual}  LocalForward 127.0.0.1:1 127.0.0.1:22\n  ForwardX11 yes\n",
    "environment": "{usual}  SetEnv LC_LAB=1\n  SendEnv LC_*\n",
}


async def test_configurations_of_people_lead_to_the_host(lab: Lab, written: Callable[[Host, str], Path]) -> None:
    host = lab.create(sshd=Sshd(lines=("Ciphers +aes256-cbc",)))
    failed: dict[str, object] = {}
    for name, text in WORKING.items():
        login = Login(config=(str(written(host, text)),))
        machine = Machine(MachineId("pool/gpu"), Address("gpu"), "", login=login)
        try:
            connected = await transport.connect(machine, None)
            try:
                assert (await RemoteShell(connected.connection).run(["hostname"])).stdout.decode().strip() == host.name
                if "CBC" in name:
                    assert connected.connection.get_extra_info("send_cipher") == "aes256-cbc"
            finally:
                connected.abort()
        except (OSError, ValueError, asyncssh.Error, AssertionError) as error:
            failed[name] = error
    assert failed == {}


LOGINS = {
    "title without a newline": "printf '\\033]0;gpu1\\007'; exec sh -c \"$SSH_ORIGINAL_COMMAND\"",
    "line at the end": 'sh -c "$SSH_ORIGINAL_COMMAND"; code=$?; echo bye; exit $code',
    "warnings": 'echo "stty: standard input: Inappropriate ioctl" >&2; exec sh -c "$SSH_ORIGINAL_COMMAND"',
    "message of the day": 'seq 2000; exec sh -c "$SSH_ORIGINAL_COMMAND"',
}


@pytest.mark.parametrize("forwarding", [True, False], ids=["forwarded", "bridged"])
async def test_logins_that_print_are_nodes(lab: Lab, ssh: Callable[..., SSH], forwarding: bool) -> None:
    """On servers that forward no socket each channel is a command, with the same words around it."""
    made = []
    for number, script in enumerate(LOGINS.values()):
        ciphers = ("Ciphers aes256-ctr,aes128-ctr",) if number == 0 else ()
        lines = ("ForceCommand /login", *ciphers)
        host = lab.create(sshd=Sshd(lines=lines, stream_local_forwarding=forwarding))
        host.path("/login").write_text(f"#!/bin/sh\n{script}\n")
        host.path("/login").chmod(0o755)
        made.append(host)
    async with Pool(provider=ssh(made), nodes=len(made), console="silent", run=False) as pool:
        assert await pool.broadcast(one()) == [1] * len(made)


async def refusal(provider: SSH) -> OutriderError:
    began = time.monotonic()
    with pytest.raises(OutriderError) as caught:
        async with Pool(provider=provider, nodes=1, console="silent", run=False):
            pytest.fail("the pool opened")
    assert time.monotonic() - began < SOON_S
    return caught.value


MISTAKES: dict[str, tuple[str, dict[str, Any], type[OutriderError], tuple[str, ...]]] = {
    "misspelled option": ("{usual}  HostNmae x\n", {}, SpecError, ("hostnmae", "ssh -G -F")),
    "port that is none": ("{usual}  Port 22x\n", {}, SpecError, ("line 7", "ssh -G -F")),
    "program that is not there": ("{usual}  ProxyCommand ncat9 %h %p\n", {}, SpecError, ("ncat9", "not found")),
    "proxy that fails": (
        "{usual}  ProxyCommand sh -c 'echo no route to the proxy; exit 1' >&2\n",
        {"connect_timeout": 1},
        CapacityError,
        ("no route to the proxy", "status 1"),
    ),
    "jump host that is not known": (
        "{usual}  ProxyJump gate\nHost gate\n  HostName {address}\n  User root\n  UserKnownHostsFile /dev/null\n",
        {},
        HostKeyError,
        ("on the way to gpu", "log in once"),
    ),
    "key of another host": ("{usual}  IdentityFile none\n", {"key": "other"}, AuthError, ("ssh-copy-id", "other")),
    "keys that are not there": (
        "Host gpu\n  HostName {address}\n  User root\n  IdentityFile {folder}/id\n  UserKnownHostsFile {known}\n",
        {},
        AuthError,
        ("Not used: IdentityFile", "is not there"),
    ),
    "no cipher in common": ("{usual}  Ciphers 3des-cbc\n", {}, SpecError, ("no algorithm in common", "3des-cbc")),
    "revoked host key": ("{usual}  RevokedHostKeys {folder}/revoked\n", {}, HostKeyError, ("is revoked", "new key")),
    "revocations that are not there": (
        "{usual}  RevokedHostKeys /gone\n",
        {},
        SpecError,
        ("RevokedHostKeys names /gone",),
    ),
    "user without a shell": ("{usual}", {"user": "nobody"}, AuthError, ("accepts none of",)),
}


async def test_mistakes_of_a_first_day_are_answered_with_the_next_step(
    lab: Lab, written: Callable[[Host, str], Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("SSH_AUTH_SOCK", raising=False)
    host = lab.create()
    asyncssh.generate_private_key("ssh-ed25519").write_private_key(tmp_path / "other")
    (tmp_path / "revoked").write_text(" ".join(host.host_key.split()[:2]) + "\n")
    for name, (text, options, kind, words) in MISTAKES.items():
        given = options | ({"key": tmp_path / options["key"]} if "key" in options else {})
        error = await refusal(SSH(["gpu"], config=written(host, text), **given))
        assert isinstance(error, kind), (name, error)
        assert [word for word in words if word not in str(error)] == [], (name, error)


NO_SHELL = {
    "no login": ("echo This account is currently not available.; exit 1", "not available", "login shell"),
    "forced command": ("echo Welcome to the git server", "git server", "forced command"),
    "end in the shell's files": ("exit 1", "exit status 1", "~/.bashrc"),
}


@pytest.mark.parametrize(("script", "quoted", "step"), NO_SHELL.values(), ids=NO_SHELL)
async def test_login_that_runs_no_command_is_quoted(
    lab: Lab, ssh: Callable[..., SSH], script: str, quoted: str, step: str
) -> None:
    host = lab.create(sshd=Sshd(lines=("ForceCommand /login",)))
    host.path("/login").write_text(f"#!/bin/sh\n{script}\n")
    host.path("/login").chmod(0o755)
    error = await refusal(ssh([host]))
    assert isinstance(error, BootstrapError)
    assert quoted in str(error)
    assert step in error.hint
