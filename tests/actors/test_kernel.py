"""Actors: one message at a time, the asker hears of a crash, restarts are counted, nothing is left."""

from __future__ import annotations

from dataclasses import dataclass

import anyio
import pytest

from outrider.actors.kernel import (
    BATCH,
    ActorStopped,
    MailboxFull,
    Request,
    Restart,
    RestartsExhausted,
    sole,
    supervisor,
)

pytestmark = pytest.mark.anyio


@dataclass(frozen=True)
class Add(Request[int]):
    n: int


@dataclass(frozen=True)
class Crash(Request[None]):
    pass


@dataclass(frozen=True)
class CrashLater(Request[None]):
    pass


@dataclass(frozen=True)
class Keep(Request[None]):
    """Never answered."""


@dataclass
class Note:
    text: str
    bounced: list[tuple[str, Exception]]

    def bounce(self, error):
        self.bounced.append((self.text, error))


class Counter:
    incarnations: list[Counter] = []  # noqa: RUF012

    def __init__(self, context):
        self.context, self.total, self.ended, self.notes = context, 0, [], []
        self.incarnations.append(self)

    def receive(self, message):
        match message:
            case Add(n, reply=reply):
                self.total += n
                reply.send(self.total)
            case Crash():
                raise ValueError("boom")
            case CrashLater():
                self.context.tasks.start_soon(self.crash)
            case Keep():
                pass
            case Note(text):
                self.notes.append(text)

    async def crash(self):
        await anyio.sleep(1)
        raise ValueError("boom")

    def stopped(self, error):
        self.ended.append(error)


@pytest.fixture(autouse=True)
def _fresh():
    Counter.incarnations = []


async def test_ask_returns_the_answer():
    async with supervisor() as actors:
        ref = actors.spawn("c", Counter)
        assert await ref.ask(Add(2), within_s=1) == 2
        assert await ref.ask(Add(3), within_s=1) == 5


async def test_a_crash_fails_the_asker_with_the_real_error_and_restarts_with_fresh_state():
    async with supervisor() as actors:
        ref = actors.spawn("c", Counter, restart=Restart(limit=1))
        await ref.ask(Add(2), within_s=1)
        with pytest.raises(ValueError, match="boom"):
            await ref.ask(Crash(), within_s=1)
        assert await ref.ask(Add(3), within_s=1) == 3
        first, second = Counter.incarnations
        assert [type(error) for error in first.ended] == [ValueError]
        assert second.ended == []


@pytest.mark.parametrize("crash", [Crash, CrashLater])
async def test_a_crash_fails_what_was_asked_before_and_keeps_what_is_queued(crash):
    async with supervisor() as actors, anyio.create_task_group() as tasks:
        ref = actors.spawn("c", Counter, restart=Restart(limit=1))
        failed = []

        async def wait():
            with pytest.raises(ValueError, match="boom"):
                await ref.ask(Keep())
            failed.append(True)

        tasks.start_soon(wait)
        await anyio.wait_all_tasks_blocked()
        ref.tell(crash())
        ref.tell(queued := Add(1))
        await anyio.sleep(2)
        assert failed == [True]
        if crash is Crash:
            assert await queued.reply.wait() == 1


async def test_exhausted_restarts_raise_out_of_the_supervisor_with_their_cause():
    with pytest.raises(ExceptionGroup) as caught:
        async with supervisor() as actors:
            ref = actors.spawn("c", Counter, restart=Restart(limit=1, within_s=60))
            ref.tell(Crash())
            ref.tell(Crash())
            await anyio.sleep_forever()
    error = sole(caught.value)
    assert isinstance(error, RestartsExhausted)
    assert isinstance(error.__cause__, ValueError)


async def test_failures_outside_the_window_do_not_count():
    async with supervisor() as actors:
        ref = actors.spawn("c", Counter, restart=Restart(limit=1, within_s=60, delay_s=1))
        for _ in range(5):
            ref.tell(Crash())
            await anyio.sleep(61)
        assert await ref.ask(Add(1), within_s=1) == 1
        assert len(Counter.incarnations) == 6


async def test_a_restart_waits_its_delay():
    async with supervisor() as actors:
        ref = actors.spawn("c", Counter, restart=Restart(limit=1, delay_s=5))
        began = anyio.current_time()
        ref.tell(Crash())
        assert await ref.ask(Add(1)) == 1
        assert anyio.current_time() - began == pytest.approx(5)


async def test_stopping_bounces_what_is_queued_and_refuses_what_comes():
    bounced = []
    async with supervisor() as actors:
        ref = actors.spawn("c", Counter)
        await ref.ask(Add(1))
        ref.stop()
        ref.tell(Note("queued", bounced))
        await anyio.wait_all_tasks_blocked()
        with pytest.raises(ActorStopped):
            ref.tell(Note("late", bounced))
        with pytest.raises(ActorStopped):
            await ref.ask(Add(1))
    ((text, error),) = bounced
    assert (text, type(error)) == ("queued", ActorStopped)


async def test_leaving_fails_whoever_still_waits_for_an_answer():
    outcome = []

    async def wait(ref):
        try:
            await ref.ask(Keep())
        except ActorStopped as error:
            outcome.append(error)

    async with anyio.create_task_group() as tasks, supervisor() as actors:
        tasks.start_soon(wait, actors.spawn("c", Counter))
        await anyio.wait_all_tasks_blocked()
    assert [str(error) for error in outcome] == ["c"]


async def test_a_full_mailbox_raises():
    async with supervisor() as actors:
        ref = actors.spawn("c", Counter, capacity=2)
        ref.tell(Add(1))
        ref.tell(Add(1))
        with pytest.raises(MailboxFull):
            ref.tell(Add(1))


async def test_nobody_waits_longer_than_asked_to():
    async with supervisor() as actors:
        ref = actors.spawn("c", Counter)
        with pytest.raises(TimeoutError):
            await ref.ask(Keep(), within_s=3)
        assert anyio.current_time() >= 3


async def test_a_long_queue_leaves_room_for_others():
    async with supervisor() as actors:
        ref = actors.spawn("c", Counter, capacity=10 * BATCH)
        for _ in range(5 * BATCH):
            ref.tell(Note("n", []))
        await anyio.lowlevel.checkpoint()
        await anyio.lowlevel.checkpoint()
        assert len(Counter.incarnations[0].notes) < 5 * BATCH


async def test_an_idle_actor_that_is_handed_a_message_handles_it_at_once():
    async with supervisor() as actors:
        ref = actors.spawn("c", Counter)
        await ref.ask(Add(1))
        await anyio.wait_all_tasks_blocked()
        ref.tell_inline(Note("now", []))
        assert Counter.incarnations[0].notes == ["now"]


async def test_what_is_handed_keeps_its_place_behind_what_was_told():
    async with supervisor() as actors:
        ref = actors.spawn("c", Counter)
        await ref.ask(Add(1))
        await anyio.wait_all_tasks_blocked()
        ref.tell(Note("told", []))
        ref.tell_inline(Note("handed", []))
        assert Counter.incarnations[0].notes == []
        await ref.ask(Add(1))
        assert Counter.incarnations[0].notes == ["told", "handed"]


async def test_a_crash_over_a_handed_message_is_the_supervisors_and_not_the_tellers():
    async with supervisor() as actors:
        ref = actors.spawn("c", Counter, restart=Restart(limit=1))
        await ref.ask(Add(1))
        await anyio.wait_all_tasks_blocked()
        crash = Crash()
        ref.tell_inline(crash)
        with pytest.raises(ValueError, match="boom"):
            await crash.reply.wait()
        assert await ref.ask(Add(1)) == 1
        assert len(Counter.incarnations) == 2


async def test_a_stop_right_after_a_handed_crash_still_ends_it():
    async with supervisor() as actors:
        ref = actors.spawn("c", Counter, restart=Restart(limit=1))
        await ref.ask(Add(1))
        await anyio.wait_all_tasks_blocked()
        ref.tell_inline(Crash())
        ref.stop()
        await anyio.wait_all_tasks_blocked()
        with pytest.raises(ActorStopped):
            ref.tell_inline(Add(1))


def test_a_group_of_one_is_the_one():
    one = ValueError()
    assert sole(ExceptionGroup("", [ExceptionGroup("", [one])])) is one
    two = ExceptionGroup("", [one, KeyError()])
    assert sole(two) is two
