"""`AccountCloud`: the base class for clouds that users open with an account's API key.

Such a cloud has no other credentials, and lists the machines of all regions. `ApiKeys` finds the key. The journal
stores the name of the account that a pool uses, so that no program searches for the pool's machines with another
account's key.
"""

from __future__ import annotations

import hashlib
import os
import re
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Callable, Collection, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TypeVar

from ...lazy_dataclass import dataclass
from ..errors import NotAuthorized, ProviderError
from ..shared.paths import StrPath
from ..shared.resource_ownership import Claim, Others, Thing
from ..shared.side_by_side import each_of
from ..shared.threads import in_thread
from .http import HttpApi, Key, Service
from .inventory import InstanceView, ListedMachine
from .port import Leftover
from .vendor import Vendor


class AccountCloud(ABC):
    """The base class of a cloud's `port.Cloud`; subclasses implement the abstract methods.

    ``api``: the open connection to the cloud's API. ``place``: where the machines are: an ``account``, and optionally a
    ``key_file`` and an ``endpoint_url``.
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
    """Open a cloud with an API key.

    ``place``: the account, key file and URL to use. A place from `place_of` names no account; then the account is that
    of the key. ``scheme``: the text before the key in the header of requests, such as ``Bearer``.

    Raises:
        NotAuthorized: There is no key, or the key belongs to another account than the one in ``place``.
        BadRequest: The cloud's extra is not installed, or the endpoint is not a URL.
    """
    key, account = await keys.of(place)
    async with HttpApi.open(service, Key(key, scheme=scheme)) as api:
        yield cloud(api, {"account": account, **place})


def place_of(key_file: StrPath | None, endpoint_url: str | None) -> dict[str, str]:
    """Return a provider's options ``key_file`` and ``endpoint_url`` as a dictionary, without those that are not set.

    It contains no account, because only the key determines the account.
    """
    options = {"key_file": key_file, "endpoint_url": endpoint_url}
    return {name: os.fspath(value) for name, value in options.items() if value}


# --- API keys ---------------------------------------------------------------------------------------------------------


ANY = "any"  # used instead of an account's name: accept the key that is found, whatever its account
_KEY = re.compile(r"^\s*(?:api_key\s*=\s*)?(\S+)\s*$", re.MULTILINE)


@dataclass(frozen=True, slots=True, kw_only=True)
class ApiKeys:
    """The files and variables in which users of one cloud store their API keys.

    ``provider``: the class with the option ``key_file``, such as ``Lambda``. ``name``: the provider's name in the
    journal. ``variable``: the environment variable with the key. ``page``: the web page on which users create keys.
    ``usual``: the file in which the cloud's own client stores the key; empty: the client stores none.
    """

    provider: str
    name: str
    variable: str
    page: str
    usual: str = ""

    async def of(self, place: Mapping[str, str]) -> tuple[str, str]:
        """Return an API key and the name of its account.

        ``place``: optionally the ``key_file`` to read, and the ``account`` to which the key must belong.

        Raises:
            NotAuthorized: There is no key, or the key belongs to another account than the one in ``place``.
        """
        key = await in_thread(self.read, place.get("key_file"), os.environ)
        mine, account = account_of(key), place.get("account", ANY)
        if account not in (ANY, mine):
            where = place.get("key_file") or self.variable
            raise NotAuthorized(
                f"these machines were made with another key of {self.provider}'s (account {account}) than {where} has "
                f"now ({mine}): use that one; if it was replaced by a newer one of the same account, "
                f"--place {self.name}:account={ANY} looks there"
            )
        return key, mine

    def read(self, key_file: str | None, environment: Mapping[str, str]) -> str:
        """Return the key in ``key_file``; without a ``key_file``, the key in the environment variable, or else in the
        ``usual`` file.

        In a file, the key is alone on a line, or follows ``api_key =``.

        Raises:
            NotAuthorized: There is no key.
        """
        named = environment.get(self.variable, "").strip()
        if key_file is None and named:
            return named
        if key_file is None and not (self.usual and Path(self.usual).expanduser().exists()):
            reason = f"there is no API key for {self.provider}: make one at {self.page}, and set {self.variable} to it"
            raise NotAuthorized(reason)
        file = key_file or self.usual
        option = f"{self.provider}(key_file={file!r})"
        try:
            match = _KEY.search(Path(file).expanduser().read_text("utf-8").strip())
        except (OSError, UnicodeDecodeError) as error:
            why = error.strerror if isinstance(error, OSError) else "it is no text"
            raise NotAuthorized(f"{option} cannot be read ({why}): it has an API key alone") from None
        if match is None:
            raise NotAuthorized(f"{option} has no API key: it is a line of its own there")
        return match[1]


def account_of(key: str) -> str:
    """Return a name for a key's account, for clouds that have no call to request the account: a hash of the key."""
    return hashlib.sha256(key.encode()).hexdigest()[:8]
