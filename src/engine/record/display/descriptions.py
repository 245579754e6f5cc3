"""Conversion of events to text: one line for each event that is interesting for people."""

from __future__ import annotations

import time
from collections import deque
from dataclasses import replace

from ....actors import events as ev
from ...api.printable import one_line
from ...api.quantities import cents, clock_time, count, percent, seconds, size

LONG_S = 5.0  # minimum duration of a step of preparing a node, in seconds, for which a line is shown
REMEMBERED = 50  # maximum number of failure causes that are remembered, in order not to repeat them
NEWS = 3  # maximum number of lines about new queue reasons within `QUEUE_S`
# minimum time in seconds between two lines about other changes in a queue, such as new expected start times
QUEUE_S = 60.0
# only failure causes of at least this length are searched for inside other causes; shorter texts may match by chance
REPEATED_CHARS = 20
RANKS_NAMED = 4  # maximum number of failed ranks that a line names


class Descriptions:
    """Converts the events of one pool to lines.

    If a cause was already shown in an earlier line, the new line only refers to that line.
    """

    def __init__(self) -> None:
        self._subjects: dict[str, str] = {}  # cause -> the node or launch that the line with this cause was about
        self._queue = _Queue()
        self._waits: dict[int, str] = {}  # job of a waiting broadcast -> reason of its wait, as shown in a line

    def line(self, event: ev.Event) -> str | None:
        if isinstance(event, ev.NodeFailed):
            event = replace(event, cause=self._once(event.cause, f"node {event.node}"))
        elif isinstance(event, ev.LaunchFailed):
            event = replace(event, error=self._once(event.error, "an earlier launch"))
        elif isinstance(event, ev.BroadcastWaits) and not self._is_new(event):
            return None
        elif isinstance(event, ev.NodeQueued):
            return self._queue.line(event)
        elif isinstance(event, ev.NodeStarted | ev.NodeReady | ev.NodeFailed | ev.NodeDismissed):
            self._queue.left(event)
        return describe(event)

    def _is_new(self, event: ev.BroadcastWaits) -> bool:
        """Return whether to show a line about this wait. Broadcasts that wait for the same reason share one line."""
        has_line = event.job in self._waits
        if event.ended:
            self._waits.pop(event.job, None)
        elif has_line or event.reason not in self._waits.values():
            self._waits[event.job] = event.reason
            return True
        return has_line

    def _once(self, cause: str, subject: str) -> str:
        """Return the cause. The text that an earlier line already contains is replaced by "the same as for ..."."""
        for earlier, of in self._subjects.items():
            if earlier == cause or (len(earlier) >= REPEATED_CHARS and earlier in cause):
                return cause.replace(earlier, f"the same as for {of}")
        if cause:
            self._subjects[cause] = subject
        if len(self._subjects) > REMEMBERED:
            del self._subjects[next(iter(self._subjects))]
        return cause


class _Queue:
    """The lines about machines that wait in a provider's queue: one line per reason, which many machines may share.

    A scheduler may change the reasons and expected start times of many machines at once. So the number of lines per
    minute is limited.
    """

    def __init__(self) -> None:
        self._waiting: dict[int, ev.NodeQueued] = {}
        self._reported: set[str] = set()  # reasons for which a line was shown
        self._hidden = False  # whether a new reason was not shown since the last line, because of the limit
        self._last = ""  # the last line shown
        self._reported_at: deque[float] = deque(maxlen=NEWS)

    def line(self, event: ev.NodeQueued) -> str | None:
        self._waiting[event.node] = event
        news = event.reason not in self._reported
        line = queued(event) if news and not self._hidden else self._of_all(event)
        often = len(self._reported_at) == NEWS and event.at - self._reported_at[0] < QUEUE_S
        early = bool(self._reported_at) and event.at - self._reported_at[-1] < QUEUE_S
        if line == self._last or (often if news else early):
            self._hidden |= news
            return None
        self._hidden = False
        self._reported.add(event.reason)
        self._reported_at.append(event.at)
        self._last = line
        return line

    def left(self, event: ev.NodeEvent) -> None:
        """Handle that a machine has left the queue. No effect if the machine was not in the queue."""
        self._waiting.pop(event.node, None)
        if isinstance(event, ev.NodeStarted) or not self._waiting:
            self._reported.clear()
            self._last = ""

    def _of_all(self, event: ev.NodeQueued) -> str:
        if len(self._waiting) == 1:
            return queued(event)
        starts = [each.starts_at for each in self._waiting.values() if each.starts_at is not None]
        first = f", first expected {clock_time(min(starts), event.at or time.time())}" if starts else ""
        return f"{count(len(self._waiting), 'machine')} are in the queue: {_line(event.reason)}{first}"


def describe(event: ev.Event) -> str | None:
    """Return one printable line that describes an event; None for events that only programs need."""
    match event:
        case ev.NodeEvent():
            return _of_node(event)
        case ev.JobEvent():
            return _of_job(event)
        case _:
            return _of_pool(event)


def _of_pool(event: ev.Event) -> str | None:  # noqa: PLR0911, PLR0912 - a table
    match event:
        case ev.PoolStarting(wanted=0):
            return f"starting without nodes ({_line(event.provider)})"
        case ev.PoolStarting():
            return f"starting {count(event.wanted, 'node')} ({_line(event.provider)})"
        case ev.PoolReady(wanted=0):
            return f"ready after {seconds(event.took_s)}: nodes start when there is work"
        case ev.PoolReady():
            return f"{event.ready} of {count(event.wanted, 'node')} ready after {seconds(event.took_s)}"
        case ev.PoolResized():
            return f"resizing to {count(event.wanted, 'node')}"
        case ev.PoolScaled():
            way = "growing" if event.wanted > event.before else "shrinking"
            return f"{way} from {event.before} to {count(event.wanted, 'node')}: {_line(event.reason)}"
        case ev.BudgetMostlySpent():
            return f"{cents(event.spent)} of {cents(event.limit)} USD are spent, at {cents(event.hourly)} USD per hour"
        case ev.PoolIdleTooLong():
            return f"the pool has done nothing for {seconds(event.idle_s)}, its max_idle: it is ended"
        case ev.LaunchFailed():
            again = "not tried again" if event.retry_in_s is None else f"next try in {seconds(event.retry_in_s)}"
            return f"launch failed: {_line(event.error)}; {again}"
        case ev.TerminateFailed():
            return f"{count(len(event.machines), 'machine')} could not be ended yet: {_line(event.error)}"
        case ev.ProviderWarned():
            return _line(event.text)
        case ev.PoolUsed(nodes=used) if used:
            return pool_use(event)
        case ev.Stalled():
            return _stalled(event)
        case ev.BroadcastWaits():
            what = f"broadcast {one_line(event.function) or event.job}"
            if event.ended:
                return f"{what} waits no more: after {seconds(event.waited_s)} for {_line(event.reason)}"
            return f"{what} has waited {seconds(event.waited_s)} for {_line(event.reason)}"
        case ev.RecordFailed():
            return f"this run is not recorded: {_line(event.error)}; OUTRIDER_RUNS=0 turns records off"
        case ev.TrackerBehind():
            return _tracker(event)
        case ev.TransferRerouted():
            return _rerouted(event)
        case ev.RemakeStarted():
            what = f"what {one_line(event.function)} has returned on node {event.node} is not there any more"
            return f"{what}, and is made again ({event.number} of at most {count(event.times, 'time')})"
        case ev.NetworkSilent():
            return f"none of {count(event.nodes, 'node')} answers: is this computer's network up?"
        case _:
            return None


def _of_node(event: ev.NodeEvent) -> str | None:  # noqa: PLR0911 - a table
    match event:
        case ev.NodeQueued():
            return queued(event)
        case ev.NodeLate():
            silent = f"node {event.node} has not answered in {seconds(event.waited_s)}"
            return f"{silent}, others took {seconds(event.others_s)}: another machine is asked for"
        case ev.NodePreparing() if event.took_s is not None and event.took_s >= LONG_S:
            return f"node {event.node}: {_line(event.phase)} took {seconds(event.took_s)}"
        case ev.VersionsDiffer():
            rows = "".join(f"\n  {one_line(row)}" for row in event.table.splitlines())
            return f"node {event.node} has other versions than this program:{rows}"
        case ev.NodeStandby():
            return f"node {event.node} stands by"
        case ev.NodeSuspect():
            return f"node {event.node} does not answer: {_line(event.cause)}"
        case ev.NodeResumed():
            return f"node {event.node} answers again, nothing was lost"
        case ev.NodeNoticed():
            return f"node {event.node} will be taken in {seconds(event.seconds)} ({_line(event.source)})"
        case ev.NodeNoticeWithdrawn():
            return f"node {event.node} stays after all ({_line(event.source)})"
        case ev.NodeFailed():
            return f"node {event.node} did not start: {_line(event.cause)}"
        case ev.NodeLost():
            return f"node {event.node} lost: {_line(event.cause)}"
        case _:
            return None


def pool_use(event: ev.PoolUsed) -> str:
    """Return how much of the nodes was used: "2 nodes have used 43 % of their processors and 20 % of their memory"."""
    used = [(event.cpu, "processors"), (event.memory, "memory")]
    amounts = " and ".join(
        f"{percent(part)} of {'its' if event.nodes == 1 else 'their'} {of}" for part, of in used if part is not None
    )
    unknown = f"; not known of all: {_line(event.unknown)}" if event.unknown else ""
    return f"{count(event.nodes, 'node')} {'has' if event.nodes == 1 else 'have'} used {amounts or 'nothing'}{unknown}"


def queued(event: ev.NodeQueued) -> str:
    """Return why a node waits: "in the queue: job 4711 pending: Priority, expected 14:20".

    The expected start is in local time.
    """
    waits = f"in the queue: {_line(event.reason)}"
    if event.starts_at is None:
        return waits
    return f"{waits}, expected {clock_time(event.starts_at, event.at or time.time())}"


def _of_job(event: ev.JobEvent) -> str | None:
    match event:
        case ev.TaskRetried():
            return f"task {event.task} runs again, attempt {event.number}: {_line(event.cause)}"
        case ev.GenerationLost(nodes=()):
            return f"broadcast {event.job}: {_line(event.cause)}"
        case ev.GenerationLost():
            lost = f"{'nodes' if len(event.nodes) > 1 else 'node'} {', '.join(map(str, event.nodes))}"
            return f"broadcast {event.job} lost {lost}: {_line(event.cause)}"
        case ev.GenerationStarted() if event.generation > 1:
            ranks = count(len(event.ranks), "rank")
            return f"broadcast {event.job} runs again on {ranks}, generation {event.generation}"
        case _:
            return None


def failure_line(event: ev.JobFailed) -> str:
    """Return a failure as a line: ``f #7 failed on node 2: ValueError: bad luck``.

    For a broadcast, it names the ranks.
    """
    function, error = one_line(event.function), one_line(event.error)
    if not event.ranks:
        return f"{function} #{event.job} failed on node {event.node}: {error}"
    if len(event.ranks) == 1:
        return f"{function}: rank {event.ranks[0]} failed on node {event.node}: {error}"
    named = ", ".join(map(str, event.ranks[:RANKS_NAMED]))
    more = len(event.ranks) - RANKS_NAMED
    return f"{function}: ranks {named}{f' and {more} more' if more > 0 else ''} failed: {error}"


def _stalled(event: ev.Stalled) -> str:
    of = f"{len(event.ranks)} ranks of " if len(event.ranks) > 1 else ""
    text = f"{of}{one_line(event.function) or f'job {event.job}'}: no sign of life for {seconds(event.quiet_s)}"
    text += "" if event.rank is None else f"; rank {event.rank} is stuck: {_line(event.reason)}"
    return f"{text}; it is run again" if event.restart else text


def _tracker(event: ev.TrackerBehind) -> str:
    lacks = count(event.points, "point") if event.points else "something"
    text = f"{_line(event.tracker)} lacks {lacks} of this run"
    text += f" ({_line(event.problem)})" if event.problem else ""
    return f"{text}: {_line(event.command)} sends it" if event.command else text


def _rerouted(event: ev.TransferRerouted) -> str:
    rest = size(event.size_bytes - event.have_bytes)
    instead = "this program" if event.instead is None else f"node {event.instead}"
    line = f"node {event.node} gets the rest of an object, {rest}, from {instead} instead of node {event.source}"
    line = f"{line}: {_line(event.reason)}"
    return f"{line}; nodes do not reach each other, so this program sends each of them all" if event.apart else line


def upload(event: ev.UploadProgress) -> str:
    """Return the progress of sending large arguments: "sending 1.2 GB of arguments to 4 nodes: 43 %, 85.0 MB/s".

    Empty if no arguments arrived because their nodes were lost.
    """
    if not event.total_bytes:
        return ""
    what = f"{size(event.total_bytes)} of arguments to {count(event.nodes, 'node')}"
    rate = f"{size(event.sent_bytes / event.took_s)}/s" if event.took_s > 0 else ""
    if event.ended:
        return f"{what} took {seconds(event.took_s)}: {rate}"
    done = 100 * event.sent_bytes // max(1, event.total_bytes)
    return f"sending {what}: {done} %, {rate}"


def _line(text: str) -> str:
    return one_line(text) or "unknown cause"
