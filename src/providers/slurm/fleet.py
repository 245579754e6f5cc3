"""One pool's machines in a Slurm cluster: `SlurmFleet` submits, polls and ends the pool's jobs.

`queue_pause_s` decides how often the queue is polled. `Gathering` combines launches: one job replaces all nodes that
were lost together, if their replacements are requested at nearly the same time. `WaysIn` decides how to connect to the
steps (a step is the server on one node of a job) with ``reach="auto"``: by SSH to nodes that accept the user's login,
else by srun. `usage` queries Slurm's accounting once, after the end of the pool's jobs, for the processors and memory
that the nodes used.

POLL-1: the longer a job waits in the queue, the less often it is polled. But the client always notices a job's start in
less than half the time for which the job's steps wait for their client.
REACH-1: the client connects to a node by SSH only after the node has accepted the user's login once.
REACH-2: after a step can be reached, the client waits at most `PATIENCE_S` for the probe of its node's SSH server.
REACH-3: a site that has refused the user's login on all nodes of a job is not probed again.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import field, replace
from math import inf
from typing import TYPE_CHECKING

import anyio

from ...lazy_dataclass import dataclass
from ..base import (
    Address,
    LaunchRequest,
    Machine,
    MachineEvent,
    MachineGone,
    MachineId,
    MachineQueued,
    MachineReachable,
    MachineStarted,
    MachineUsage,
    UsageUnknown,
    Warned,
)
from ..errors import BadRequest, JournalError, NotGone, ProviderError
from ..shared.resource_ownership import Claim
from ..shared.threads import in_thread
from . import notation, script
from .accounting import JobUse, read
from .endings import POLL_S, Endings
from .jobs import Gone, Job, JobBook, JobEvent, Never, Queued, Runs, folder_of, job_of, split_left_jobs
from .site import SlurmCommands
from .submitter import Submitter

if TYPE_CHECKING:
    from anyio.abc import TaskGroup

    from ..shared.journal import Journal
    from ..shared.login_host import Commands, Ended
    from ..shared.pool_lock import Place
    from .submitter import SlurmOptions, Submission


CALM_POLL_S = 5.0  # seconds between polls while no change is expected; otherwise `POLL_S`
CALM_AFTER_S = 60.0
LOOK_S = 0.25  # seconds between two readings of the job's files while a step is expected to report its address
WARN_AFTER = 2  # failed polls in a row before a warning
AWAY_S = 10.0  # seconds, the longest pause between polls while Slurm does not respond
LEASE_S, LEASE_MORE_S = 120.0, 60.0


class SlurmFleet:
    """A pool's jobs, a `providers.base.Fleet`. Call `start` first. Call `close`, shielded from cancellation, before the
    task group of the fleet ends.
    """

    def __init__(self, provider: SlurmOptions, pool: str, runner: Commands, journal: Journal, tasks: TaskGroup) -> None:
        self._provider, self._pool, self._journal, self._tasks = provider, pool, journal, tasks
        self._slurm = SlurmCommands(runner)
        self._submitter = Submitter(provider, pool, self._slurm, journal, self._warn)
        self._book = JobBook(pool)
        self._endings = Endings(pool, self._slurm, self._submitter, self._book, self._poll)
        self._gathering = Gathering(self._submit)
        self._machines: dict[MachineId, Machine] = {}
        self._reached: set[MachineId] = set()
        self._ways_in = WaysIn()
        # Where the pool has jobs: login hosts, as texts for the journal, including those that a dead client recorded.
        self._places: list[Place] = [provider.journal_place]
        self._polling = anyio.Lock()
        self._events: deque[MachineEvent] = deque()
        self._news = anyio.Event()
        self._wake = anyio.Event()
        self._changed_at = self._polled_at = -inf
        self._closed = False
        self._lease_s = LEASE_S

    def start(self) -> None:
        self._tasks.start_soon(self._follow)

    # --- called by the pool -------------------------------------------------------------------------------------------

    async def adopt(self, known: Sequence[Machine], most: int, *, lease_s: float | None = None) -> Sequence[Machine]:
        """Take over machines of a dead client, before the first launch, and end all other jobs of the pool in the
        background.

        The first ``most`` of the ``known`` machines whose steps still run are taken over.

        Raises:
            BadRequest: The pool's jobs are at another login host; they continue unchanged.
            ProviderError: Slurm does not respond; the jobs still exist.
        """
        self._lease_s = LEASE_S if lease_s is None else lease_s
        record = await in_thread(self._journal.record, self._pool)
        intents, hosts = ((), ()) if record is None else (record.intents, record.hosts)
        where = self._provider.where
        here = [each for each in intents if each.place.get("slurm") == where]
        if intents and not here:
            there = " and ".join(sorted({each.place.get("slurm", "") for each in intents}))
            raise BadRequest(f"the jobs of pool {self._pool} are in {there}, not in {where}: attach to it there")
        around, now = await self._submitter.site(), anyio.current_time()
        views = await self._slurm.jobs(around.user, None)
        adopted = split_left_jobs(views, Claim.of(self._pool, here, hosts), known, most)
        self._submitter.left(here)
        self._places += [each.place for each in here if each.place not in self._places]
        for view in adopted.keeps:
            mine = {each.id: each.facts["node"] for each in adopted.machines if job_of(each) == view.id}
            self._book.adopted(view, folder_of(view, here, around.root), mine, now)
        self._machines |= {machine.id: machine for machine in adopted.machines}
        self._reached |= self._machines.keys()
        if adopted.surplus:
            self._tell(Warned.of_surplus(adopted.surplus, most))
        if adopted.ends:
            ends = {view.id: folder_of(view, here, around.root) for view in adopted.ends}
            self._tasks.start_soon(self._end_others, ends)
        self._changed()
        return adopted.machines

    async def _end_others(self, jobs: Mapping[str, str]) -> None:
        try:
            await self._endings.end(jobs)
        except ProviderError as error:
            self._warn(f"jobs that a client of the pool has left are ended when it closes ({error})")

    async def launch(self, request: LaunchRequest, count: int) -> Sequence[Machine]:
        """Submit one job of ``count`` nodes; or ``count`` jobs of one node, if the nodes need not start together.

        After the pool's first job, launches that are requested within `GATHER_S` are combined into one job. A
        cancellation takes effect after the current call of sbatch.

        Raises:
            ProviderError: Nothing was submitted.
        """
        await self._submitter.site()
        self._lease_s = request.lease_s
        if self._provider.together:
            return await (self._gathering.launch if self._book.jobs else self._submit)(request, count)
        machines: list[Machine] = []
        for _ in range(count):
            try:
                machines += await self._submit(request, 1)
            except ProviderError:
                if not machines:
                    raise
                break
        return machines

    async def terminate(self, ids: Sequence[MachineId]) -> None:
        """End machines of this pool. Ids that are not of this pool are ignored. The other nodes of a job continue.

        If Slurm is already ending a job, the job's tasks keep the time that was announced to them, and this call does
        not wait for the end.

        Raises:
            ProviderError: Slurm refused, does not respond, or has not confirmed the end within `CONFIRM_S`.
        """
        jobs = self._book.ending(ids)
        if any(job.running for job in jobs):
            await self._poll()
            jobs = [job for job in jobs if job.ending_since is None and not job.over]
        for job in jobs:
            if job.machines:
                ended = list(job.ending)
                await self._endings.shrink(job)
                job.ending = [machine for machine in job.ending if machine not in ended]
        if whole := [job for job in jobs if not job.machines]:
            await self._endings.end_whole(whole)

    def unusable(self, machine: MachineId, cause: str, *, for_good: bool = True) -> None:
        pass  # nothing to do, as Slurm decides on which nodes a job runs

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
        """End all jobs of the pool; return when Slurm confirms the end. Temporary errors are retried for as long as the
        lease lasts.

        Raises:
            NotGone: Something may still exist; the error names it.
        """
        began = anyio.current_time()
        try:
            await self._give_back()
            left_s = began + LEAVE_S - anyio.current_time()
            for each in await usage(self._slurm, self._book.jobs.values(), within_s=max(LEAST_S, left_s)):
                self._tell(each)
        finally:
            self._closed = True
            self._news.set()

    # --- submitting ---------------------------------------------------------------------------------------------------

    async def _submit(self, request: LaunchRequest, count: int) -> list[Machine]:
        arguments = [*self._provider.arguments(), *notation.resource_arguments(request, self._provider.gres)]
        submission = await self._submitter.submit(request, count, arguments)
        return [self._machines[machine] for machine in self._submitted(submission)]

    def _submitted(self, submission: Submission) -> Sequence[MachineId]:
        assert submission.job is not None
        ids = self._book.submitted(submission.job, submission.folder, submission.count, anyio.current_time())
        for machine in ids:
            facts = {"job": submission.job, "partition": self._provider.partition or ""}
            known = {key: value for key, value in facts.items() if value}
            machine_record = Machine(machine, None, "", ordered=self._provider.together, facts=known)
            self._machines.setdefault(machine, machine_record)
            self._tell(MachineQueued(machine, f"job {submission.job} pending"))
        self._changed()
        return ids

    # --- polling the jobs ---------------------------------------------------------------------------------------------

    async def _follow(self) -> None:
        """Poll the pool's jobs repeatedly, for as long as there are any."""
        failures = 0
        while True:
            self._wake = wake = anyio.Event()
            if not self._book.open_jobs:
                await wake.wait()
                continue
            pause_s = self._pause_s()
            try:
                if self._waiting and anyio.current_time() < self._polled_at + POLL_S:
                    await self._ask_nodes()
                else:
                    await self._poll()
                    await self._trim()
            except ProviderError as error:
                failures += 1
                if failures == WARN_AFTER:
                    self._warn(f"Slurm does not say what becomes of the pool's jobs, and is asked again ({error})")
                pause_s = min(AWAY_S, POLL_S * 2 ** min(failures, 8))
            else:
                failures = 0
                if self._waiting or self._book.expects_news(anyio.current_time()):
                    pause_s = LOOK_S
            with anyio.move_on_after(pause_s):
                await wake.wait()

    async def _trim(self) -> None:
        """End the jobs that have no wanted machine, and release the surplus nodes of jobs that have started."""
        for job in self._book.open_jobs:
            if not job.machines and (job.requeued or (job.never and not job.running)):
                await self._slurm.cancel([job.id])
            elif job.machines and not job.shrinking and not job.released.keys() >= {*job.unused_nodes}:
                self._tasks.start_soon(self._give_back_unused, job)
            elif job.is_left(anyio.current_time(), (await self._submitter.site()).grace_s):
                await self._slurm.end_jobs({job.id: job.folder})

    async def _give_back_unused(self, job: Job) -> None:
        try:
            await self._endings.shrink(job)
        except ProviderError as error:
            self._warn(f"nodes of job {job.id} that nobody uses could not be given back ({error})")

    def _pause_s(self) -> float:
        calm_s = anyio.current_time() - self._changed_at
        if calm_s <= CALM_AFTER_S:
            return POLL_S
        if any(job.running for job in self._book.open_jobs):
            return CALM_POLL_S
        return queue_pause_s(calm_s, lease_s=self._lease_s, least_s=CALM_POLL_S)

    async def _poll(self) -> None:
        async with self._polling:
            around, sent_at = await self._submitter.site(), anyio.current_time()
            views = await self._slurm.jobs(around.user, self._pool)
            self._polled_at = anyio.current_time()
            events = self._book.answer(views, sent_at)
            # Shielded from cancellation, because the job book returns each event only once.
            with anyio.CancelScope(shield=True):
                for event in events:
                    self._handle(await self._with_limits(await self._with_output(event)))
            await self._ask_nodes()

    async def _with_output(self, event: JobEvent) -> JobEvent:
        """Add the job's output to the event if the machine ended before it could be reached: the output may have the
        reason.
        """
        job = self._book.job_of(event.machine) if isinstance(event, Gone) else None
        if job is None or not isinstance(event, Gone) or event.machine in self._reached:
            return event
        try:
            output = await self._slurm.output(job.folder)
        except ProviderError:
            return event
        return replace(event, cause=f"{event.cause}; its output ends with: {output}") if output else event

    async def _with_limits(self, event: JobEvent) -> JobEvent:
        """Add the partition's limits to the reason if a job requests more nodes or time than these allow."""
        if not isinstance(event, Never) or not event.reason.word.startswith("Partition"):
            return event
        try:
            limit = await self._slurm.limits(self._provider.partition or "")
        except ProviderError:
            return event
        return replace(event, reason=replace(event.reason, words=f"{event.reason.words}; {limit}")) if limit else event

    def _handle(self, event: JobEvent) -> None:
        if not isinstance(event, Queued):  # a Queued event changes only the reason or the expected start
            self._changed_at = anyio.current_time()
        match event:
            case Queued(job, machines, reason, starts_at):
                for machine in machines:
                    self._tell(MachineQueued(machine, f"job {job} pending: {reason.text}", starts_at))
            case Never(job, machines, reason):
                error = reason.error(job)
                for machine in machines:
                    self._tell(MachineGone(machine, str(error), error))
                self._book.ending(machines)
            case Runs(_, nodes, _):
                for machine, node in nodes:
                    self._tell(MachineStarted(machine))
                    known = self._machines[machine]
                    self._machines[machine] = replace(known, facts={**known.facts, "node": node})
                asks = [] if self._provider.reach != "auto" else self._ways_in.ask(node for _, node in nodes)
                if asks:
                    self._tasks.start_soon(self._ask_the_way, asks)
            case Gone(machine, cause):
                self._tell(MachineGone(machine, cause))

    @property
    def _waiting(self) -> list[Job]:
        """The running jobs with nodes that have not reported their address."""
        return [
            job for job in self._book.open_jobs if job.running and any(m not in self._reached for m in job.machines)
        ]

    async def _ask_nodes(self) -> None:
        """Read which nodes of running jobs have reported their address, and report these nodes as reachable."""
        for job in self._waiting:
            answers = await self._slurm.node_files([job.folder])
            for machine in list(job.machines):
                node = job.node_of.get(machine, "")
                if machine in self._reached or node not in answers:
                    continue
                by_ssh = self._ways_in.by_ssh(node, anyio.current_time()) if self._provider.reach == "auto" else None
                if by_ssh is None and self._provider.reach == "auto" and "host_key" in answers[node]:
                    continue  # wait for the probe of this node's SSH server, which ends soon
                self._reachable(job, machine, node, answers[node], by_ssh=by_ssh or self._provider.reach == "ssh")

    async def _ask_the_way(self, nodes: Sequence[str]) -> None:
        """Probe which nodes accept SSH logins of the user, while the steps on these nodes start."""
        try:
            self._ways_in.answered(nodes, await self._slurm.lets_in(nodes, ASK_S))
        except ProviderError:
            self._ways_in.failed(nodes)

    def _reachable(
        self, job: Job, machine: MachineId, node: str, facts: Mapping[str, str], *, by_ssh: bool = False
    ) -> None:
        self._changed_at = anyio.current_time()
        self._reached.add(machine)
        if "host_key" not in facts:
            self._tell(
                MachineGone(machine, facts.get("error", f"the step on node {node} does not say how it is reached"))
            )
            # The machine counts as ended, so the next round releases its node from the job.
            self._book.ending([machine])
            return
        job.began.add(node)
        provider = self._provider
        here = provider.host is None
        if provider.reach == "ssh":
            command = script.ssh_relay(node, job.folder, python=provider.python)
        elif by_ssh:
            command = script.ssh_or_srun_relay(job.id, node, job.folder, python=provider.python, here=here)
        else:
            command = script.relay(job.id, node, job.folder, python=provider.python, here=here)
        self._machines[machine] = reachable = replace(
            self._machines[machine],
            address=Address(node, user=facts.get("user"), command=command),
            host_key=facts["host_key"],
            private_address=facts.get("address", ""),
            login=None if provider.host is None else replace(provider.login(), jump=provider.place().text),
            notices=(f"file,path={facts['notice']}",) if "notice" in facts else (),
            lease=facts.get("lease", ""),
        )
        self._tell(MachineReachable(reachable))

    def _tell(self, event: MachineEvent) -> None:
        self._events.append(event)
        self._news.set()

    def _warn(self, text: str) -> None:
        self._tell(Warned(text))

    def _changed(self) -> None:
        self._changed_at = anyio.current_time()
        self._wake.set()

    # --- ending -------------------------------------------------------------------------------------------------------

    async def _give_back(self) -> None:
        """End everything that was ever submitted for the pool."""
        patience_s = self._lease_s + LEASE_MORE_S
        until = anyio.current_time() + patience_s
        while True:
            try:
                await self._sweep()
                break
            except ProviderError as error:
                if error.retry_after_s is None or anyio.current_time() + error.retry_after_s > until:
                    if not any(each.open or each.job for each in self._submitter.submissions):
                        # Nothing was submitted, so nothing is left; the earlier launch has already raised this error.
                        break
                    left = [f"job {each.job}" for each in self._submitter.submissions if each.job is not None]
                    unsure = any(each.open for each in self._submitter.submissions)
                    raise NotGone(str(error), machines=left, by=time.time() + patience_s, unsure=unsure) from error
                self._warn(f"the end of the pool's jobs is not confirmed yet, and is asked for again ({error})")
                await anyio.sleep(error.retry_after_s)
        try:
            for place in self._places:
                await in_thread(self._journal.settled, self._pool, place)
        except JournalError as error:
            self._warn(str(error))

    async def _sweep(self) -> None:
        """End the known jobs, and search for unknown jobs at the same time.

        The search takes longer than a minute: only then has a call of sbatch without a response certainly ended.
        """
        failures: list[ProviderError] = []

        async def trying(action: Callable[[], Awaitable[None]]) -> None:
            try:
                await action()
            except ProviderError as error:
                failures.append(error)

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(trying, self._endings.end_known)
            tasks.start_soon(trying, self._submitter.look_for_lost)
        if failures:
            raise next((each for each in failures if each.retry_after_s is None), failures[0])
        await self._endings.end_known()  # once more, for the jobs that the search has found
        await self._slurm.remove([each.folder for each in self._submitter.submissions if each.job is not None])


# --- combined launches ------------------------------------------------------------------------------------------------


# Seconds to gather requests: the pool reports the losses of one job's nodes, and requests replacements, one by one.
GATHER_S = 0.05


@dataclass(slots=True, eq=False)
class _Launch:
    request: LaunchRequest
    count: int
    machines: Sequence[Machine] | None = None
    error: ProviderError | None = None
    over: anyio.Event = field(default_factory=anyio.Event)

    def share(self, first: int, count: int) -> Sequence[Machine]:
        if self.error is not None:
            raise self.error
        if self.machines is None:
            raise ProviderError("the call that was to submit the job was cancelled", retry_after_s=0.0)
        return self.machines[first : first + count]


class Gathering:
    """Combines concurrent requests into one call of ``launch``. The first caller waits for further requests, then makes
    the call. If the first caller is cancelled, the other callers get an error that allows a retry.
    """

    def __init__(self, launch: Callable[[LaunchRequest, int], Awaitable[Sequence[Machine]]]) -> None:
        self._launch = launch
        self._open: _Launch | None = None

    async def launch(self, request: LaunchRequest, count: int) -> Sequence[Machine]:
        """Return ``count`` of the machines that the combined launch has created.

        Raises:
            ProviderError: The combined launch failed; each caller gets this error.
        """
        joined = self._open
        if joined is not None and joined.request == request:
            first = joined.count
            joined.count += count
            await joined.over.wait()
            return joined.share(first, count)
        self._open = call = _Launch(request, count)
        try:
            try:
                await anyio.sleep(GATHER_S)
            finally:
                self._open = None if self._open is call else self._open
            call.machines = await self._launch(request, call.count)
        except ProviderError as error:
            call.error = error
        finally:
            call.over.set()
        return call.share(0, count)


# --- ways to a step ---------------------------------------------------------------------------------------------------


PATIENCE_S = 0.5
ASK_S = 3.0  # the limit for one probe, in seconds: a firewall may drop its packets


class WaysIn:
    """A record of the nodes that accept the user's SSH login."""

    def __init__(self) -> None:
        self._probing: set[str] = set()
        self._open: set[str] = set()
        self._ready_at: dict[str, float] = {}
        self._closed = False

    def ask(self, nodes: Iterable[str]) -> list[str]:
        """Return the nodes to probe for SSH now. Call `answered` or `failed` when the probe has ended."""
        new = [] if self._closed else [node for node in nodes if node not in self._probing | self._open]
        self._probing.update(new)
        return new

    def answered(self, nodes: Collection[str], lets_in: Collection[str]) -> None:
        self._probing.difference_update(nodes)
        self._open.update(lets_in)
        self._closed = not self._open

    def failed(self, nodes: Collection[str]) -> None:
        """Record that the probe of these nodes gave no answer."""
        self._probing.difference_update(nodes)

    def by_ssh(self, node: str, now: float) -> bool | None:
        """Return whether to connect to the step on ``node`` by SSH. None: unknown so far. Call only when the step can
        be reached.
        """
        if node in self._open:
            return True
        ready_at = self._ready_at.setdefault(node, now)
        if node in self._probing and now - ready_at < PATIENCE_S:
            return None
        return False


# --- pauses between polls ---------------------------------------------------------------------------------------------


SHARE = 20.0  # the pause is the time since the last change, divided by this number
MOST_S = 60.0
FIRST_LEASE_S = 30.0  # seconds that a step's first lease is longer than later leases: see step_server.py


def queue_pause_s(calm_s: float, *, lease_s: float, least_s: float) -> float:
    """Return the pause (seconds) between polls while all jobs wait in the queue. ``calm_s``: seconds since the last
    change; ``least_s``: the pause while jobs run.
    """
    return max(min(calm_s / SHARE, MOST_S, (lease_s + FIRST_LEASE_S) / 3), least_s)


# --- accounting -------------------------------------------------------------------------------------------------------


# Seconds from the start of closing a pool for which to wait for the nodes' use of processors and memory: Slurm's
# accounting may report it late.
LEAVE_S = 1.0
# The query gets at least this time (seconds), even if closing the pool has already taken longer than `LEAVE_S`.
LEAST_S = 0.4
AGAIN_S = 0.1
DISABLED = "accounting storage is disabled"


async def usage(slurm: SlurmCommands, jobs: Iterable[Job], *, within_s: float) -> Sequence[MachineUsage | UsageUnknown]:
    """Return what the machines of ended jobs have used, and which machines have no figures.

    The query takes at most ``within_s`` seconds, and raises no error that Slurm may have caused.
    """
    ran = {job.id: job for job in jobs if job.node_of}
    if not ran:
        return []
    uses: dict[str, JobUse] = {}
    failure = ""
    try:
        with anyio.move_on_after(within_s):
            while late := [job for job in ran if job not in uses]:
                ended = await slurm.accounting(late)
                if failure := _failure(ended, slurm.where):
                    break
                uses |= {job: use for job, use in read(ended.stdout).items() if job in ran and use.complete}
                if len(uses) < len(ran):
                    await anyio.sleep(AGAIN_S)
    except ProviderError as error:
        failure = str(error)
    return [*_used(ran, uses), *_unknown(ran, uses, failure)]


def _used(ran: dict[str, Job], uses: dict[str, JobUse]) -> Iterator[MachineUsage]:
    for job, use in uses.items():
        for machine, node in ran[job].node_of.items():
            if (of := use.nodes.get(node)) is not None:
                yield MachineUsage(machine, of.seconds, of.cpus, of.cpu_s, of.memory_bytes, of.memory_total_bytes)


def _unknown(ran: dict[str, Job], uses: dict[str, JobUse], failure: str) -> Iterator[UsageUnknown]:
    late = [job for job in ran if job not in uses]
    if late and failure:
        yield UsageUnknown(failure)
    elif late:
        yield UsageUnknown(f"the accounting comes late; ask for it by `sacct --jobs {','.join(late)}`")
    if shrunk := [job for job, use in uses.items() if use.shrunk]:
        yield UsageUnknown(f"Slurm has no figures of steps that ran when their job was shrunk ({_jobs(shrunk)})")
    if lost := [job for job, use in uses.items() if not use.shrunk and {*ran[job].node_of.values()} - {*use.nodes}]:
        yield UsageUnknown(f"the accounting does not have all nodes of {_jobs(lost)}")


def _failure(ended: Ended, where: str) -> str:
    """Return why sacct has failed; empty: it has not failed."""
    if ended.status == 0:
        return ""
    message = " ".join(ended.stderr.split()) or "nothing"
    if DISABLED in message:
        return f"the cluster keeps no accounting (sacct {where}: {message})"
    return f"sacct {where} failed, and said: {message[:300]}"


def _jobs(jobs: Sequence[str]) -> str:
    return f"job{'s' if len(jobs) > 1 else ''} {', '.join(jobs)}"
