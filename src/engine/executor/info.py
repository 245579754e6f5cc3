"""What a task's `instance_info` says: the node's view, the generation's world and the worker itself, merged."""

from __future__ import annotations

import json
import socket
from typing import Any

import msgpack

VARIABLE = "COMPUTE_POOL"  # the environment variable of every task


class Info:
    """Makes the ``info`` of each task and its JSON; remembers what is the same for all tasks without a world."""

    def __init__(self, worker: int, address: str, hostname: str) -> None:
        self._own: dict[str, Any] = {"worker": worker, "hostname": hostname}
        self._defaults = {
            "pool": "",
            "node": 0,
            "total_nodes": 1,
            "workers_per_node": 1,
            "accelerators": 0,
            "total_accelerators": 0,
            "accelerator": None,
            "peers": [{"rank": 0, "node": 0, "hostname": hostname, "address": address}],
            "rank": 0,
            "world_size": 1,
            "local_rank": 0,
            "local_world_size": 1,
            "is_head": True,
            "head_addr": address,
            "generation": 0,
        }
        self._view: dict[str, Any] = {}
        self._port = 0
        self._solo: tuple[dict[str, Any], str] | None = None

    def view(self, packed: bytes) -> None:
        self._view = msgpack.unpackb(packed)
        self._solo = None

    def release_port(self) -> None:
        """The last task may have used its ``head_port``: the next one gets another."""
        self._port = 0
        self._solo = None

    def of(self, job: int, number: int, world: bytes | None, lane: int = 0) -> tuple[dict[str, Any], str]:
        """The fields, and the same as JSON. ``lane``: which of a worker's threads runs it."""
        if lane:
            fields, _ = self.of(job, number, world)
            fields["worker"] += lane
            return fields, json.dumps(fields)
        if world is not None:
            fields = self._defaults | self._view | msgpack.unpackb(world) | self._own | {"job": job, "attempt": number}
            return fields, json.dumps(fields)
        if self._solo is None:
            self._port = self._port or free_port()
            fields = self._defaults | self._view | self._own | {"head_port": self._port}
            self._solo = fields, json.dumps(fields)[:-1]
        fields, text = self._solo
        return {**fields, "job": job, "attempt": number}, f'{text}, "job": {job}, "attempt": {number}}}'


def free_port() -> int:
    """A TCP port that nobody had a moment ago."""
    with socket.socket() as sock:
        sock.bind(("", 0))
        port: int = sock.getsockname()[1]
    return port
