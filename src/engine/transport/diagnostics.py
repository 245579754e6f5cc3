"""The diagnostics of one node: profiles, stack traces, samples of the machine's load, and the offset of the node's
clock.

Offset of the clock, estimated from the heartbeat's pings: a ping is sent at ``s``, the node adds its time to the
answer, and the answer arrives at ``r``. The offset is the node's time less the middle of ``s`` and ``r``. Its error is
at most half of the round trip, even if one direction took longer than the other (RFC 5905, section 8, states this for
NTP). Of several recent pings, the one with the shortest round trip is the most exact. As the clocks drift, the errors
of all pings grow at the same rate, so a ping that is less exact than a later ping can be dropped for good. So only a
few pings are kept, and a heartbeat compares only these.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping
from dataclasses import field
from typing import TYPE_CHECKING, Any, cast

from ...actors import events as ev
from ...actors.events import GpuSample, NodeSampled
from ...actors.interfaces import AttemptId, AttemptSeen, NodeId
from ...lazy_dataclass import dataclass
from ...lazy_named_tuple import NamedTuple
from ..api.printable import one_line, plain
from ..wire import messages as wire
from ..wire.messages import Sampled

if TYPE_CHECKING:
    from ...actors.interfaces import Order
    from ..serialization.payload import Received
    from ..serialization.task_payload import Payload


KEPT_PINGS = 64  # only the last 64 answered pings are used: two minutes at one ping each 2 s
UNANSWERED_PINGS = 256  # largest number of unanswered pings to remember
# largest drift between two clocks, in seconds per second. For comparison: NTP assumes a drift of 15 ppm, and corrects a
# clock by up to 500 ppm.
DRIFT = 100e-6


class Offset(NamedTuple):
    """The node's unix time is the client's monotonic time plus ``seconds``, within ``error_s`` either way."""

    seconds: float
    error_s: float


class _AnsweredPing(NamedTuple):
    offset: Offset
    at: float  # time of the client's clock when the ping was sent
    turn: int  # number of pings that were answered before this one


class ClockOffset:
    """The offset of one node's clock. Times in seconds: monotonic for the client, unix time for the node.

    CLOCK-1: the true offset lies within the error of the estimate, if the node's clock has drifted by at most `DRIFT`
    since the ping of the estimate.
    CLOCK-2: after a step of the node's clock, estimates use only pings after the step, as soon as a ping shows the
    step.
    """

    def __init__(self) -> None:
        self._sent: dict[int, float] = {}  # number of a ping -> time when it was sent
        self._last = 0
        self._turns = 0  # number of answered pings
        self._seen: list[_AnsweredPing] = []  # newest last; each ping is more exact than all later pings

    def ping(self, now: float) -> int:
        """Record a ping that is sent now. Return its number, which is unique for this connection."""
        self._last = max(self._last + 1, int(now * 1000))
        self._sent[self._last] = now
        while len(self._sent) > UNANSWERED_PINGS:
            del self._sent[next(iter(self._sent))]
        return self._last

    def pong(self, number: int, clock_s: float, now: float) -> None:
        """Handle the answer to a ping, with the node's time. An answer to an unknown ping is ignored."""
        sent = self._sent.pop(number, None)
        if sent is None or not clock_s:
            return
        # the answers to earlier pings were lost with a connection
        for earlier in [each for each in self._sent if each < number]:
            del self._sent[earlier]
        self._turns += 1
        seen = _AnsweredPing(Offset(clock_s - (sent + now) / 2, (now - sent) / 2), sent, self._turns)
        aged, oldest = _aged(seen, now), self._turns - KEPT_PINGS
        self._seen = [each for each in self._seen if each.turn > oldest and _says_more(_aged(each, now), aged)]
        self._seen.append(seen)

    def estimate(self, now: float) -> Offset | None:
        """Return the best estimate of the offset at time ``now``; None: no ping was answered yet."""
        aged = [_aged(each, now) for each in self._seen]
        return min(aged, key=lambda each: each.error_s, default=None)


def _aged(seen: _AnsweredPing, now: float) -> Offset:
    return Offset(seen.offset.seconds, seen.offset.error_s + max(0.0, now - seen.at) * DRIFT)


def _says_more(one: Offset, newer: Offset) -> bool:
    """Return whether an older ping is still useful: it is more exact than ``newer``, and the clock was not set in
    between.
    """
    return one.error_s < newer.error_s and _agree(one, newer)


def _agree(one: Offset, other: Offset) -> bool:
    """Return whether both estimates can be right: their error ranges overlap."""
    return abs(one.seconds - other.seconds) <= one.error_s + other.error_s


# A node must answer within the duration of a profile and this number of seconds more. The profiled task must end its
# profile within the duration and 70 s more.
PROFILE_MARGIN_S = 80.0
# number of pings at the beginning and at the end of a profile, and seconds between two pings; the ping with the
# shortest round trip gives the offset of the clocks
PINGS, PING_S = 8, 0.05
PROBLEM_CHARS = 2000


class NodeProfiles:
    """The profiles of one node.

    Args:
        node: The node.
        orders: The attempts of the node; an attempt is one try to run a task.
        fetches: Attempt -> its running fetches from the node.
        send: Sends the node a message.
        observe: Receives an event for each profile that has ended.
    """

    def __init__(
        self,
        node: NodeId,
        orders: Mapping[int, Order],
        fetches: Mapping[int, set[asyncio.Task[Received]]],
        send: Callable[[wire.Message], object],
        observe: Callable[[ev.Event], object],
    ) -> None:
        self._node, self._orders, self._fetches, self._send, self._observe = node, orders, fetches, send, observe
        self.clock = ClockOffset()
        self._waiting: dict[tuple[int, str], tuple[Order, asyncio.Future[ev.ProfileTaken]]] = {}
        self._arriving: dict[asyncio.Task[None], tuple[Order, wire.Profiled]] = {}

    def ping(self) -> wire.Ping:
        """Return a ping to send to the node now, and record the time: the answer gives the offset of the clocks."""
        return wire.Ping(self.clock.ping(time.monotonic()))

    def ponged(self, pong: wire.Pong) -> None:
        self.clock.pong(pong.sent_ms, pong.clock_us / 1e6, time.monotonic())

    async def take(self, attempt: int, profile: str, steps: int, seconds: float) -> ev.ProfileTaken:
        """Take a profile of an attempt that runs on the node, and return its result."""
        order = self._orders[attempt]
        future: asyncio.Future[ev.ProfileTaken] = asyncio.get_running_loop().create_future()
        self._waiting[attempt, profile] = order, future
        await self._look_at_clock()
        self._send(wire.Profile(attempt, profile, steps, seconds))
        try:
            async with asyncio.timeout(seconds + PROFILE_MARGIN_S):
                return await future
        except TimeoutError:
            return self._of(order, profile, "", f"its node has not answered within {seconds + PROFILE_MARGIN_S:g} s")
        finally:
            self._waiting.pop((attempt, profile), None)

    def received(self, message: wire.Profiled) -> None:
        """Handle the end of a profile, including a profile that a task has started itself."""
        waiting = self._waiting.get((message.attempt, message.profile))
        if waiting is not None:
            task = asyncio.get_running_loop().create_task(self._arrive(waiting[0], message))
            self._arriving[task] = waiting[0], message
        elif (order := self._orders.get(message.attempt)) is not None:
            self._arrived(order, message)

    def close(self) -> None:
        for task, arriving in [*self._arriving.items()]:
            task.cancel()
            self._arrived(*arriving)
        self._arriving.clear()
        for (_, profile), (order, future) in self._waiting.items():
            if not future.done():
                future.set_result(self._of(order, profile, "", "its node was lost"))

    async def _arrive(self, order: Order, message: wire.Profiled) -> None:
        """Report the profile once its file (artifact) is stored in the record, the folder of the run."""
        if fetching := {*self._fetches.get(message.attempt, ())}:
            await asyncio.wait(fetching)
        await self._look_at_clock()
        self._arriving.pop(cast("asyncio.Task[None]", asyncio.current_task()), None)
        self._arrived(order, message)

    def _arrived(self, order: Order, message: wire.Profiled) -> None:
        taken = self._of(order, message.profile, message.artifact, message.problem)
        self._observe(taken)
        _, future = self._waiting.get((message.attempt, message.profile), (None, None))
        if future is not None and not future.done():
            future.set_result(taken)

    async def _look_at_clock(self) -> None:
        for _ in range(PINGS):
            self._send(self.ping())
            await asyncio.sleep(PING_S)

    def _of(self, order: Order, profile: str, artifact: str, problem: str) -> ev.ProfileTaken:
        payload, world, now = cast("Payload", order.task.content), order.world, time.monotonic()
        offset = self.clock.estimate(now)
        return ev.ProfileTaken(
            int(order.task.job),
            int(self._node),
            order.rank,
            one_line(profile),
            one_line(artifact),
            one_line(problem[:PROBLEM_CHARS]),
            one_line(payload.name),
            ranks=1 if world is None else world.size,
            generation=0 if world is None else world.generation,
            clock_offset_s=None if offset is None else offset.seconds - (time.time() - now),
            clock_error_s=None if offset is None else offset.error_s,
        )


STACKS_WITHIN_S = 5.0  # seconds for a node to answer; each process of the node has 1 s


@dataclass(slots=True)
class _Question:
    answered: Callable[[Mapping[AttemptId, AttemptSeen]], object]
    timer: asyncio.TimerHandle
    answers: dict[AttemptId, AttemptSeen] = field(default_factory=dict)


class NodeStacks:
    """The stack traces of one node. ``orders``: its attempts; messages about other attempts are ignored."""

    def __init__(self, orders: Mapping[int, Order], send: Callable[[wire.Message], object]) -> None:
        self._orders, self._send = orders, send
        self._loop = asyncio.get_running_loop()
        self._last = 0  # number of the last request
        self._questions: dict[int, _Question] = {}
        self._closed = False
        self.signs: dict[int, float] = {}  # attempt that has not ended -> loop time of its last output

    def heard(self, attempt: int) -> None:
        """Note that an attempt has sent output."""
        if attempt in self._orders:
            self.signs[attempt] = self._loop.time()

    def ask(self, answered: Callable[[Mapping[AttemptId, AttemptSeen]], object], *, quiet_s: float = 0.0) -> None:
        """Request the stack traces of all attempts on the node, except those that were active within ``quiet_s``.

        The loop calls ``answered`` once: when all attempts have answered, after `WITHIN_S`, or when the node is lost.
        """
        if self._closed:
            self._loop.call_soon(answered, {})
            return
        self._last += 1
        number = self._last
        timer = self._loop.call_later(STACKS_WITHIN_S, self._finish, number)
        self._questions[number] = _Question(answered, timer)
        self._send(wire.ShowStacks(number, int(quiet_s * 1e6)))

    def received(self, message: wire.Stacks) -> None:
        question = self._questions.get(message.number)
        if question is None:
            return  # the answer is late, or no request has this number
        if message.attempt is None:
            self._finish(message.number)
        elif message.attempt in self._orders:
            attempt = AttemptId(message.attempt)
            heard_s, quiet_s = self.quiet_s(attempt), message.quiet_us / 1e6
            sight = AttemptSeen(_safe(message.text), quiet_s if heard_s is None else min(heard_s, quiet_s))
            question.answers.setdefault(attempt, sight)

    def close(self) -> None:
        self._closed = True
        for number in list(self._questions):
            self._finish(number)

    def quiet_s(self, attempt: int) -> float | None:
        """Return the seconds since the attempt's last output; None: it has sent none."""
        at = self.signs.get(attempt)
        return None if at is None else self._loop.time() - at

    def _finish(self, number: int) -> None:
        question = self._questions.pop(number)
        question.timer.cancel()
        self._loop.call_soon(question.answered, question.answers)


def _safe(text: str) -> str:
    """Return a node's text without control characters and cut to a maximum length, in case the node did not do so."""
    from ..node.stack_text import bounded  # few programs need this import

    return bounded(plain(bounded(text)))


MOST_GPUS = 64  # GPUs of a node, at most; `node.sampler` sends no more
SAMPLE_BURST = 10  # number of samples that may arrive together, for example after the connection was slow


class SampleIntake:
    """Receives one node's samples of its load. ``every_s``: the requested interval; None: no samples."""

    def __init__(
        self,
        node: NodeId,
        every_s: float | None,
        observe: Callable[[NodeSampled], object],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._node, self._every_s, self._observe, self._clock = node, every_s, observe, clock
        self._left, self._at = float(SAMPLE_BURST), clock()

    def received(self, sampled: Sampled) -> None:
        if self._every_s is None or len(sampled.gpus) > MOST_GPUS:
            return
        now = self._clock()
        self._left = min(SAMPLE_BURST, self._left + 2 * (now - self._at) / self._every_s)
        self._at = now
        if self._left < 1:
            return
        self._left -= 1
        self._observe(sample_event(self._node, sampled))


def sample_event(node: NodeId, sampled: Sampled) -> NodeSampled:
    fields: dict[str, Any] = sampled._asdict() | {"gpus": tuple(GpuSample(*gpu) for gpu in sampled.gpus)}
    return NodeSampled(node, **fields)
