"""The providers that `outrider ps` and `outrider gc` ask which pools exist, and where `gc` ends them.

A provider whose machines outlive their client has a `Surveyor` here, under its name.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import anyio

from ...providers.aws.surveyor import AWSSurveyor
from ...providers.errors import ProviderError
from ...providers.journal import Intent, PoolRecord
from ...providers.pool_lock import Place
from ...providers.slurm.surveyor import SlurmSurveyor
from ...providers.survey import PlaceAnswer, Surveyor

AT_A_TIME = 8  # places that are asked concurrently


SURVEYORS: Mapping[str, Surveyor] = {"aws": AWSSurveyor(), "slurm": SlurmSurveyor()}


async def ask(
    records: Sequence[PoolRecord],
    places: Sequence[tuple[str, Place]],
    *,
    everywhere: tuple[str, Place] | None,
) -> list[PlaceAnswer]:
    """Ask every place that the journal knows and every one of ``places``, concurrently. Each is of a provider.

    ``everywhere``: a place with whose access all of its provider's places are asked as well.
    """
    answers: list[PlaceAnswer] = []
    wanted = [(provider_of(record, place), place) for record in records for place in record.places]
    wanted += places
    if everywhere is not None:
        provider, access = everywhere
        try:
            wanted += [(provider, place) for place in await SURVEYORS[provider].everywhere(access)]
        except ProviderError as error:
            answers.append(PlaceAnswer(provider, access, error=_explained(error)))
    limit = anyio.Semaphore(AT_A_TIME)

    async def one(provider: str, place: Place) -> None:
        async with limit:
            intents = [each for record in records for each in record.intents if each.place == place]
            answers.append(await _ask(provider, place, intents))

    async with anyio.create_task_group() as tasks:
        for at, asked in enumerate(wanted):
            if asked not in wanted[:at]:
                tasks.start_soon(one, *asked)
    return answers


def provider_of(record: PoolRecord, place: Place) -> str:
    """Return the name of the provider whose place this is; empty: nobody knows."""
    return record.provider or next((name for name, each in SURVEYORS.items() if each.has(place)), "")


async def _ask(provider: str, place: Place, known: Sequence[Intent]) -> PlaceAnswer:
    surveyor = SURVEYORS.get(provider)
    if surveyor is None:
        error = f"this version of Outrider cannot ask {provider or 'its cloud'}: use the one that has made the pool"
        return PlaceAnswer(provider, place, error=error)
    try:
        return await surveyor.survey(place, known)
    except ProviderError as failed:
        return PlaceAnswer(provider, place, error=_explained(failed))


def _explained(error: ProviderError) -> str:
    """Return why a place was not asked. What will not pass by itself comes from the provider with its next step."""
    if error.retry_after_s is not None:
        return f"{error}; that may pass by itself: try again"
    return f"{error}. {error.advice}" if error.advice else str(error)
