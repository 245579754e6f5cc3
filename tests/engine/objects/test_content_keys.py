"""A large blob is sent at once, before its SHA-256 is known, and is found by that afterwards."""

from __future__ import annotations

import hashlib
from typing import Any

import pytest

from outrider.engine.objects.content_keys import LARGE_BYTES, ContentKeys
from outrider.engine.objects.object_memory import ObjectMemory
from outrider.engine.objects.peer_transfers import PeerTransfers
from outrider.engine.serialization.payload import LOOKS, Blob

pytestmark = pytest.mark.anyio


class Node:
    """Whoever has objects by keys."""

    def __init__(self) -> None:
        self.told: list[tuple[str, str]] = []

    def rekeyed(self, before: str, key: str) -> None:
        self.told.append((before, key))


def content(number: int = 0) -> bytearray:
    return bytearray([number]) * LARGE_BYTES


def blob(data: Any, name: str = "b") -> Blob:
    return Blob(name, [memoryview(data)], len(data))


def sha256(data: Any) -> str:
    return hashlib.sha256(data).hexdigest()


@pytest.fixture
def hashed(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    names, key = list[str](), Blob.key

    def counted(blob: Blob) -> str:
        names.append(blob.name)
        return key(blob)

    monkeypatch.setattr(Blob, "key", counted)
    return names


async def test_a_large_blob_has_a_key_before_its_digest_is_taken(hashed: list[str]) -> None:
    keys, data, node = ContentKeys(), content(), Node()
    keys.nodes.add(node)
    first = blob(data)
    key = await keys.key_of(first)
    assert keys.is_own(key)
    assert not hashed
    assert await keys.settle(first) == first.known_key == sha256(data)
    assert node.told == [(key, sha256(data))]
    assert not keys.is_own(sha256(data))
    assert await keys.settle(first) == sha256(data)


async def test_the_same_bytes_again_are_found_by_their_digest(hashed: list[str]) -> None:
    keys, data = ContentKeys(), content()
    first, second = blob(data, "first"), blob(bytes(data), "second")
    await keys.key_of(first)
    assert await keys.key_of(second) == first.known_key == sha256(data)
    del first
    assert await keys.key_of(blob(data, "third")) == sha256(data)
    assert hashed.count("first") == 1


async def test_bytes_that_only_look_the_same_have_a_key_of_their_own() -> None:
    keys, data = ContentKeys(), content()
    await keys.key_of(first := blob(data))
    other = bytearray(data)
    other[LARGE_BYTES // LOOKS // 2] = 1  # between two samples
    assert blob(other).look() == blob(data).look()
    assert await keys.key_of(blob(other)) == sha256(other) != first.known_key


async def test_blobs_that_differ_where_they_are_looked_at_wait_for_nobody(hashed: list[str]) -> None:
    keys = ContentKeys()
    assert len({await keys.key_of(blob(content(number))) for number in range(3)}) == 3
    assert not hashed


async def test_what_is_known_by_a_digest_is_a_copy() -> None:
    keys, data = ContentKeys(), content()
    before = sha256(data)
    await keys.key_of(first := blob(data))
    first.copy()
    data[0] = 1
    assert await keys.settle(first) == before == sha256(first.parts[0])


async def test_bytes_are_not_copied() -> None:
    keys, data = ContentKeys(), bytes(content())
    first = Blob("b", [data], len(data))
    await keys.key_of(first)
    await keys.settle(first)
    assert first.parts[0] is data
    assert first.filled is None


async def test_a_small_blob_is_known_by_its_digest_at_once() -> None:
    keys, data = ContentKeys(), bytes(1000)
    assert await keys.key_of(blob(data)) == sha256(data)


def test_a_node_finds_an_object_by_its_new_key_unless_there_is_another() -> None:
    memory = ObjectMemory(1 << 30, 0)
    memory.sent("a", 1, "own")
    memory.rekeyed("own", "digest")
    assert (memory.find("own"), memory.find("digest")) == (None, "a")
    memory.sent("b", 1, "own")
    memory.rekeyed("own", "digest")
    assert (memory.find("own"), memory.find("digest")) == ("b", "a")
    memory.forget("a")
    assert memory.find("digest") is None


async def test_nodes_hand_an_object_on_by_its_new_key() -> None:
    peers = PeerTransfers(lambda _: None)
    home: Any = type("Home", (), {"node": 0, "end": None})()
    peers._objects["own"] = made = _object(peers, "own", home)
    assert peers.rekeyed("own", "digest")
    assert peers._objects == {"digest": made}
    assert (made.key, made.settle, await made.expected()) == ("digest", None, "digest")
    peers._objects["own"] = again = _object(peers, "own", home)
    assert not peers.rekeyed("own", "digest")
    assert (peers._objects["own"], await again.expected()) == (again, "digest")


def _object(peers: PeerTransfers, key: str, home: Any) -> Any:
    from outrider.engine.objects.peer_transfers import _Object

    made = _Object(peers._reach, key)
    made.places[home.node] = home, "name"
    return made
