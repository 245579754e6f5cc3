"""A link to a node that is not there: tests say what the node does, and how its channels fail."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import repeat
from typing import Any

from outrider.actors.interfaces import AttemptId, Finished, JobId, NodeId, Order, Report, Task, TaskId
from outrider.engine.objects.blob_transfers import TransferProgress
from outrider.engine.serialization.payload import Blob, Part
from outrider.engine.serialization.task_payload import Payload
from outrider.engine.transport.instance_views import InstanceViews
from outrider.engine.transport.link import NodeLink
from outrider.engine.transport.memory_checkpoints import MemoryCheckpoints
from outrider.engine.transport.task_output import PrintedLines, TaskLogs
from outrider.engine.wire import messages as wire
from outrider.engine.wire.codec import encode
from outrider.engine.wire.session import Session
from outrider.providers.base import MachineId

PATIENCE_S = 60.0


class Bulk:
    """Channels that fail as often as they are told to."""

    def __init__(self) -> None:
        self.fails: dict[str, list[Exception]] = {}
        self.put_names: list[str] = []
        self.begun: Counter[str] = Counter()
        self.moves: Iterator[int] = repeat(0)
        self.stands_still: set[str] = set()

    async def put(self, blob: Blob, progress: TransferProgress, at: int) -> None:
        self.put_names.append(blob.name)
        await self._come(blob.name.partition("#")[0], progress)  # each try to have it there has a number

    async def get(self, name: str, progress: TransferProgress) -> Part:
        await self._come(name, progress)
        return name.encode()

    async def _come(self, name: str, progress: TransferProgress) -> None:
        self.begun[name] += 1
        progress.moved(next(self.moves))
        if self.fails.get(name):
            raise self.fails[name].pop(0)
        if name in self.stands_still:
            await asyncio.Event().wait()


class Node:
    def __init__(self, *, same_host: bool = False) -> None:
        self.bulk, self.batches = Bulk(), asyncio.Queue[Sequence[Report]]()
        self.link = NodeLink(
            NodeId(0), Session(), machine=MachineId("m"), views=InstanceViews("pool", 1), same_host=same_host,
            checkpoints=MemoryCheckpoints(),
            bulk=self.bulk, reports=self.batches.put_nowait, prints=PrintedLines(lambda _: None),
            logs=TaskLogs(lambda: None),
        )  # fmt: skip
        self.link.session.resume(0)
        self.written: list[bytes] = []
        self.link.attach(self.written.append)

    def run(self, attempt: int, **payload: Any) -> None:
        whole = Payload(f"task{attempt}", b"digest", b"code", wire.Value(b"", None), **payload)
        task = Task(TaskId(attempt), JobId(attempt), b"digest", whole, None, 3, False, None)
        self.link.run(Order(AttemptId(attempt), task, 1))

    def says(self, *messages: wire.Message) -> None:
        self.link.received(b"".join(map(encode, messages)))

    async def finished(self) -> list[Finished]:
        batch = await asyncio.wait_for(self.batches.get(), PATIENCE_S)
        return [report for report in batch if isinstance(report, Finished)]

    async def heard(self) -> list[Report]:
        return [*await asyncio.wait_for(self.batches.get(), PATIENCE_S)]


def closed() -> Exception:
    return ConnectionResetError("the channel was closed")


def done(attempt: int, blob: str) -> wire.Done:
    return wire.Done(attempt, wire.Value(b"", None, blob), 0)


SOME = wire.Value(b"forged", None)
