"""From what the actors report to what users see: typed events, the console, and the pool's present state."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, cast

import anyio

from ...actors.ports import NodeFacts, NodeId, Order, Verdict
from .. import events as ev
from ..wire.messages import Output

if TYPE_CHECKING:
    from ...providers.base import Machine
    from .console import Console
    from .sink import Sink
    from ..payload import Payload

KEPT = 10_000  # events a slow reader may be behind before it misses the oldest


@dataclass(frozen=True, slots=True)
class NodeState:
    """One node at present. ``state``: launching, ready, suspect, noticed, draining."""

    node: int
    state: str
    machine: str = ""
    hostname: str = ""
    address: str = ""
    accelerators: int = 0
    facts: Mapping[str, str] | None = None  # what the provider says of the machine: pid, zone, type, price, ...


@dataclass(frozen=True, slots=True)
class Snapshot:
    """A pool at one moment. Counts are of jobs: a broadcast is one."""

    pool: str
    state: str  # starting, ready, closing, closed
    desired: int
    nodes: tuple[NodeState, ...]
    submitted: int
    finished: int

    @property
    def ready(self) -> int:
        """Nodes that take work."""
        return sum(node.state in {"ready", "suspect"} for node in self.nodes)


class Observer:
    """Implements `actors.ports.Observe` for one pool."""

    def __init__(self, console: Console, *, slots: int) -> None:
        self._console: Console = console
        self._sink: Sink | None = None
        self._slots_each = slots
        self._readers: list[_Reader] = []
        self._pool, self._state, self._desired, self._began = "", "starting", 0, time.time()
        self._nodes: dict[int, NodeState] = {}
        self._launched: dict[int, float] = {}
        self._names: dict[int, str] = {}
        self.submitted = self.finished = 0
        self.tasks = False

    def open(self) -> None:
        """Start the console; until then nothing of it is imported."""
        from .console import make_sink  # noqa: PLC0415

        self._sink = make_sink(self._console)
        self.tasks = self._sink.tasks

    def close(self) -> None:
        for reader in self._readers:
            reader.end()
        if self._sink is not None:
            self._sink.close()

    # --- what is told to us ---------------------------------------------------------------------------------------

    def __call__(self, event: str, /, **facts: Any) -> None:  # noqa: C901, PLR0912  a table
        now = time.time()
        match event, facts:
            case "pool_starting", {"pool": pool, "provider": provider, "desired": desired, "min": least}:
                self._pool, self._desired, self._began = pool, desired, now
                self._publish(ev.PoolStarting(now, pool, provider, desired, least))
            case "pool_ready", {"ready": ready}:
                self._state = "ready"
                self._publish(ev.PoolReady(now, ready, now - self._began))
            case "pool_resized", {"wanted": wanted}:
                self._desired = wanted
                self._publish(ev.PoolResized(now, wanted))
            case "pool_closing", _:
                self._state = "closing"
                self._publish(ev.PoolClosing(now))
            case "pool_closed", _:
                self._state = "closed"
                self._publish(ev.PoolClosed(now))
            case "launch_failed", {"error": error, "retry_in_s": retry_in_s}:
                self._publish(ev.LaunchFailed(now, error, retry_in_s))
            case "node_launching", {"node": node, "machine": machine}:
                self._node_launching(now, node, machine)
            case "node_ready", {"node": node, "facts": node_facts}:
                self._node_ready(now, node, node_facts)
            case "node_suspect", {"node": node, "cause": cause}:
                self._change(node, "suspect")
                self._publish(ev.NodeSuspect(now, node, cause))
            case "node_resumed", {"node": node}:
                self._change(node, "ready")
                self._publish(ev.NodeRecovered(now, node))
            case "node_noticed", {"node": node, "source": source, "seconds": seconds}:
                self._change(node, "noticed")
                self._publish(ev.NodeNoticed(now, node, source, seconds))
            case "node_notice_withdrawn", {"node": node, "source": source}:
                self._change(node, "ready")
                self._publish(ev.NodeNoticed(now, node, source, None))
            case "node_draining", {"node": node}:
                self._change(node, "draining")
            case "node_dismissed", {"node": node}:
                self._nodes.pop(node, None)
                self._publish(ev.NodeClosed(now, node))
            case (("node_lost" | "node_failed"), {"node": node, "cause": cause}):
                self._nodes.pop(node, None)
                self._publish(ev.NodeLost(now, node, cause))
            case _:
                if self.tasks:
                    self._task_event(now, event, facts)

    def _task_event(self, now: float, event: str, facts: Mapping[str, Any]) -> None:
        job = facts.get("job", 0)
        match event, facts:
            case "task_submitted", {"task": task}:
                self._publish(ev.TaskSubmitted(now, job, task, self._names.get(job, "")))
            case "task_started", {"task": task, "node": node}:
                self._publish(ev.TaskStarted(now, job, task, node, facts.get("rank", 0), facts.get("number", 1)))
            case "task_finished", {"task": task, "node": node, "verdict": verdict, "busy_s": busy_s, "number": number}:
                said = cast("Verdict", verdict).name.lower()
                self._publish(ev.TaskFinished(now, job, task, node, said, busy_s, facts.get("rank", 0), number))
            case "task_retried", {"task": task, "number": number, "cause": cause}:
                self._publish(ev.TaskRetried(now, job, task, number, cause))
            case "generation_started", {"generation": generation, "ranks": ranks}:
                name = self._names.get(job, "")
                if generation == 1:
                    self._publish(ev.BroadcastStarted(now, job, generation, ranks, name))
                else:
                    self._publish(ev.GenerationStarted(now, job, generation, ranks))
            case "generation_lost", {"generation": generation, "nodes": nodes, "cause": cause}:
                self._publish(ev.GenerationLost(now, job, generation, nodes[0] if nodes else 0, cause))
            case "broadcast_finished", {"generation": generation, "verdicts": verdicts}:
                failed = sum(verdict is not Verdict.RETURNED for verdict in verdicts)
                self._publish(ev.BroadcastFinished(now, job, generation, failed))

    def printed(self, node: NodeId, order: Order | None, output: Output) -> None:
        """A task's output has come."""
        if self._sink is None and not self._readers:
            return
        rank, job, name = 0, 0, ""
        if order is not None:
            rank, job, name = order.rank, order.task.job, cast("Payload", order.task.content).name
        stream = "stderr" if output.stream == 2 else "stdout"  # noqa: PLR2004
        text = output.text.decode(errors="replace")
        self._publish(ev.TaskOutput(time.time(), job, node, rank, stream, text, name, output.dropped))

    def job(self, job: int, name: str) -> None:
        """A job of this name was submitted."""
        self.submitted += 1
        if self.tasks:
            self._names[job] = name

    def job_over(self, job: int) -> None:
        self.finished += 1
        if self._names:
            self._names.pop(job, None)

    def _node_launching(self, now: float, node: int, machine: Machine) -> None:
        self._launched[node] = now
        self._nodes[node] = NodeState(node, "launching", machine.id, facts=machine.facts)
        self._publish(ev.NodeLaunching(now, node, machine.id))

    def _node_ready(self, now: float, node: int, facts: NodeFacts) -> None:
        count = len(facts.accelerators)
        before = self._nodes.get(node, NodeState(node, "ready"))
        self._nodes[node] = replace(
            before, state="ready", hostname=facts.hostname, address=facts.address, accelerators=count
        )
        took_s = now - self._launched.pop(node, now)
        self._publish(ev.NodeReady(now, node, facts.hostname, facts.address, count, took_s))

    def _change(self, node: int, state: str) -> None:
        if node in self._nodes:
            self._nodes[node] = replace(self._nodes[node], state=state)

    def _publish(self, event: ev.Event) -> None:
        if self._sink is not None:
            self._sink(event)
        for reader in self._readers:
            reader.put(event)

    # --- what we are asked ------------------------------------------------------------------------------------------

    def slots(self) -> int:
        """Tasks that can run at the same time now, at least 1."""
        return max(1, self._slots_each * sum(node.state == "ready" for node in self._nodes.values()))

    def snapshot(self) -> Snapshot:
        nodes = tuple(self._nodes.values())
        return Snapshot(self._pool, self._state, self._desired, nodes, self.submitted, self.finished)

    def subscribe(self) -> AsyncIterator[ev.Event]:
        """Events from this call on, until the pool has closed."""
        reader = _Reader()
        self._readers.append(reader)
        self.tasks = True
        return self._read(reader)

    async def _read(self, reader: _Reader) -> AsyncIterator[ev.Event]:
        try:
            while True:
                while reader.events:
                    event = reader.events.popleft()
                    yield event
                    if isinstance(event, ev.PoolClosed):
                        return
                if reader.ended:
                    return
                reader.news = anyio.Event()
                await reader.news.wait()
        finally:
            if reader in self._readers:
                self._readers.remove(reader)
            self.tasks = bool(self._readers) or (self._sink is not None and self._sink.tasks)


class _Reader:
    """One consumer of events; the oldest go first when it is slow."""

    def __init__(self) -> None:
        self.events: deque[ev.Event] = deque(maxlen=KEPT)
        self.news = anyio.Event()
        self.ended = False

    def put(self, event: ev.Event) -> None:
        self.events.append(event)
        self.news.set()

    def end(self) -> None:
        self.ended = True
        self.news.set()
