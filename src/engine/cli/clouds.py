"""The clouds that `outrider ps` and `outrider gc` ask which pools exist, and where `gc` ends them.

A provider whose machines outlive their client has a `Cloud` here, under its name.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

import anyio

from ...providers.errors import ProviderError
from ...providers.journal import Intent, Journal, PoolRecord
from ...providers.pool_lock import Place
from .aws_cloud import AWSCloud
from .orphans import PlaceAnswer

AT_A_TIME = 8  # places that are asked concurrently


class Cloud(Protocol):
    """One provider, for commands that know of its machines by the journal and by tags alone.

    Each method raises `ProviderError` where the cloud does not answer or refuses; `NotGone` says what may be left.
    """

    def has(self, place: Place) -> bool:
        """Return whether this may be one of its places: when a pool's files are gone, nobody else knows whose it is."""
        ...

    async def survey(self, place: Place, known: Sequence[Intent]) -> PlaceAnswer:
        """Find everything with a pool's tag in a place, and the machines of ``known`` intents, which may lack tags."""
        ...

    async def sweep(self, place: Place, pool: str, journal: Journal, *, lease_s: float | None = None) -> None:
        """End everything of the pool in a place, confirmed, and mark it as settled in the journal.

        ``lease_s``: the lease of its machines; None: not known.
        """
        ...

    async def sweep_others(self, place: Place, pool: str, journal: Journal) -> None:
        """End everything in a place that has the pool's tag and yet is not the pool's, confirmed."""
        ...

    async def everywhere(self, place: Place) -> Sequence[Place]:
        """Return all places that can be reached with the credentials of this one."""
        ...


CLOUDS: Mapping[str, Cloud] = {"aws": AWSCloud()}


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
            wanted += [(provider, place) for place in await CLOUDS[provider].everywhere(access)]
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
    return record.provider or next((name for name, cloud in CLOUDS.items() if cloud.has(place)), "")


async def _ask(provider: str, place: Place, known: Sequence[Intent]) -> PlaceAnswer:
    cloud = CLOUDS.get(provider)
    if cloud is None:
        error = f"this version of Outrider cannot ask {provider or 'its cloud'}: use the one that has made the pool"
        return PlaceAnswer(provider, place, error=error)
    try:
        return await cloud.survey(place, known)
    except ProviderError as failed:
        return PlaceAnswer(provider, place, error=_explained(failed))


def _explained(error: ProviderError) -> str:
    """Return why a place was not asked. What will not pass by itself comes from the provider with its next step."""
    return str(error) if error.retry_after_s is None else f"{error}; that may pass by itself: try again"
