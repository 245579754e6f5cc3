"""The surveyor of containers. It lists them for `outrider ps` and `outrider gc`, and ends them for `gc`."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace

from ..cloud import labels
from ..cloud.surveyor import CloudSurveyor
from ..errors import BadRequest
from ..shared.login_options import no_way, options_of
from ..shared.pool_lock import Place
from ..shared.resource_ownership import Thing
from ..survey import FoundMachine
from .cloud import ContainerCloud, reach, read
from .provider import Containers


class ContainerSurveyor(CloudSurveyor[ContainerCloud]):
    """Implements `survey.Surveyor` for containers. A place (a location of machines, as texts in the journal) has
    the runtime's command as "containers", and either the hosts as "hosts" or this computer's name as "on".
    """

    provider, mark = "containers", "containers"

    @asynccontextmanager
    async def reach(self, place: Place) -> AsyncIterator[ContainerCloud]:
        """Open the hosts that a pool's journal names, with every usable command there (Docker, Podman).

        With ``runtime="auto"``, the journal does not say which of the two commands the pool used, so both are searched.
        """
        on = place.get("on")
        if on is not None and on != os.uname().nodename:
            reason = f"The containers are on the computer {on}, and this is {os.uname().nodename}"
            raise BadRequest(reason, advice="Run the command there.")
        async with reach(_provider(place)) as cloud:
            usable = [replace(each, argv=words) for each in cloud.runtimes for words in await each.usable()]
            yield ContainerCloud(usable, dict(place))

    async def find(self, cloud: ContainerCloud, known: Sequence[str]) -> tuple[Sequence[FoundMachine], Sequence[Thing]]:  # noqa: ARG002 (labels cannot be removed)
        containers, failed = await cloud.listed(labels.POOL)
        for error in failed.values():
            raise error
        return [read(each).summary for each in containers], ()


def _provider(place: Place) -> Containers:
    hosts = place["hosts"].split() if "hosts" in place else None
    try:
        return Containers(hosts=hosts, runtime=place["containers"], **options_of(place))
    except ValueError as error:
        otherwise = "look on the hosts with `docker ps` or `podman ps`"
        raise no_way(place.get("hosts", "the containers"), error, otherwise) from error
