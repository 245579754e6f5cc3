"""A task's `instance_info`: merged from the client's `View` of the pool, the broadcast's ranks, and worker values."""

from __future__ import annotations

import json
import os
import socket
from typing import Any

import msgpack

VARIABLE = "COMPUTE_POOL"  # name of the environment variable that every task gets, with its `instance_info` as JSON


class Info:
    """The maker of each task's `instance_info`, as dict and JSON. It caches the values that do not change."""

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
            "peers": [{"rank": 0, "node": 0, "hostname": hostname, "address": address, "port": 0}],
            "rank": 0,
            "world_size": 1,
            "local_rank": 0,
            "local_world_size": 1,
            "is_head": True,
            "head_addr": address,
            "head_port": 0,
            "generation": 0,
        }
        self._view: dict[str, Any] = {}
        self._port = 0
        self._last: _Alike | None = None

    def view(self, packed: bytes) -> None:
        self._view = msgpack.unpackb(packed)
        os.environ.update(self._view.pop("variables", {}))
        self._last = None

    def release_port(self) -> None:
        """Let the next task get another ``head_port``, because the last task may have used the current one."""
        self._port = 0

    def of(self, job: int, number: int, world: bytes | None, thread: int = 0) -> tuple[dict[str, Any], str]:
        """Return a task's `instance_info` as a dict and as JSON.

        Args:
            job: number of the job (one call, map or broadcast of the client).
            number: 1 for the first attempt of the task.
            world: the broadcast's ranks and this rank, packed by msgpack; None for other tasks.
            thread: index of the worker's thread that runs the task.
        """
        generation: dict[str, Any] = {} if world is None else msgpack.unpackb(world)
        if thread or "peers" in generation:
            if world is None:
                generation["head_port"] = self._free_port()
            fields = self._merged(generation) | {"job": job, "attempt": number}
            fields["worker"] += thread
            return fields, json.dumps(fields)
        port = self._free_port() if world is None else generation.pop("head_port", 0)
        alike = self._last
        if alike is None or alike.generation != generation:
            alike = self._last = _Alike(generation, self._merged(generation))
        return alike.of(port, job, number)

    def _merged(self, generation: dict[str, Any]) -> dict[str, Any]:
        return {**self._defaults, **self._view, **generation, **self._own}

    def _free_port(self) -> int:
        self._port = self._port or free_port()
        return self._port


class _Alike:
    """A cache of the `instance_info` of tasks that differ only in job, attempt and head port.

    Such tasks belong to no broadcast, or to broadcasts on the same nodes.
    """

    def __init__(self, generation: dict[str, Any], fields: dict[str, Any]) -> None:
        self.generation = generation
        self._head: dict[str, Any] | None = None
        if generation:
            head: dict[str, Any]
            head, *self._others = fields.pop("peers")
            self._head = head
            self._head_text = json.dumps({**head, "port": None}).removesuffix("null}")
            self._others_text = "".join(f", {json.dumps(peer)}" for peer in self._others)
        self._fields = fields
        self._text = json.dumps(fields)[:-1]

    def of(self, port: int, job: int, number: int) -> tuple[dict[str, Any], str]:
        fields = {**self._fields, "job": job, "attempt": number, "head_port": port}
        text = f'{self._text}, "job": {job}, "attempt": {number}, "head_port": {port}'
        if self._head is not None:
            fields["peers"] = [{**self._head, "port": port}, *self._others]
            text = f'{text}, "peers": [{self._head_text}{port}}}{self._others_text}]'
        return fields, text + "}"


def free_port() -> int:
    """Return a TCP port that is free at the time of the call."""
    with socket.socket() as sock:
        sock.bind(("", 0))
        port: int = sock.getsockname()[1]
    return port
