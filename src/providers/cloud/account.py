"""`AccountCloud`: the base class for clouds that users open with an account's API key, and that list the machines of
all regions.
"""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Callable, Collection, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import TypeVar

from ..errors import ProviderError
from ..given_paths import StrPath
from ..resource_ownership import Claim, Others, Thing
from ..side_by_side import each_of
from .api_key import ApiKeys
from .http import HttpApi, Key, Service
from .instance_inventory import InstanceView
from .listed import ListedMachine
from .port import Leftover
from .vendor import Vendor


class AccountCloud(ABC):
    """The base class of a cloud's `port.Cloud`; subclasses implement the abstract methods. ``api``: the opened
    interface.

    ``place``: an ``account``, and optionally a ``key_file`` and an ``endpoint_url``.
    """

    vendor: Vendor
    end_at_most: int
    leftovers: Sequence[Leftover] = ()

    def __init__(self, api: HttpApi, place: Mapping[str, str]) -> None:
        self.api, self._place = api, place

    @abstractmethod
    async def machines(self) -> Sequence[ListedMachine]:
        """List all machines of the account. Details that only `outrider ps` displays may be missing, so that a
        malformed entry of another user's machine does not stop a pool.

        Raises:
            ProviderError: The cloud does not respond.
        """

    @abstractmethod
    async def end(self, machines: Sequence[str]) -> Sequence[InstanceView]:
        """See `port.Cloud.end`."""

    @abstractmethod
    def is_unknown_machine(self, error: ProviderError) -> bool:
        """See `port.Cloud.is_unknown_machine`."""

    @abstractmethod
    async def unlisted(self, machine: str) -> InstanceView | None:
        """Return the state of a pool's machine that is not in the list.

        None: the state is unknown, because the list may be outdated and show the machine later.

        Raises:
            ProviderError: The cloud does not respond.
        """

    async def others(self) -> Sequence[Thing]:
        """List the resources, other than machines, that pools have created in the account."""
        return ()

    @property
    def place(self) -> Mapping[str, str]:
        return self._place

    def where(self, place: Mapping[str, str]) -> str:
        account = f"{self.vendor.service}'s account"
        return " ".join(filter(None, (account, place.get("account"), place.get("endpoint_url"))))

    async def describe(
        self, pool: str, *, also: Collection[str] = (), of: Claim | Others | None = None
    ) -> Sequence[InstanceView]:
        listed = await self.machines()
        mine = [each for each in listed if each.whose.pool == pool or each.id in also]
        views = [each.view for each in mine if of is None or of.has(each.whose)]
        hidden = sorted({*also}.difference(each.id for each in listed))
        return views + [each for each in await each_of(hidden, self.unlisted) if each is not None]

    async def launched(self, token: str) -> list[str]:
        """Return the ids of the listed machines with the token of this launch."""
        return [each.id for each in await self.machines() if each.whose.launch == token]


A = TypeVar("A", bound=AccountCloud)


@asynccontextmanager
async def reached(
    cloud: Callable[[HttpApi, Mapping[str, str]], A],
    keys: ApiKeys,
    service: Service,
    place: Mapping[str, str],
    *,
    scheme: str = "Bearer",
) -> AsyncIterator[A]:
    """Open a cloud in a place: the place of a pool, which has an ``account``, or a place from `place_of`, which has
    none.

    ``scheme``: the text before the key in the header of requests, such as ``Bearer``.

    Raises:
        NotAuthorized: There is no key, or the key belongs to another account than the place.
        BadRequest: The cloud's extra is not installed, or the endpoint is not a URL.
    """
    key, account = await keys.of(place)
    async with HttpApi.open(service, Key(key, scheme=scheme)) as api:
        yield cloud(api, {"account": account, **place})


def place_of(key_file: StrPath | None, endpoint_url: str | None) -> dict[str, str]:
    """Return the place that a provider's options describe. The place has no account, because only the key determines
    the account.
    """
    options = {"key_file": key_file, "endpoint_url": endpoint_url}
    return {name: os.fspath(value) for name, value in options.items() if value}
