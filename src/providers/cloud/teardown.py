"""The end of everything that a pool has created, with confirmation: for a pool that closes, and for a dead pool.

Machines are ended first, because they cost the most and use the other resources; then the resources that the pool
created for them. Only the cloud's responses count: a machine is gone when it is listed as terminated, or has not been
listed for `GRACE_S`.
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import field

import anyio

from ...lazy_dataclass import dataclass
from ..errors import NotGone, ProviderError
from ..shared.journal import Intent, Journal
from ..shared.resource_ownership import Claim, Others, Thing
from .calls import CallRefused
from .inventory import CONFIRM_S, EndTracker, InstanceView
from .port import Cloud, Leftover, Removed
from .recorder import Written, settle, written_of

AGAIN_S = (0.2, 0.4, 0.8, 1.0)  # pauses between requests, in seconds; the last pause is repeated

Warn = Callable[[str], object]


def _unheard(text: str) -> None:
    """Ignore a warning. This is the default ``warn`` of `sweep`, whose result or error tells the outcome anyway."""


@dataclass(frozen=True, slots=True)
class Swept:
    """The resources that existed and are confirmed to be gone. ``others``: by kind, the names of resources besides
    machines.
    """

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
    """End everything that ``pool`` has in ``cloud``. Return when the cloud confirms the end and the journal records it.

    Resources that only look like the pool's are left alone: see `resource_ownership`. Idempotent; safe to cancel.

    Args:
        cloud: The cloud, opened in one region, project or account.
        pool: The name of the pool.
        journal: The journal, if any.
        own_intents: Records of create calls that the pool's living owner has in memory.
        known: More machines that an outdated list may lack; the machines in the journal are known anyway.
        ended: Machines that are known to have ended.
        lost: Tokens of launches without a response, each with the seconds for which its machines may still appear. The
            wait ends when all have appeared.
        lease_s: Seconds without their client after which machines power themselves off. None: unknown.
        patience_s: Seconds for which transient errors are retried; the user gets a warning.
        warn: Receives warnings.

    Raises:
        NotGone: The end is not confirmed; the error names what may still exist.
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
    """End resources that have the tag of ``pool`` but are not the pool's. For users who know that nobody uses them.

    Raises:
        ProviderError: The end is not confirmed; the error names what may still exist.
    """
    written = await written_of(cloud.place, pool, journal)
    return await _removed_all(
        cloud, Others(written.claim), EndTracker({}, began=anyio.current_time()), Written(written.claim)
    )


async def _removed_all(
    cloud: Cloud, what: Claim | Others, tracker: EndTracker, written: Written, warn: Warn = _unheard
) -> Swept:
    """Remove all resources that belong to the claim ``what``. After a failure, continue, and raise all failures at the
    end.

    Raises:
        NotGone: Something still exists, or may.
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
    """Remove a pool's resources of one kind, one after another: those named in ``known``, and those that ``shown``
    lists.

    ``delete`` returns False if the resource did not exist. If a removal fails, the others are still tried.
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
    """Return a `port.Leftover`: a kind of resource that a pool creates besides machines, and how to remove it.

    ``shown``: lists the resources of a pool. ``delete``: removes a resource by its name. ``is_unknown``: whether an
    error means that the resource does not exist. ``is_used``: whether an error means that something still uses the
    resource; if so, the removal is retried for ``used_s`` seconds.
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


PERHAPS = "perhaps"  # the name of a resource that may or may not exist


def _in_words(kind: str, name: str) -> str:
    """Return a resource's kind and name as a text for the user."""
    words = kind.replace("-", " ")
    return f"perhaps a {words}" if name == PERHAPS else f"{words} {name}"


# --- machines ---------------------------------------------------------------------------------------------------------


async def _end_all(cloud: Cloud, what: Claim | Others, tracker: EndTracker, warn: Warn) -> list[str]:
    """End every machine that belongs to the claim ``what``. Return the machines' ids when the cloud has confirmed all
    ends.

    Raises:
        NotGone: The end of a machine is not confirmed.
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
    """Request the end of these machines. Return the cloud's responses. A machine that does not exist is not an error.

    Raises:
        ProviderError: Some calls failed; all were tried.
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
    """End machines by one call. If the call fails because of an unknown id, try each half of the machines."""
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
