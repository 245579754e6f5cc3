"""Find and end everything of a pool, and confirm that it is gone: for a pool that closes, and for a dead one.

Machines come first, because they cost the most and use the rest; then the things they were made with. Only the cloud's
answers count: a machine is gone when it is shown as terminated, or is not shown for `GRACE_S`.
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import field

import anyio

from ...lazy_dataclass import dataclass
from ..errors import NotGone, ProviderError
from ..journal import Intent, Journal
from ..resource_ownership import Claim, Others, Thing
from .end_tracker import CONFIRM_S, EndTracker
from .failures import CallRefused
from .instance_inventory import InstanceView
from .port import Cloud, Leftover, Removed
from .written import Written, settle, written_of

AGAIN_S = (0.2, 0.4, 0.8, 1.0)  # pauses between requests; the last one repeats

Warn = Callable[[str], object]


def _unheard(text: str) -> None:
    """Drop warnings, for callers that wait for the end anyway."""


@dataclass(frozen=True, slots=True)
class Swept:
    """The resources that existed, and are confirmed to be gone. ``others``: their names, by kind."""

    pool: str
    machines: tuple[str, ...] = ()
    others: Mapping[str, tuple[str, ...]] = field(default_factory=dict)


async def sweep(
    cloud: Cloud,
    pool: str,
    *,
    journal: Journal | None,
    own_intents: Sequence[Intent] = (),
    known: Iterable[str] = (),
    ended: Iterable[str] = (),
    lost: Mapping[str, float] | None = None,
    lease_s: float | None = None,
    patience_s: float = 0.0,
    warn: Warn = _unheard,
) -> Swept:
    """End everything of ``pool`` in this place; return when the cloud confirms it and the journal is settled there.

    Resources that only look like the pool's are left alone: see `resource_ownership`.

    ``own_intents``: those that the living owner of the pool knows, besides the journal. ``known``: machines that an
    outdated answer may not show, besides those in the journal, except those that have ``ended``. ``lost``: tokens of
    launches without an answer, with the seconds for which their machines may still appear; the wait is over once all
    have appeared. ``patience_s``: transient errors are waited out for so long, with a call of ``warn``. ``lease_s``:
    seconds after which machines power themselves off without their client. Idempotent; safe to cancel.

    Raises:
        NotGone: the end is not confirmed; says what is left.
    """
    written = await written_of(cloud.place, pool, journal, own_intents)
    now = anyio.current_time()
    since = {machine: now - age_s for machine, age_s in written.machines.items()} | dict.fromkeys(known, now)
    answered = {each.token for each in own_intents if each.ids is not None}
    unsure = {token: each for token, each in written.unsure(lost or {}).items() if token not in answered}
    vendor = cloud.vendor
    tracker = EndTracker(
        {machine: at for machine, at in since.items() if machine not in {*ended}},
        began=now,
        unsure=unsure,
        patience_s=patience_s,
        lease_s=lease_s + vendor.first_lease_more_s if lease_s is not None and vendor.off_is_ended else None,
        all_known=bool(own_intents),
    )
    swept = await _removed_all(cloud, written.claim, tracker, written, warn)
    await settle(cloud.place, pool, journal)
    return swept


async def sweep_others(cloud: Cloud, pool: str, *, journal: Journal) -> Swept:
    """End resources that have the tag of ``pool`` and are not its own, if the user knows that nobody uses them.

    Raises:
        ProviderError: the end is not confirmed; says what is left.
    """
    written = await written_of(cloud.place, pool, journal)
    return await _removed_all(
        cloud, Others(written.claim), EndTracker({}, began=anyio.current_time()), Written(written.claim)
    )


async def _removed_all(
    cloud: Cloud, what: Claim | Others, tracker: EndTracker, written: Written, warn: Warn = _unheard
) -> Swept:
    """Remove everything that ``what`` claims; failures are collected, and raised at the end.

    Raises:
        NotGone: something is left, or may be.
    """
    machines, running = list[str](), None
    try:
        machines = await _end_all(cloud, what, tracker, warn)
    except NotGone as error:
        running = error
    removed = {each.kind: await _removed(each, what, written, running) for each in cloud.leftovers}
    left = [_in_words(kind, name) for kind, each in removed.items() for name in each.left]
    if running is not None:
        raise running.beside(left) from running.__cause__
    failed = [error for each in removed.values() for error in each.errors]
    if failed:
        raise NotGone(str(failed[0]), left=left, code=failed[0].code) from failed[0]
    return Swept(what.pool, tuple(machines), {kind: each.gone for kind, each in removed.items()})


async def _removed(kind: Leftover, what: Claim | Others, written: Written, running: NotGone | None) -> Removed:
    known = written.names(kind.kind)
    if running is not None and kind.has_machines:
        return Removed(left=tuple(known))
    return await kind.remove(what, known)


async def remove_each(
    what: Claim | Others,
    known: Sequence[str],
    *,
    shown: Callable[[str], Awaitable[Sequence[Thing]]],
    delete: Callable[[str], Awaitable[bool]],
) -> Removed:
    """Remove the ``known`` things of a kind and those that ``shown`` lists for the pool, one after the other.

    ``delete`` returns False where there was none. A failure to remove one does not stop the others.
    """
    names, gone, left, errors = {*known}, list[str](), list[str](), list[ProviderError]()
    try:
        names |= {each.id for each in await shown(what.pool) if what.has(each)}
    except ProviderError as error:
        errors.append(error)
        left += [] if names else [PERHAPS]
    for name in sorted(names):
        try:
            if await delete(name):
                gone.append(name)
        except ProviderError as error:
            errors.append(error)
            left.append(name)
    return Removed(tuple(gone), tuple(left), tuple(errors))


def leftover(
    kind: str,
    *,
    shown: Callable[[str], Awaitable[Sequence[Thing]]],
    delete: Callable[[str], Awaitable[object]],
    is_unknown: Callable[[ProviderError], bool],
    is_used: Callable[[ProviderError], bool] = lambda error: False,  # noqa: ARG005
    used_s: float = 0.0,
    has_machines: bool = False,
) -> Leftover:
    """A kind of things as `port.Leftover` has it. ``shown`` lists those of a pool, ``delete`` removes one by its name.

    ``is_unknown``: its error says that there is no such thing. ``is_used``: that something uses it still, which is
    waited for, ``used_s`` at most.
    """

    async def deleted(name: str) -> bool:
        waits, last = pauses(), anyio.current_time() + used_s
        while True:
            try:
                await delete(name)
            except ProviderError as error:
                if is_unknown(error):
                    return False
                if not is_used(error):
                    raise
                if anyio.current_time() >= last:
                    problem = (
                        f"something uses the {_in_words(kind, name)} still: 'outrider gc' deletes it when that is gone"
                    )
                    raise CallRefused(problem, retry_after_s=used_s, code=error.code) from error
            else:
                return True
            await anyio.sleep(next(waits))

    async def remove(what: Claim | Others, known: Sequence[str]) -> Removed:
        return await remove_each(what, known, shown=shown, delete=deleted)

    return Leftover(kind, remove, has_machines)


PERHAPS = "perhaps"  # the name of a thing of which nobody knows whether it is there


def _in_words(kind: str, name: str) -> str:
    """A resource's kind and name in words for people."""
    words = kind.replace("-", " ")
    return f"perhaps a {words}" if name == PERHAPS else f"{words} {name}"


# --- machines ---------------------------------------------------------------------------------------------------------


async def _end_all(cloud: Cloud, what: Claim | Others, tracker: EndTracker, warn: Warn) -> list[str]:
    """End every machine that ``what`` claims; return their ids when all ends are confirmed.

    Raises:
        NotGone: an end is not confirmed.
    """
    waits, has_logged = pauses(), False
    while True:
        sent_at = anyio.current_time()
        try:
            tracker.full_answer(await cloud.describe(what.pool, also=tracker.hidden, of=what), sent_at)
            if tracker.to_end:
                tracker.partial_answer(await end(cloud, tracker.to_end))
        except ProviderError as error:
            now = anyio.current_time()
            again_s = tracker.again_s(error, now)
            if again_s is None:
                raise tracker.not_gone_error(str(error), now, time.time(), code=error.code) from error
            if not has_logged:
                has_logged = True
                which = ", ".join(sorted(tracker.left)) or "the pool's machines"
                warn(f"the end of {which} is not confirmed yet, and is asked for again ({error})")
            await anyio.sleep(again_s)
            continue
        now = anyio.current_time()
        if tracker.done(now):
            return sorted(tracker.ended)
        if tracker.overdue(now):
            why = f"{cloud.vendor.service} has not confirmed their end within {CONFIRM_S / 60:.0f} minutes"
            raise tracker.not_gone_error(why, now, time.time())
        await anyio.sleep(next(waits))


async def end(cloud: Cloud, machines: Sequence[str]) -> list[InstanceView]:
    """Ask the cloud to end these machines; return its answers. A machine that it does not know is no error.

    Raises:
        ProviderError: some calls failed; all were tried.
    """
    views: list[InstanceView] = []
    failed: list[ProviderError] = []
    for start in range(0, len(machines), cloud.end_at_most):
        try:
            views += await _end_batch(cloud, machines[start : start + cloud.end_at_most])
        except ProviderError as error:
            failed.append(error)
    if failed:
        raise failed[0]
    return views


async def _end_batch(cloud: Cloud, batch: Sequence[str]) -> list[InstanceView]:
    """End a batch. An unknown id fails the whole call, so its halves are tried."""
    try:
        return [*await cloud.end(batch)]
    except ProviderError as error:
        if not cloud.is_unknown_machine(error):
            raise
        if len(batch) == 1:
            return []
        middle = len(batch) // 2
        return [*await _end_batch(cloud, batch[:middle]), *await _end_batch(cloud, batch[middle:])]


def pauses() -> Iterator[float]:
    """Yield the pauses between requests, in seconds."""
    yield from AGAIN_S
    while True:
        yield AGAIN_S[-1]
