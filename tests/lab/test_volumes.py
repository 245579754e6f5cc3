"""Volumes on real hosts: a real FUSE mount, a store on the lab's network, and everything that may end too early."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import shutil
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import boto3
import pytest
from netlab import PLAIN_USER, Host

from outrider import BootstrapError, Pool, Secret, Volume, compute

TOOLS = {"rclone": "rclone", "fusermount3": "fuse3"}
LACKS = [f"no {tool} (Debian package {package})" for tool, package in TOOLS.items() if shutil.which(tool) is None]
LACKS += [] if Path("/dev/fuse").exists() else ["no /dev/fuse"]

pytestmark = [
    pytest.mark.anyio,
    pytest.mark.skipif(bool(LACKS), reason=f"no volumes on this machine: {'; '.join(LACKS)}"),
]

BUCKET = "my-bucket"
CANARY = "canary-5d20e7af"
KEYS = {"AWS_ACCESS_KEY_ID": "AKIAIOSFODNN7EXAMPLE", "AWS_SECRET_ACCESS_KEY": Secret(CANARY)}
LEASE_S = 10.0


class Store:
    """An S3 server with one bucket."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.s3 = boto3.client(
            "s3", endpoint_url=url, region_name="us-east-1", aws_access_key_id="x", aws_secret_access_key="y"
        )
        self.s3.create_bucket(Bucket=BUCKET)
        self.s3.put_bucket_versioning(Bucket=BUCKET, VersioningConfiguration={"Status": "Enabled"})

    def put(self, **files: bytes) -> None:
        for name, content in files.items():
            self.s3.put_object(Bucket=BUCKET, Key=f"images/{name}", Body=content)

    def get(self, key: str) -> bytes:
        body: bytes = self.s3.get_object(Bucket=BUCKET, Key=key)["Body"].read()
        return body

    def delete(self) -> None:
        """The bucket, if it is still there."""
        if not self.s3.list_buckets()["Buckets"]:
            return
        for version in self.s3.list_object_versions(Bucket=BUCKET)["Versions"]:
            self.s3.delete_object(Bucket=BUCKET, Key=version["Key"], VersionId=version["VersionId"])
        self.s3.delete_bucket(Bucket=BUCKET)

    def volume(self, url: str = f"s3://{BUCKET}/images", *, mount: str = "/data", **options: Any) -> Volume:
        return Volume(url, mount=mount, **{"endpoint": self.url, "credentials": KEYS, **options})


@pytest.fixture
def store(lab: Any) -> Iterator[Store]:
    from moto.server import ThreadedMotoServer

    server = ThreadedMotoServer(ip_address=lab.address, port=0, verbose=False)
    server.start()
    try:
        _, port = server.get_host_and_port()
        made = Store(f"http://{lab.address}:{port}")
        made.put(cat=b"meow", dog=b"woof")
        yield made
        made.delete()  # what moto serves is this process's: the next server would have it
    finally:
        server.stop()


@compute
def read(folder: str) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in Path(folder).iterdir()}


@compute
def write(path: str, size: int) -> None:
    Path(path).parent.mkdir(exist_ok=True)
    Path(path).write_bytes(bytes(size))


def mounts(host: Host) -> list[str]:
    lines = Path(f"/proc/{host.pid}/mountinfo").read_text().splitlines()
    return [line.split()[4] for line in lines if " fuse" in line]


def ours(host: Host) -> list[str]:
    """What a pool with volumes leaves: nothing. Its processes are gone a moment after it has ended."""
    running = [" ".join(line) for line in host.processes().values() if "sshd" not in line[0]]
    folders = [path for path in ("/data", "/run/outrider") if host.path(path).exists()]
    return [*running, *mounts(host), *folders]


def is_dead(host: Host) -> bool:
    return host.run("ls", "/data", check=False).returncode != 0


async def until(condition: Callable[[], object], within_s: float = 60.0) -> None:
    async with asyncio.timeout(within_s):
        while not condition():
            await asyncio.sleep(0.02)


async def test_a_bucket_is_a_folder_on_every_node_and_gone_afterwards(hosts, ssh, store):
    made = hosts(2)
    async with Pool(provider=ssh(made), nodes=2, volumes=[store.volume()], console="silent") as pool:
        assert await pool.broadcast(read("/data")) == [{"cat": b"meow", "dog": b"woof"}] * 2
        with pytest.raises(OSError, match="Read-only"):
            await pool.run(write("/data/new", 1))
        assert all(mounts(host) == ["/data"] for host in made)
    await until(lambda: not any(ours(host) for host in made))


async def test_what_is_closed_is_in_the_bucket(hosts, ssh, store):
    """Also what takes several requests; and what cannot be written is told."""
    [host] = hosts(1)
    big = 12_000_000
    async with Pool(provider=ssh([host]), volumes=[store.volume(read_only=False)], console="silent") as pool:
        for name, size in (("small", 3), ("big", big)):
            await pool.run(write(f"/data/new/{name}", size))
            assert len(store.get(f"images/new/{name}")) == size
        store.delete()
        with pytest.raises(OSError, match="Input/output"):
            await pool.run(write("/data/late", 3))
    await until(lambda: ours(host) == [])


async def test_a_killed_client_leaves_nothing_when_the_lease_is_over(lab, hosts, store, tmp_path):
    [host] = hosts(1)
    client = script(tmp_path, lab, host, store)
    with subprocess.Popen([sys.executable, client], stdout=subprocess.PIPE) as running:
        try:
            assert running.stdout is not None
            assert await asyncio.to_thread(running.stdout.readline) == b"ready\n"
            assert mounts(host) == ["/data"]
        finally:
            running.kill()
    await until(lambda: ours(host) == [])


async def test_a_killed_executor_leaves_nothing(hosts, ssh, store):
    [host] = hosts(1)
    async with Pool(provider=ssh([host]), volumes=[store.volume()], console="silent", lease=LEASE_S) as pool:
        assert await pool.run(read("/data"))
        kill(host, "daemon")
        assert len(await pool.run(read("/data"))) == 2
    await until(lambda: ours(host) == [])


async def test_a_killed_mount_comes_back(hosts, ssh, store):
    [host] = hosts(1)
    async with Pool(provider=ssh([host]), volumes=[store.volume()], console="silent") as pool:
        [mounted] = programs(host, "rclone")
        os.kill(mounted, signal.SIGKILL)
        await until(lambda: {*programs(host, "rclone")} - {mounted} and mounts(host) == ["/data"])
        await until(lambda: not is_dead(host))
        assert len(await pool.run(read("/data"))) == 2
    await until(lambda: ours(host) == [])


async def test_what_a_killed_supervisor_left_is_mended_by_the_next_pool(hosts, ssh, store):
    [host] = hosts(1)
    async with Pool(provider=ssh([host]), volumes=[store.volume()], console="silent"):
        kill(host, "rclone", "volumes")
    assert mounts(host) == ["/data"]
    assert is_dead(host)
    async with Pool(provider=ssh([host]), volumes=[store.volume()], console="silent") as pool:
        assert len(await pool.run(read("/data"))) == 2
    await until(lambda: ours(host) == [])


async def test_whoever_sits_in_the_folder_does_not_keep_it(hosts, ssh, store):
    [host] = hosts(1)
    async with Pool(provider=ssh([host]), volumes=[store.volume()], console="silent"):
        sitting = host.spawn("sh", "-c", "cd /data; exec sleep 1000")
        await until(lambda: programs(host, "sleep"))
    assert mounts(host) == []
    await until(lambda: not programs(host, "rclone"))
    sitting.kill()
    await until(lambda: ours(host) == [])


@pytest.mark.parametrize("first", [0, 1], ids=["the owner", "the guest"])
async def test_two_pools_share_a_mount_and_the_last_one_takes_it_away(hosts, ssh, store, first):
    [host] = hosts(1)
    pools = [Pool(provider=ssh([host]), volumes=[store.volume()], console="silent") for _ in range(2)]
    for pool in pools:
        await pool.__aenter__()
    assert len(programs(host, "rclone")) == 1
    await pools[first].__aexit__(None, None, None)
    assert len(await pools[1 - first].run(read("/data"))) == 2
    await pools[1 - first].__aexit__(None, None, None)
    await until(lambda: ours(host) == [])


async def test_a_guest_takes_over_when_the_owner_is_killed(hosts, ssh, store):
    [host] = hosts(1)
    pools = [Pool(provider=ssh([host]), volumes=[store.volume()], console="silent") for _ in range(2)]
    async with pools[0], pools[1]:
        [mounted] = programs(host, "rclone")
        os.kill(min(programs(host, "volumes")), signal.SIGKILL)
        await until(lambda: {*programs(host, "rclone")} - {mounted} and mounts(host) == ["/data"])
        for pool in pools:
            assert len(await pool.run(read("/data"))) == 2
    await until(lambda: ours(host) == [])


async def test_another_pools_volume_is_not_taken_over(hosts, ssh, store):
    [host] = hosts(1)
    async with Pool(provider=ssh([host]), volumes=[store.volume()], console="silent") as pool:
        error = await failing(ssh([host]), store.volume(f"s3://{BUCKET}"))
        assert f"another pool has mounted s3://{BUCKET}/images at /data" in str(error)
        assert len(await pool.run(read("/data"))) == 2
    await until(lambda: ours(host) == [])


async def test_what_is_wrong_is_told_with_what_to_do(lab, hosts, ssh, store):
    [host] = hosts(1)
    host.run("sh", "-c", "mkdir /full && touch /full/of")
    with socket.create_server((lab.address, 0)) as silent, denying(lab.address) as denier:
        nobody = f"http://{lab.address}:{silent.getsockname()[1]}"
        for volume, reason, hint in (
            (store.volume("s3://no-such-bucket"), "there is no bucket no-such-bucket", "endpoint="),
            (store.volume(f"s3://{BUCKET}/imagse"), f"there is nothing in s3://{BUCKET}/imagse", "check the prefix"),
            (store.volume(endpoint=denier), "AccessDenied", "allow s3:ListBucket"),
            (store.volume(endpoint=f"http://{lab.address}:1"), "connection refused", "reaches the store"),
            (store.volume(endpoint=nobody), "did not answer", "reaches the store"),
            (store.volume(credentials=None), "NoCredentialProviders", "instance profile"),
            (store.volume(mount="/full"), "the folder /full is not empty", "another mount="),
        ):
            error = await failing(ssh([host]), volume)
            assert reason in str(error)
            assert hint in error.hint
            await until(lambda: ours(host) == [])
    host.run("mount", "--bind", "/dev/null", "/dev/fuse")
    error = await failing(ssh([host]), store.volume())
    assert "no /dev/fuse" in str(error)
    assert "--cap-add SYS_ADMIN" in error.hint
    await until(lambda: ours(host) == [])


@pytest.mark.parametrize("user", ["root", PLAIN_USER])
async def test_a_pool_that_is_given_up_while_its_store_is_silent_leaves_nothing(lab, hosts, ssh, store, user):
    """Also what root does for a user, who may not send it signals."""
    [host] = hosts(1)
    may_become_root(host)
    with socket.create_server((lab.address, 0)) as silent:
        volume = store.volume(endpoint=f"http://{lab.address}:{silent.getsockname()[1]}")
        opening = asyncio.create_task(
            Pool(provider=ssh([host], user=user), volumes=[volume], console="silent").__aenter__()
        )
        await until(lambda: programs(host, "rclone"))
        opening.cancel()
        with pytest.raises(asyncio.CancelledError):
            await opening
        await until(lambda: ours(host) == [])


async def test_what_is_cached_is_fetched_once_and_removed_in_the_end(hosts, ssh, store, caplog):
    caplog.set_level(logging.INFO, "werkzeug")
    [host] = hosts(1)
    cache = host.path("/root/.cache/outrider/volumes")
    async with Pool(provider=ssh([host]), volumes=[store.volume(cache_gb=0.1)], console="silent") as pool:
        for _ in range(3):
            assert len(await pool.run(read("/data"))) == 2
        assert caplog.text.count("GET /my-bucket/images/cat") == 1
        assert any(path.name == "cat" for path in cache.rglob("*"))
    await until(lambda: ours(host) == [])
    assert not cache.exists()


async def test_a_user_with_sudo_mounts_anywhere_and_alone_sees_it(hosts, ssh, store):
    [host] = hosts(1)
    may_become_root(host)
    provider = ssh([host], user=PLAIN_USER)
    async with Pool(provider=provider, volumes=[store.volume(read_only=False)], console="silent") as pool:
        await pool.run(write("/data/new", 3))
        assert store.get("images/new") == bytes(3)
        assert len(await pool.run(read("/data"))) == 3
        stranger = host.run("setpriv", "--reuid=65534", "--clear-groups", "ls", "/data", check=False)
        assert "Permission denied" in stranger.stderr
        assert len(programs(host, "volumes")) == 1
    await until(lambda: ours(host) == [])


async def test_a_user_who_is_not_root_mounts_below_home_or_is_told(hosts, ssh, store):
    [host] = hosts(1)
    folder = f"/home/{PLAIN_USER}/pictures/cats"
    error = await failing(ssh([host], user=PLAIN_USER), store.volume())
    assert "mounting needs root" in str(error)
    assert f"mount below /home/{PLAIN_USER}" in error.hint
    host.run("sh", "-c", "mknod -m 0666 /run/fuse c 10 229 && mount --bind /run/fuse /dev/fuse")
    volume = store.volume(mount=folder)
    async with Pool(provider=ssh([host], user=PLAIN_USER), volumes=[volume], console="silent") as pool:
        assert len(await pool.run(read(folder))) == 2
        assert mounts(host) == [folder]
    await until(lambda: ours(host) == [])
    assert not host.path(f"/home/{PLAIN_USER}/pictures").exists()


async def test_credentials_come_from_the_instance_profile(hosts, ssh, store):
    from cloud.imds import Metadata, MetadataService

    [host] = hosts(1)
    role = {"AccessKeyId": "ASIAEXAMPLE", "SecretAccessKey": CANARY, "Token": CANARY, "Code": "Success"}
    items = {
        "iam/security-credentials/train": json.dumps({**role, "Expiration": "2099-01-01T00:00:00Z"}),
        "iam/info": json.dumps({"Code": "Success"}),
    }
    service = MetadataService()
    try:
        service.open(host.pid, Metadata(items))
        async with Pool(provider=ssh([host]), volumes=[store.volume(credentials=None)], console="silent") as pool:
            assert len(await pool.run(read("/data"))) == 2
    finally:
        service.end()
    await until(lambda: ours(host) == [])


async def test_credentials_are_nowhere_to_be_seen(hosts, ssh, store, watch, caplog):
    caplog.set_level(logging.DEBUG)
    [host] = hosts(1)
    async with Pool(provider=ssh([host]), volumes=[store.volume()], console="silent") as pool:
        seen = await watch(pool)
        assert CANARY not in str(await pool.run(environment()))
        assert len(await pool.run(read("/data"))) == 2
        assert not [line for line in host.processes().values() if CANARY in " ".join(line)]
        places = ["/root/.cache/outrider", "/run", "/var/log", "/etc"]
        found = host.run("grep", "--recursive", "--files-with-matches", CANARY, *places, check=False)
        assert found.stdout == ""
    error = await failing(ssh([host]), store.volume("s3://no-such-bucket"))
    assert CANARY not in f"{error!r} {error} {error.log} {seen} {caplog.text} {store.volume()!r}"


@compute
def environment() -> dict[str, str]:
    return dict(os.environ)


async def failing(provider: Any, volume: Volume) -> BootstrapError:
    with pytest.raises(BootstrapError) as caught:
        async with asyncio.timeout(150), Pool(provider=provider, volumes=[volume], console="silent"):
            pytest.fail("the pool opened")
    assert caught.value.phase == "volumes"
    return caught.value


@contextmanager
def denying(address: str) -> Iterator[str]:
    """The URL of a store that lets nobody in."""
    said = b"<Error><Code>AccessDenied</Code><Message>Access Denied</Message></Error>"

    class Denying(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(403)
            self.send_header("Content-Length", str(len(said)))
            self.send_header("Content-Type", "application/xml")
            self.end_headers()
            self.wfile.write(said)

        def do_HEAD(self) -> None:
            self.send_response(403)
            self.end_headers()

        def log_message(self, format: str, *_: object) -> None:  # noqa: A002
            pass

    with ThreadingHTTPServer((address, 0), Denying) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        try:
            yield f"http://{address}:{server.server_port}"
        finally:
            server.shutdown()


def programs(host: Host, name: str) -> list[int]:
    """What runs there under that name or, of Python's, with that verb."""
    return [
        pid
        for pid, line in host.processes().items()
        if Path(line[0]).name == name or (len(line) > 3 and line[3] == name)
    ]


def kill(host: Host, *names: str) -> None:
    found = [pid for name in names for pid in programs(host, name)]
    assert len(found) >= len(names), host.processes()
    for pid in found:
        with suppress(ProcessLookupError):  # one may be the others' end
            os.kill(pid, signal.SIGKILL)


def may_become_root(host: Host) -> None:
    rule = f"{PLAIN_USER} ALL=(ALL) NOPASSWD:ALL"
    host.run("sh", "-c", f"umask 227; echo '{rule}' >/etc/sudoers.d/{PLAIN_USER}")


CLIENT = """\
import asyncio
from outrider import SSH, Pool, Secret, Volume


async def main():
    keys = {{"AWS_ACCESS_KEY_ID": "x", "AWS_SECRET_ACCESS_KEY": Secret("secret-of-the-client")}}
    volume = Volume({url!r}, mount="/data", endpoint={endpoint!r}, credentials=keys)
    provider = SSH([{address!r}], user="root", key={key!r}, known_hosts={known_hosts!r})
    async with Pool(provider=provider, volumes=[volume], lease={lease_s}, console="silent"):
        print("ready", flush=True)
        await asyncio.sleep(1000)


asyncio.run(main())
"""


def script(folder: Path, lab: Any, host: Host, store: Store) -> Path:
    known_hosts, client = folder / "known_hosts", folder / "client.py"
    known_hosts.write_text(lab.known_hosts)
    client.write_text(
        CLIENT.format(
            url=f"s3://{BUCKET}/images",
            endpoint=store.url,
            address=f"{host.address}:{host.port}",
            key=str(lab.key),
            known_hosts=str(known_hosts),
            lease_s=LEASE_S,
        )
    )
    return client
