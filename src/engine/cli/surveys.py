"""Queries to clouds and clusters: `outrider ps` and `outrider gc` find pools with them, and `gc` ends pools.

Each provider whose machines can outlive their client has a `Surveyor` (it finds and ends existing machines), which
``providers.registry`` lists.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Awaitable, Callable, Mapping, Sequence

import anyio

from ...providers.errors import ProviderError
from ...providers.registry import surveyors
from ...providers.shared.journal import Intent, PoolRecord
from ...providers.shared.pool_lock import Place
from ...providers.survey import PlaceAnswer, Surveyor
from ..api.language import worded
from .failures import defect

AT_A_TIME = 8  # at most so many places of a provider are queried at the same time
ANSWER_S = 60.0  # seconds to wait for a place's answer; the regions of a large account answer within some seconds

SURVEYORS: Mapping[str, Surveyor] = surveyors()


async def ask(
    records: Sequence[PoolRecord],
    places: Sequence[tuple[str, Place]],
    *,
    everywhere: tuple[str, Place] | None,
) -> list[PlaceAnswer]:
    """Query every place that the journal knows, and each of ``places`` (provider, place), at the same time.

    ``everywhere``: a provider and the access to it (such as a profile), with which all its places are also queried. A
    place that does not answer within `ANSWER_S` gets an answer with an error, and delays no other place.
    """
    answers: list[PlaceAnswer] = []
    started: list[tuple[str, Place]] = []
    at_once: defaultdict[str, anyio.Semaphore] = defaultdict(lambda: anyio.Semaphore(AT_A_TIME))

    async def one(provider: str, place: Place) -> None:
        intents = [each for record in records for each in record.intents if each.place == place]
        async with at_once[provider]:
            answers.append(await _ask(provider, place, intents))

    async def all_of(provider: str, access: Place) -> None:
        there: list[Place] = []

        async def find() -> PlaceAnswer:
            there.extend(await SURVEYORS[provider].everywhere(access))
            return PlaceAnswer(provider, access)

        answer = await _answered(provider, access, find)
        answers.extend([answer] if answer.error else [])
        for place in there:
            begin(provider, place)

    def begin(provider: str, place: Place) -> None:
        if (provider, place) not in started:
            started.append((provider, place))
            tasks.start_soon(one, provider, place)

    async with anyio.create_task_group() as tasks:
        for record in records:
            for place in record.places:
                begin(provider_of(record, place), place)
        for named in places:
            begin(*named)
        if everywhere is not None:
            tasks.start_soon(all_of, *everywhere)
    return answers


def provider_of(record: PoolRecord, place: Place) -> str:
    """Return the name of the provider to which a place belongs; empty: unknown."""
    return record.provider or next((name for name, each in SURVEYORS.items() if each.has(place)), "")


async def _ask(provider: str, place: Place, known: Sequence[Intent]) -> PlaceAnswer:
    surveyor = SURVEYORS.get(provider)
    if surveyor is None:
        error = f"this version of Outrider cannot ask {provider or 'its cloud'}: use the one that has made the pool"
        return PlaceAnswer(provider, place, error=error)
    return await _answered(provider, place, lambda: surveyor.survey(place, known))


async def _answered(provider: str, place: Place, ask: Callable[[], Awaitable[PlaceAnswer]]) -> PlaceAnswer:
    """Return the answer of ``ask`` about a place. If ``ask`` fails or takes too long, the answer has an error."""
    try:
        with anyio.move_on_after(ANSWER_S):
            return await ask()
        why = f"it has not answered within {ANSWER_S:g} s; that may pass by itself: try again"
    except ProviderError as error:
        why = _explained(error)
    except Exception as error:  # noqa: BLE001  the edge: a defect in one provider must not hide the others' machines
        why = defect(error)
    return PlaceAnswer(provider, place, error=worded(why))


def _explained(error: ProviderError) -> str:
    """Return why a place could not be queried, and what to do about it."""
    if error.retry_after_s is not None:
        return f"{error}; that may pass by itself: try again"
    return f"{error}. {error.advice}" if error.advice else str(error)
