"""Mistakes with hosts of one's own: each error names the host, what was tried, the fact and the next step, at once."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import asyncssh
import pytest

from outrider import SSH, AuthError, CapacityError, Host, HostKeyError, OutriderError, Pool, SpecError

pytestmark = pytest.mark.anyio
SOON_S = 60.0  # and the usual boot_timeout is ten times that


@pytest.fixture(scope="module")
def anyio_backend() -> str:
    return "asyncio"


@dataclass
class Workstation:
    """A host whose SSH server lets ``ml`` in with one key, and whoever asks with no other."""

    folder: Path
    port: int

    @property
    def known(self) -> Path:
        return self.folder / "known_hosts"

    @property
    def key(self) -> Path:
        return self.folder / "id"

    def at(self, user: str = "ml") -> str:
        return f"{user}@127.0.0.1:{self.port}"


class Server(asyncssh.SSHServer):
    def __init__(self, key: asyncssh.SSHKey) -> None:
        self._key = key

    def public_key_auth_supported(self) -> bool:
        return True

    def validate_public_key(self, username: str, key: asyncssh.SSHKey) -> bool:
        return username == "ml" and key == self._key


@pytest.fixture
async def box(tmp_path: Path) -> AsyncIterator[Workstation]:
    key, host_key = (asyncssh.generate_private_key("ssh-ed25519") for _ in range(2))
    key.write_private_key(tmp_path / "id")
    public = key.convert_to_public()
    server = await asyncssh.listen("127.0.0.1", 0, server_factory=lambda: Server(public), server_host_keys=[host_key])
    made = Workstation(tmp_path, server.get_port())
    made.known.write_text(f"[127.0.0.1]:{made.port} {host_key.export_public_key().decode()}")
    yield made
    server.close()
    await server.wait_closed()


async def told(provider: SSH) -> OutriderError:
    """The error with which a pool on these hosts does not open."""
    with pytest.raises(OutriderError) as caught:
        async with asyncio.timeout(SOON_S), Pool(provider=provider, nodes=1, console="silent"):
            pytest.fail("the pool opened")
    return caught.value


def another_key(folder: Path, name: str = "other") -> asyncssh.SSHKey:
    key = asyncssh.generate_private_key("ssh-ed25519")
    key.write_private_key(folder / name)
    return key


async def test_a_host_key_that_is_not_the_one_that_was_given(box: Workstation) -> None:
    other = another_key(box.folder).export_public_key().decode().strip()
    error = await told(SSH([Host("127.0.0.1", port=box.port, user="ml", key=box.key, host_key=other)]))
    assert type(error) is HostKeyError
    assert f"127.0.0.1 port {box.port} shows another host key than the one that Host(..., host_key=...)" in str(error)


async def test_a_host_key_that_has_changed(box: Workstation) -> None:
    box.known.write_text(f"[127.0.0.1]:{box.port} {another_key(box.folder).export_public_key().decode()}")
    error = await told(SSH([box.at()], key=box.key, known_hosts=box.known))
    assert type(error) is HostKeyError
    assert f"ssh-keygen -R '[127.0.0.1]:{box.port}'" in str(error)


async def test_a_host_that_one_never_logged_in_to(box: Workstation) -> None:
    box.known.write_text("")
    error = await told(SSH([box.at()], key=box.key, known_hosts=box.known))
    assert type(error) is HostKeyError
    assert f"log in once with `ssh -p {box.port} 127.0.0.1`" in str(error)


async def test_the_wrong_user(box: Workstation) -> None:
    error = await told(SSH([box.at("root")], key=box.key, known_hosts=box.known))
    assert isinstance(error, AuthError)
    assert f"root@127.0.0.1 port {box.port} accepts none of {box.key}" in str(error)
    assert "SSH(user=, key=)" in str(error)


async def test_the_wrong_key(box: Workstation) -> None:
    another_key(box.folder)
    error = await told(SSH([box.at()], key=box.folder / "other", known_hosts=box.known))
    assert isinstance(error, AuthError)
    copy = f"`ssh-copy-id -i {box.folder / 'other'} -p {box.port} "
    assert f"accepts none of {box.folder / 'other'}: add the public key there with {copy}" in str(error)


async def test_half_a_key(box: Workstation) -> None:
    (half := box.folder / "half").write_text(box.key.read_text()[:120])
    error = await told(SSH([box.at()], key=half, known_hosts=box.known))
    assert isinstance(error, AuthError)
    assert f"The private key {half}, for 127.0.0.1 port {box.port}, cannot be read" in str(error)


async def test_a_misspelt_name_is_told_long_before_the_boot_timeout(
    box: Workstation, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = socket.getaddrinfo

    def getaddrinfo(host: Any, *args: Any, **options: Any) -> Any:
        if "gpu" in str(host):
            raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")
        return found(host, *args, **options)

    monkeypatch.setattr(socket, "getaddrinfo", getaddrinfo)
    began = asyncio.get_running_loop().time()
    error = await told(SSH(["gpu1", "gpu2"], key=box.key, connect_timeout=600))
    assert asyncio.get_running_loop().time() - began < SOON_S
    assert isinstance(error, SpecError)
    assert "There is no host of the name gpu1, in the DNS or in /etc/hosts" in str(error)
    assert "SSH(config=True)" in str(error)
    jump = await told(SSH([box.at()], key=box.key, known_hosts=box.known, jump="gpu-gate", connect_timeout=600))
    assert "no host of the name gpu-gate" in str(jump)


@asynccontextmanager
async def listener(says: bytes) -> AsyncIterator[int]:
    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(1)
        writer.write(says)
        await writer.drain()
        writer.close()

    async with await asyncio.start_server(talk, "127.0.0.1", 0) as server:
        yield server.sockets[0].getsockname()[1]


async def test_a_port_that_is_not_ssh(box: Workstation) -> None:
    async with listener(b"HTTP/1.1 400 Bad Request\r\n\r\n") as port:
        error = await told(SSH([f"ml@127.0.0.1:{port}"], key=box.key, connect_timeout=600))
    assert isinstance(error, SpecError)
    assert f"127.0.0.1 port {port} is no SSH server, as what listens there says 'HTTP/1.1 400 Bad" in str(error)
    assert "port=22" in str(error)


async def test_a_port_where_nothing_listens(box: Workstation) -> None:
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        port = held.getsockname()[1]
        error = await told(SSH([f"ml@127.0.0.1:{port}"], key=box.key, connect_timeout=2))
    assert isinstance(error, CapacityError)
    assert str(error) == (
        f"The only host that was given cannot be reached: 127.0.0.1 port {port} refuses the connection, as nothing "
        f"listens at its port {port}: see that its SSH server runs, and at that port. SSH(connect_timeout=...) waits "
        "longer for hosts that start."
    )


GIVEN: dict[str, tuple[Callable[[Workstation], Path | str], str]] = {
    "a public key": (lambda box: public_of(box), "is a public key, .* give the private one"),
    "a key with a passphrase": (lambda box: locked(box), "has a passphrase, .*ssh-add .*leave out key="),
    "a text": (lambda box: box.known, "is no private key"),
    "a folder": (lambda box: box.folder, "but a folder"),
    "a name that is not there": (lambda _: "~/.ssh/no_such_key", r"`ls /.*\.ssh` shows what there is"),
}


def public_of(box: Workstation) -> Path:
    asyncssh.read_private_key(box.key).write_public_key(box.folder / "id.pub")
    return box.folder / "id.pub"


def locked(box: Workstation) -> Path:
    asyncssh.generate_private_key("ssh-ed25519").write_private_key(box.folder / "locked", "pkcs8-pem", "secret")
    return box.folder / "locked"


@pytest.mark.parametrize("given", GIVEN)
async def test_what_is_given_as_a_key_is_looked_at_before_any_host(box: Workstation, given: str) -> None:
    make, said = GIVEN[given]
    with pytest.raises(ValueError, match=rf"SSH: the key .* of ml@127\.0\.0\.1.*{said}"):
        SSH([box.at()], key=make(box))
