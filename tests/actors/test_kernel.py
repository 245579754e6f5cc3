"""Actors: one message at a time, whoever waits hears of a crash, and nothing is left."""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import dataclass

import anyio
import pytest

from outrider.actors.kernel import (
    BATCH,
    ActorFailed,
    ActorStopped,
    MailboxFull,
    Request,
    running,
    sole,
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
    def __init__(self, context):
        self.context, self.total, self.ended, self.notes = context, 0, [], []

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


class Made:
    """Makes a `Counter`, and keeps it for the test."""

    def __call__(self, context):
        self.actor = Counter(context)
        return self.actor


@pytest.fixture
def made():
    return Made()


@contextmanager
def failing():
    """The block's actor fails by a ValueError."""
    with pytest.raises(ExceptionGroup) as caught:
        yield
    error = sole(caught.value)
    assert isinstance(error, ActorFailed)
    assert isinstance(error.__cause__, ValueError)


async def test_ask_returns_the_answer(made):
    async with running("c", made) as ref:
        assert await ref.ask(Add(2), within_s=1) == 2
        assert await ref.ask(Add(3), within_s=1) == 5


@pytest.mark.parametrize("crash", [Crash, CrashLater])
async def test_a_crash_raises_out_of_the_block_and_the_actor_hears_of_it(crash, made):
    with failing():
        async with running("c", made) as ref:
            ref.tell(crash())
            await anyio.sleep_forever()
    assert [type(error) for error in made.actor.ended] == [ValueError]


async def test_a_crash_fails_the_asker_with_the_real_error(made):
    async def ask(ref):
        with anyio.CancelScope(shield=True), pytest.raises(ValueError, match="boom"):
            await ref.ask(Crash(), within_s=1)

    with failing():
        async with running("c", made) as ref:
            await ask(ref)


async def test_a_crash_fails_what_was_asked_before_and_bounces_what_is_queued(made):
    outcomes, bounced = [], []

    async def wait(ref):
        try:
            await ref.ask(Keep())
        except ValueError as error:
            outcomes.append(error)

    async with anyio.create_task_group() as tasks:
        with failing():
            async with running("c", made) as ref:
                tasks.start_soon(wait, ref)
                await anyio.wait_all_tasks_blocked()
                ref.tell(Crash())
                ref.tell(Note("queued", bounced))
                await anyio.sleep_forever()
    assert [str(error) for error in outcomes] == ["boom"]
    assert [(text, type(error)) for text, error in bounced] == [("queued", ActorStopped)]


async def test_leaving_bounces_what_is_queued_and_refuses_what_comes(made):
    bounced = []
    async with running("c", made) as ref:
        await ref.ask(Add(1))
        for text in [*["in time"] * BATCH, "queued"]:
            ref.tell(Note(text, bounced))
    with pytest.raises(ActorStopped):
        ref.tell(Note("late", bounced))
    with pytest.raises(ActorStopped):
        await ref.ask(Add(1))
    ((text, error),) = bounced
    assert (text, type(error)) == ("queued", ActorStopped)
    assert made.actor.ended == [None]


async def test_leaving_fails_whoever_still_waits_for_an_answer(made):
    outcome = []

    async def wait(ref):
        try:
            await ref.ask(Keep())
        except ActorStopped as error:
            outcome.append(error)

    async with anyio.create_task_group() as tasks, running("c", made) as ref:
        tasks.start_soon(wait, ref)
        await anyio.wait_all_tasks_blocked()
    assert [str(error) for error in outcome] == ["c"]


async def test_what_is_slow_to_end_holds_up_no_asker(made):
    began = anyio.current_time()
    ended = []

    async def closing():
        try:
            await anyio.sleep_forever()
        finally:
            with anyio.CancelScope(shield=True):
                await anyio.sleep(5)
            ended.append(anyio.current_time() - began)

    async def wait(ref):
        with pytest.raises(ValueError, match="boom"):
            await ref.ask(Keep())
        ended.append(anyio.current_time() - began)

    async with anyio.create_task_group() as tasks:
        with failing():
            async with running("c", made) as ref:
                tasks.start_soon(wait, ref)
                await anyio.wait_all_tasks_blocked()
                made.actor.context.children.start_soon(closing)
                await anyio.wait_all_tasks_blocked()
                ref.tell(Crash())
                await anyio.sleep_forever()
    assert ended == [pytest.approx(0), pytest.approx(5)]


async def test_a_full_mailbox_raises(made):
    async with running("c", made, capacity=2) as ref:
        ref.tell(Add(1))
        ref.tell(Add(1))
        with pytest.raises(MailboxFull):
            ref.tell(Add(1))


async def test_nobody_waits_longer_than_asked_to(made):
    async with running("c", made) as ref:
        with pytest.raises(TimeoutError):
            await ref.ask(Keep(), within_s=3)
        assert anyio.current_time() >= 3


async def test_a_long_queue_leaves_room_for_others(made):
    async with running("c", made, capacity=10 * BATCH) as ref:
        for _ in range(5 * BATCH):
            ref.tell(Note("n", []))
        await anyio.lowlevel.checkpoint()
        await anyio.lowlevel.checkpoint()
        assert len(made.actor.notes) < 5 * BATCH


async def test_an_idle_actor_that_is_handed_a_message_handles_it_at_once(made):
    async with running("c", made) as ref:
        await ref.ask(Add(1))
        await anyio.wait_all_tasks_blocked()
        ref.tell_inline(Note("now", []))
        assert made.actor.notes == ["now"]


async def test_what_is_handed_keeps_its_place_behind_what_was_told(made):
    async with running("c", made) as ref:
        await ref.ask(Add(1))
        await anyio.wait_all_tasks_blocked()
        ref.tell(Note("told", []))
        ref.tell_inline(Note("handed", []))
        ref.tell_inline(Note("handed too", []))
        assert made.actor.notes == ["told", "handed", "handed too"]
        ref.tell(Note("told again", []))
        await anyio.wait_all_tasks_blocked()
        ref.tell_inline(Note("at rest", []))
        assert made.actor.notes == ["told", "handed", "handed too", "told again", "at rest"]


async def test_what_is_handed_behind_much_mail_is_queued(made):
    async with running("c", made) as ref:
        await ref.ask(Add(1))
        await anyio.wait_all_tasks_blocked()
        for _ in range(BATCH):
            ref.tell(Note("told", []))
        ref.tell_inline(Note("handed", []))
        assert made.actor.notes == []
        await ref.ask(Add(1))
        assert made.actor.notes == [*["told"] * BATCH, "handed"]


async def test_a_message_behind_one_that_crashes_the_actor_is_never_handled(made):
    crash, behind = Crash(), Add(1)
    with failing():
        async with running("c", made) as ref:
            await ref.ask(Add(1))
            await anyio.wait_all_tasks_blocked()
            ref.tell(crash)
            ref.tell_inline(behind)
            with anyio.CancelScope(shield=True), pytest.raises(ValueError, match="boom"):
                await crash.reply.wait()
            await anyio.sleep_forever()
    with pytest.raises(ActorStopped):
        await behind.reply.wait()


async def test_a_crash_over_a_handed_message_is_the_actors_and_not_the_tellers(made):
    crash = Crash()
    with failing():
        async with running("c", made) as ref:
            await ref.ask(Add(1))
            await anyio.wait_all_tasks_blocked()
            ref.tell_inline(crash)
            with anyio.CancelScope(shield=True), pytest.raises(ValueError, match="boom"):
                await crash.reply.wait()
            await anyio.sleep_forever()
    assert [type(error) for error in made.actor.ended] == [ValueError]


async def test_leaving_right_after_a_handed_crash_hides_it_not(made):
    with failing():
        async with running("c", made) as ref:
            await ref.ask(Add(1))
            await anyio.wait_all_tasks_blocked()
            ref.tell_inline(Crash())
    with pytest.raises(ActorStopped):
        ref.tell_inline(Add(1))


async def test_what_an_actor_supervises_lives_no_longer_than_it(made):
    ended = []

    async def below():
        try:
            await anyio.sleep_forever()
        finally:
            ended.append(True)

    async with running("c", made) as ref:
        await ref.ask(Add(1))
        made.actor.context.children.start_soon(below)
        await anyio.wait_all_tasks_blocked()
    assert ended == [True]


async def test_what_fails_below_an_actor_ends_it(made):
    async def below():
        raise ActorFailed("below") from ValueError("boom")

    with failing():
        async with running("c", made) as ref:
            await ref.ask(Add(1))
            made.actor.context.children.start_soon(below)
            await anyio.sleep_forever()
    with pytest.raises(ActorStopped):
        ref.tell(Add(1))


def test_a_group_of_one_is_the_one():
    one = ValueError()
    assert sole(ExceptionGroup("", [ExceptionGroup("", [one])])) is one
    two = ExceptionGroup("", [one, KeyError()])
    assert sole(two) is two
