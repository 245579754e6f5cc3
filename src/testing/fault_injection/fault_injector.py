"""Inject a plan's faults into one pool's own processes and connections, and restore whatever can be restored.

The injection of one fault is a coroutine. If this coroutine is cancelled, it undoes its fault at once.
"""

from __future__ import annotations

import asyncio
import json
import logging
import secrets
import socket
import struct
import time
from collections.abc import Callable, Coroutine
from contextlib import aclosing, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ...actors import events as ev
from ...actors.interfaces import NodeId
from ...engine.api.chaos import ChaosPlan
from ...engine.api.errors import SpecError
from ...engine.client.cleanup import finished
from . import disk, processes
from .agent import Agents
from .faults import Fault, FullDisk, HoldGil, KillRank, Partition, SlowLink
from .injection import Injection, TargetNode, TargetTask, inject
from .plan import Planned, check_ranks, stepped, timed
from .report import Report, StepCount, Strike
from .wires import Wires

if TYPE_CHECKING:
    from ...engine.api.snapshot import NodeState
    from ...engine.client.open_pool import OpenPool

HANG_UP_S = 2.0


class FaultInjector:
    """Fault injection in one pool. Call `begin` at any time, `start` when the pool is ready, then `end` and
    `collect`.
    """

    def __init__(self, chaos: ChaosPlan, core: OpenPool) -> None:
        self.report = Report(chaos)
        self._chaos, self._core = chaos, core
        self._wires = Wires()
        self._address = f"outrider-chaos-{secrets.token_hex(8)}"
        self._tasks: dict[TargetTask, None] = {}
        self._waiting = [*stepped(chaos)]  # planned faults that wait until a task reaches a step
        self._changed = asyncio.Event()
        self._reading: asyncio.Task[None] | None = None
        self._work: set[asyncio.Task[Any]] = set()
        self._server: asyncio.Server | None = None
        self._ending: asyncio.Task[None] | None = None  # runs `_stop`; once this is set, no new injection begins

    # --- start and end ----------------------------------------------------------------------------------------------

    async def begin(self) -> None:
        """Prepare the injection. After an error or a cancellation, everything is undone.

        Raises:
            SpecError: the pool is not a local pool, or has a fault injector already.
        """
        self._check()
        self.report.begin(self._core.observer.snapshot().nodes)
        events = self._core.observer.subscribe()
        self._reading = asyncio.ensure_future(self._read(events))
        self._core.interpose = self._wires
        self._core.set_outer_plugins((Agents(self._address),))
        try:
            path = f"\0{self._address}"
            self._server = await asyncio.start_unix_server(self._serve_task, path=path, start_serving=False)
            # not started above: `leave` can close the server only after the assignment, also if this call is cancelled
            await self._server.start_serving()
        except BaseException:
            await self.leave()
            raise

    def _check(self) -> None:
        settings = self._core.settings
        if settings.provider.name != "local":
            raise SpecError(
                f"Chaos is for pools of local nodes: give this one provider=Local(), not {settings.provider!r}."
            )
        if self._core.interpose is not None:
            raise SpecError("This pool has chaos already: give all faults to one Chaos, or end that one first.")
        if any(isinstance(fault, FullDisk) for fault in self._chaos.faults):
            disk.check(settings.provider)
        check_ranks(self._chaos, settings.nodes.max or settings.nodes.desired)

    def start(self) -> None:
        self._start(self._run_plan())

    async def end(self) -> None:
        """Stop injecting faults, and undo all faults that can be undone. A cancellation is raised only after that."""
        if self._ending is None:
            self._ending = asyncio.ensure_future(self._stop())
        await finished(self._ending)

    async def _stop(self) -> None:
        self.report.end()
        self._core.set_outer_plugins(())
        self._core.interpose = None
        for work in self._work:
            work.cancel()
        if self._work:
            await asyncio.wait(self._work)
        self._wires.restore()
        if self._server is not None:
            self._server.close()
        with suppress(TimeoutError):
            async with asyncio.timeout(HANG_UP_S):
                await asyncio.gather(*(task.hang_up() for task in self._tasks))

    async def collect(self) -> None:
        """Add the last events of the pool to the report, after the pool has ended."""
        if self._reading is not None:
            await finished(self._reading)

    async def leave(self) -> None:
        """Stop injecting faults in a pool that stays open, and stop reading its events.

        A cancellation is raised afterwards.
        """
        try:
            await self.end()
        finally:
            if self._reading is not None:
                self._reading.cancel()
                await finished(self._reading)

    def _start(self, work: Coroutine[Any, Any, None]) -> None:
        if self._ending is not None:
            work.close()
            return
        task = asyncio.ensure_future(work)
        self._work.add(task)
        task.add_done_callback(self._done)

    def _done(self, task: asyncio.Task[None]) -> None:
        self._work.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            asyncio.get_running_loop().call_exception_handler({"message": "chaos failed", "exception": error})

    async def _read(self, events: Any) -> None:
        async with aclosing(events):
            async for event in events:
                self.report.add(event)
                self._notify()

    def _notify(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()

    async def _until(self, condition: Callable[[], Any]) -> Any:
        """Wait until ``condition`` returns something other than None, and return that value."""
        while (it := condition()) is None:
            await self._changed.wait()
        return it

    # --- targets ----------------------------------------------------------------------------------------------------

    def _targets(self, fault: Fault) -> dict[int, TargetNode]:
        """The possible targets of a fault at this moment, by rank."""
        ready = [node for node in self._core.observer.snapshot().nodes if node.state == "ready"]
        targets = [target for node in ready if (target := self._target(node)) is not None]
        return {target.rank: target for target in targets if self._applies_to(fault, target)}

    def _target(self, node: NodeState) -> TargetNode | None:
        """Return the node as a target of faults. Return None if the node is dying or was never ready."""
        facts = node.facts
        assert facts is not None, "a local machine names its processes"
        group, daemon = processes.owned(int(facts["group"])), processes.owned(int(facts["pid"]))
        if group is None or daemon is None or node.rank is None:
            return None
        return TargetNode(node.node, node.rank, node.machine, group, daemon, Path(facts["directory"]))

    def _applies_to(self, fault: Fault, target: TargetNode) -> bool:
        match fault:
            case KillRank() | HoldGil():
                return bool(self._tasks_on(target))
            case FullDisk():
                return disk.has_room(target.directory / "work", target.group)
        return True

    def _tasks_on(self, target: TargetNode) -> list[TargetTask]:
        here = set(processes.children(target.group))
        return [task for task in self._tasks if task.process in here]

    async def _is_wired(self, fault: Fault, target: TargetNode) -> bool:
        """Route the node's connection over a `Wire` if the fault needs one; return False if the node is gone.

        To do so, close the present connection: the new connection then runs over the wire.
        """
        if not isinstance(fault, Partition | SlowLink):
            return True
        wire = self._wires.of(target.machine)
        if not wire.used:
            self._core.connector.cut(NodeId(target.node), "rewired for chaos")

        def wired() -> bool | None:
            states = {node.node: node.state for node in self._core.observer.snapshot().nodes}
            if target.node not in states:
                return False
            return (wire.used and states[target.node] != "suspect") or None

        return bool(await self._until(wired))

    # --- times ------------------------------------------------------------------------------------------------------

    async def _run_plan(self) -> None:
        before_s, left = 0.0, self._chaos.most
        for planned in timed(self._chaos):
            # the pause starts only once the previous fault was started or skipped: faults are never closer than planned
            await asyncio.sleep(planned.at_s - before_s)
            before_s = planned.at_s
            targets = self._targets(planned.fault)
            rank = planned.target_rank([*targets])
            if rank is None or not await self._is_wired(planned.fault, targets[rank]):
                continue
            self._start(self._inject(planned, targets[rank], self._tasks_on(targets[rank]), None))
            left -= 1
            if not left:
                return

    async def _serve_task(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task: TargetTask | None = None
        with suppress(OSError, ValueError, KeyError):
            credentials = writer.get_extra_info("socket").getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12)
            process = processes.owned(struct.unpack("3i", credentials)[0])
            if process is None:
                _log("a process that does not descend from this program asked for its chaos")
            else:
                task = TargetTask(process, writer, json.loads(await reader.readline()))
            if task is not None and self._ending is None:
                self._tasks[task] = None
                task.send(watch=sorted({fault.at_step for fault in self._chaos.at_steps if fault.at_step}))
                async for line in reader:
                    self._on_message(task, json.loads(line))
        if task is not None:
            self._tasks.pop(task, None)
        writer.close()
        with suppress(OSError):
            await writer.wait_closed()

    def _on_message(self, task: TargetTask, message: dict[str, Any]) -> None:
        match message:
            case {"step": step}:
                self._start(self._at_step(task, step))
            case {"began": _}:
                self.report.began.setdefault((task.job, task.generation), time.time())
            case {"steps": steps}:
                self.report.step_counts.append(StepCount(task.job, task.generation, task.rank, steps))

    async def _at_step(self, task: TargetTask, step: int) -> None:
        """Inject the faults that wait for this step of the task. The task pauses meanwhile, and is then sent "go"."""
        try:
            for planned in list(self._waiting):
                rank = int(planned.share * task.world) if planned.rank is None else planned.rank
                if planned.fault.at_step == step and rank == task.rank:
                    await self._inject_at_step(planned, task)
        finally:
            task.send(go=step)

    async def _inject_at_step(self, planned: Planned, task: TargetTask) -> None:
        """Inject a fault while the task pauses at its step.

        Return once the fault is injected, or the task's node is gone.
        """
        target = self._target_of(task)
        if target is None:
            _log(f"{planned.fault} did not strike: process {task.process.pid} is no node's any more")
        elif await self._is_wired(planned.fault, target) and planned in self._waiting:
            self._waiting.remove(planned)
            injected = asyncio.Event()
            self._start(self._inject(planned, target, [task], injected))
            await injected.wait()

    def _target_of(self, task: TargetTask) -> TargetNode | None:
        for node in self._core.observer.snapshot().nodes:
            if node.rank is not None and (target := self._target(node)) is not None and task in self._tasks_on(target):
                return target
        return None

    # --- injection --------------------------------------------------------------------------------------------------

    async def _inject(
        self, planned: Planned, target: TargetNode, tasks: list[TargetTask], injected: asyncio.Event | None
    ) -> None:
        fault = planned.fault
        rank = tasks[0].rank if injected is not None else target.rank
        strike = Strike(planned.number, fault.kind, str(fault), target.node, rank, time.time(), step=fault.at_step)
        self.report.strikes.append(strike)

        def heard() -> bool | None:
            events = self.report.of(ev.NodeNoticed, ev.NodeLost, ev.NodeDismissed)
            return any(event.node == target.node and event.at >= strike.at for event in events) or None

        try:
            injection = Injection(target, self._wires.of(target.machine), tasks, strike, lambda: self._until(heard))
            async with inject(fault, injection):
                if injected is not None:
                    injected.set()
                await asyncio.sleep(getattr(fault, "seconds", 0.0))
        finally:
            strike.over_at = time.time()
            if injected is not None:
                injected.set()


def _log(story: str) -> None:
    logging.getLogger("outrider").warning("chaos: %s", story)
