"""`Slurm.current()`: the nodes of the job in which the program itself runs, under salloc or in a batch script."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections import deque
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import field
from pathlib import Path
from typing import TYPE_CHECKING
from uuid import uuid4

import anyio

from ...lazy_dataclass import dataclass
from ..base import (
    Address,
    EntryPoints,
    LaunchRequest,
    Machine,
    MachineEvent,
    MachineGone,
    MachineId,
    MachineReachable,
    Warned,
)
from ..errors import BadRequest, NoCapacity, ProviderError
from ..shared.login_host import Here
from ..shared.paths import NotPrivate, make_private
from ..shared.threads import in_thread
from .notation import expand, read_or_none
from .script import END, KEYS, LIMIT, NODES, SIGNAL_S, Script, relay
from .site import untrusted

if TYPE_CHECKING:
    from anyio.abc import TaskGroup

LOOK_S = 0.1
END_S = 15.0  # seconds that a step has to end after the request; then the srun of the step is ended
KILL_S = 10.0  # seconds from SIGTERM to SIGKILL of an srun: srun may wait for a Slurm controller that does not respond
LAST_BYTES = 400


@dataclass(frozen=True, slots=True, kw_only=True)
class Allocation:
    """The nodes of one job, in the order of its allocation. Created by `Slurm.current`. The job outlives its pools."""

    job: str
    nodes: tuple[str, ...]
    cpus_per_task: str | None = None
    python: str = "python3"

    @classmethod
    def of(cls, environ: Mapping[str, str], *, python: str = "python3") -> Allocation:
        """Return the job that these environment variables describe.

        Raises:
            BadRequest: The variables describe no job, or srun has started several copies of this program.
        """
        job, nodes = environ.get("SLURM_JOB_ID"), environ.get("SLURM_JOB_NODELIST")
        if not job or not nodes:
            raise BadRequest(
                "Slurm.current(): this program runs in no job",
                advice="Start it under salloc or by sbatch, or give Slurm(host=...) for a job of its own.",
            )
        if environ.get("SLURM_STEP_ID", "").isdecimal() and int(environ.get("SLURM_STEP_NUM_TASKS") or 1) > 1:
            raise BadRequest(
                "Slurm.current(): srun has started several copies of this program, and each would use all nodes",
                advice="Start it once: without srun in the batch script, or by `srun --ntasks=1`.",
            )
        return cls(job=job, nodes=tuple(expand(nodes)), cpus_per_task=environ.get("SLURM_CPUS_PER_TASK"), python=python)

    @property
    def name(self) -> str:
        return "slurm"

    @property
    def local(self) -> bool:
        return False

    @property
    def free(self) -> bool:
        return True

    @asynccontextmanager
    async def open(self, pool: str, entry_points: EntryPoints) -> AsyncIterator[AllocationFleet]:  # noqa: ARG002
        async with anyio.create_task_group() as tasks:
            fleet = AllocationFleet(self, pool, tasks)
            try:
                yield fleet
            finally:
                with anyio.CancelScope(shield=True):
                    await fleet.close()
                tasks.cancel_scope.cancel()


@dataclass(slots=True, eq=False)
class _Step:
    machine: Machine
    node: str
    srun: subprocess.Popen[bytes]
    log: Path
    reached: bool = False
    ending: bool = False
    over: anyio.Event = field(default_factory=anyio.Event)


class AllocationFleet:
    """The nodes that a pool uses in a job of the user, a `providers.base.Fleet`. Each node has a step of the pool."""

    def __init__(self, allocation: Allocation, pool: str, tasks: TaskGroup) -> None:
        self._allocation, self._pool, self._tasks = allocation, pool, tasks
        root = Path(os.environ.get("OUTRIDER_CACHE") or "~/.cache/outrider").expanduser()
        self._cache, self._folder = root, root / "jobs" / uuid4().hex[:16]
        self._steps: dict[MachineId, _Step] = {}
        self._unusable: set[str] = set()
        self._next = 0
        self._events: deque[MachineEvent] = deque()
        self._news = anyio.Event()
        self._begun = self._closed = False

    async def launch(self, request: LaunchRequest, count: int) -> Sequence[Machine]:
        """Start a step on up to ``count`` nodes that have no step of this pool.

        Raises:
            BadRequest: The pool needs more nodes than the job has; or the shared folder is not writable; or other users
                may change the folder's contents.
            NoCapacity: All nodes are in use.
        """
        allocation = self._allocation
        if request.least > len(allocation.nodes):
            raise BadRequest(
                f"the pool needs {request.least} nodes, and job {allocation.job} has {len(allocation.nodes)}",
                advice="Ask for more by `salloc --nodes=...`, or for fewer by Pool(nodes=...).",
            )
        used = {step.node for step in self._steps.values()} | self._unusable
        free = [node for node in allocation.nodes if node not in used][:count]
        if not free:
            left = len(allocation.nodes) - len(self._unusable)
            raise NoCapacity(
                f"all nodes of job {allocation.job} are in use, or have failed",
                retry_after_s=1.0 if request.least <= left else None,
            )
        script = Script(
            folder=str(self._folder),
            lease_s=request.lease_s,
            lifetime_s=request.max_lifetime_s,
            python=allocation.python,
        )
        machines: list[Machine] = []
        with anyio.CancelScope(shield=True):
            try:
                await in_thread(self._make_folder, request.client_key)
            except NotPrivate as error:
                raise untrusted(f"{error.filename}: {error.why}") from error
            except OSError as error:
                raise BadRequest(f"{self._folder} cannot be written: {error.strerror}") from error
            if not self._begun:
                self._begun = True
                self._tasks.start_soon(self._follow)
                self._tasks.start_soon(self._warn_of_the_limit)
            machines += [await in_thread(self._start, script, node) for node in free]
        return machines

    async def terminate(self, ids: Sequence[MachineId]) -> None:
        """End the steps of these machines. Their nodes stay in the job, and later launches reuse them.

        If this call is cancelled, the steps end all the same.
        """
        steps = [step for each in ids if (step := self._steps.get(each)) is not None]
        for step in steps:
            if not step.ending:
                step.ending = True
                self._tasks.start_soon(self._end_one, step)
        for step in steps:
            await step.over.wait()

    def unusable(self, machine: MachineId, cause: str, *, for_good: bool = True) -> None:  # noqa: ARG002
        step = self._steps.get(machine)
        if for_good and step is not None:
            self._unusable.add(step.node)

    async def events(self) -> AsyncIterator[MachineEvent]:
        """Yield events until the fleet is closed."""
        while True:
            while self._events:
                yield self._events.popleft()
            if self._closed:
                return
            self._news = anyio.Event()
            await self._news.wait()

    async def close(self) -> None:
        """End all steps."""
        steps = list(self._steps.values())
        if self._begun:  # the list also has the steps that `terminate` is ending
            for step in steps:
                step.ending = True
            with suppress(OSError):
                await in_thread((self._folder / END).touch)
            await self._ended(steps)
            for step in steps:
                self._over(step)
            await in_thread(shutil.rmtree, self._folder, True)
        self._closed = True
        self._news.set()

    # --- steps ------------------------------------------------------------------------------------------------------

    def _make_folder(self, client_key: str) -> None:
        """Create the job's folder atomically: a folder that exists is always complete."""
        from .step.programs import texts

        if self._folder.exists():
            return
        new = self._folder.with_name(f".{self._folder.name}.{uuid4().hex[:8]}")
        try:
            for folder in (self._cache, new.parent):
                make_private(folder)
            new.mkdir(mode=0o700)
            for name, text in {**texts(), KEYS: f"{client_key}\n"}.items():
                (new / name).write_text(text)
            new.rename(self._folder)
        except OSError:
            shutil.rmtree(new, ignore_errors=True)
            if not self._folder.exists():  # if it exists, another launch of the pool has just created it
                raise

    def _start(self, script: Script, node: str) -> Machine:
        allocation, number = self._allocation, self._next
        self._next += 1
        (self._folder / NODES / node).unlink(missing_ok=True)
        machine = Machine(
            MachineId(f"{self._pool}/{allocation.job}-{number}"),
            None,
            "",
            facts={"job": allocation.job, "node": node},
            ordered=True,
        )
        log = self._folder / f"step-{number}.out"
        try:
            with log.open("wb") as output:
                srun = subprocess.Popen(  # noqa: S603
                    script.step(allocation.job, node, allocation.cpus_per_task),
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=output,
                    start_new_session=True,
                )
        except OSError as error:
            if isinstance(error, FileNotFoundError) and error.filename == "srun":
                raise BadRequest(
                    f"there is no srun on the PATH of this program, which runs in job {allocation.job}",
                    code="NoSlurm",
                    advice="Have its PATH lead to Slurm's commands, as it does where jobs are submitted.",
                ) from error
            raise ProviderError(f"the step on {node} cannot be started: {error}") from error
        self._steps[machine.id] = _Step(machine, node, srun, log)
        return machine

    async def _follow(self) -> None:
        while True:
            for step in list(self._steps.values()):
                if step.srun.poll() is not None and not step.ending:
                    del self._steps[step.machine.id]
                    self._tell(MachineGone(step.machine.id, self._cause(step)))
                elif not step.reached and (facts := await in_thread(self._facts_of, step.node)):
                    self._reachable(step, facts)
            await anyio.sleep(LOOK_S)

    def _facts_of(self, node: str) -> dict[str, str]:
        try:
            list((self._folder / NODES).iterdir())  # listing the folder makes NFS refresh its cache
            return dict(json.loads((self._folder / NODES / node).read_text()))
        except (OSError, ValueError):
            return {}

    def _reachable(self, step: _Step, facts: Mapping[str, str]) -> None:
        if "host_key" not in facts:
            return  # the step has ended, and its log says why
        step.reached = True
        allocation, machine = self._allocation, step.machine
        reachable = Machine(
            machine.id,
            Address(
                step.node,
                user=facts["user"],
                command=relay(allocation.job, step.node, str(self._folder), python=allocation.python, here=True),
            ),
            facts["host_key"],
            private_address=facts.get("address", ""),
            notices=(f"file,path={facts['notice']}",) if "notice" in facts else (),
            lease=facts.get("lease", ""),
            facts=machine.facts,
            ordered=machine.ordered,
        )
        self._tell(MachineReachable(reachable))

    def _cause(self, step: _Step) -> str:
        try:
            text = " ".join(step.log.read_text(errors="replace")[-LAST_BYTES:].split())
        except OSError:
            text = ""
        return f"its step on {step.node} ended with status {step.srun.returncode}{f': {text}' if text else ''}"

    async def _warn_of_the_limit(self) -> None:
        """Write the seconds until the job's time limit to a file that the steps read, as a pool's batch script does."""
        question = ["squeue", "--noheader", f"--jobs={self._allocation.job}", "--format=%L"]
        try:
            left_s = read_or_none((await Here().run(question)).stdout.strip())
        except ProviderError as error:
            self._tell(Warned(f"the job's time limit is not known, so nobody is told before it ({error})"))
            return
        if left_s is None:
            return
        with suppress(OverflowError):
            await anyio.sleep(max(0.0, left_s - SIGNAL_S))
        new = self._folder / f"{LIMIT}.new"
        with suppress(OSError):
            await in_thread(new.write_text, f"{min(left_s, SIGNAL_S):g}")
            await in_thread(new.rename, self._folder / LIMIT)

    async def _end_one(self, step: _Step) -> None:
        """End one step, so that its node can be reused."""
        file = self._folder / f"{END}.{step.node}"
        with suppress(OSError):  # if the file that requests the end cannot be written, SIGTERM ends the step
            await in_thread(file.touch)
        await self._ended([step])
        with suppress(OSError):
            await in_thread(file.unlink)  # if the file remained, the next step on this node would also end
        self._over(step)

    async def _ended(self, steps: Sequence[_Step]) -> None:
        until = anyio.current_time() + END_S
        for step in steps:
            while step.srun.poll() is None and anyio.current_time() < until:  # noqa: ASYNC110 - no event reports the end of a process
                await anyio.sleep(LOOK_S / 2)
            if step.srun.poll() is None:
                step.srun.terminate()
                try:
                    await in_thread(step.srun.wait, KILL_S)
                except subprocess.TimeoutExpired:
                    step.srun.kill()
            await in_thread(step.srun.wait)

    def _over(self, step: _Step) -> None:
        self._steps.pop(step.machine.id, None)
        step.over.set()

    def _tell(self, event: MachineEvent) -> None:
        self._events.append(event)
        self._news.set()
