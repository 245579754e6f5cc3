"""`CloudProvider`, the base of the classes by which users configure clouds, and checks of the options of these classes.

``owner`` is the name of such a class for error texts, such as ``AWS``.
"""

from __future__ import annotations

import os
import re
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Collection, Iterable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import fields
from typing import TYPE_CHECKING, Any, ClassVar, Generic, TypeVar

from ..errors import BadRequest
from ..shared.option_names import shown

if TYPE_CHECKING:
    from anyio.abc import TaskGroup

    from ..base import EntryPoints, LaunchRequest, MachineOffer
    from .fleet import CloudFleet
    from .offers import Cooldowns
    from .port import Cloud, Launcher, Plan
    from .recorder import Recorder


C = TypeVar("C", bound="Cloud")


class CloudProvider(ABC, Generic[C]):
    """Implements `base.Provider`, `base.Lasting` and `base.Offering`; subclasses implement the abstract methods.

    A cloud's own class is a frozen dataclass of the cloud's options. ``C``: the cloud's `port.Cloud`. The cloud's other
    modules are imported when a pool is opened, so that users import the class quickly.
    """

    __slots__ = ()

    name: ClassVar[str]  # the provider's name in the journal, in outrider.toml and in the table of providers

    @abstractmethod
    def _reach(self) -> AbstractAsyncContextManager[C]:
        """Open the cloud with these options. Nothing is created in the cloud.

        Raises:
            BadRequest: An extra is not installed, or a setting that the cloud needs is unknown.
            NotAuthorized: There are no credentials.
        """

    @abstractmethod
    async def _first_plan(self, cloud: C, request: LaunchRequest, cooldowns: Cooldowns) -> Plan:
        """Return the plan (the offers in rounds) for a pool without machines. Nothing is created.

        Raises:
            ProviderError: No such machine exists (the error names the closest ones), or the cloud does not respond.
        """

    @abstractmethod
    def _launcher(self, cloud: C, recorder: Recorder, tasks: TaskGroup) -> Launcher[Any, Any]:
        """Return the launcher of one pool's machines. ``tasks``: a task group that ends with the pool."""

    def _shown(self, offer: MachineOffer, plan: Plan) -> MachineOffer:  # noqa: ARG002
        """Return an offer of a plan in the form for display. A cloud may override this to add or hide details."""
        return offer

    @property
    def public(self) -> bool:
        """True if the machines are reached at their public addresses."""
        return True

    @property
    def local(self) -> bool:
        return False

    @property
    def outlives(self) -> bool:
        """True: the machines exist for some minutes after the death of their client, or until somebody ends them."""
        return True

    async def offers(self, request: LaunchRequest) -> Sequence[MachineOffer]:
        """Return the offers that a launch would request, in that order. Nothing is created.

        Raises:
            BadRequest: No such machine exists (the error names the closest ones), or one of the reasons for which
                `open` raises BadRequest.
            ProviderError: The cloud does not respond, or refuses.
        """
        from .offers import Cooldowns, as_machine_offers

        async with self._reach() as cloud:
            plan = await self._first_plan(cloud, request, Cooldowns(cloud.vendor))
        offers = as_machine_offers(plan.rounds, plan.region, plan.extras_usd)
        return [self._shown(each, plan) for each in offers]

    @asynccontextmanager
    async def open(self, pool: str, entry_points: EntryPoints) -> AsyncIterator[CloudFleet[Any, Any]]:  # noqa: ARG002
        """Open a fleet of machines.

        A background task prepares resources that every launch needs, such as an image. If that fails, the fleet's
        method `launch` raises the error.

        Raises:
            BadRequest: The cloud's extra is not installed, a setting that the cloud needs, such as a region, is
                unknown, or the pool has another owner.
            NotAuthorized: There are no credentials.
            JournalError: The journal cannot be written.
        """
        from .fleet import CloudFleet, open_fleet

        async with self._reach() as cloud:

            def make(recorder: Recorder, tasks: TaskGroup) -> CloudFleet[Any, Any]:
                launcher = self._launcher(cloud, recorder, tasks)
                return CloudFleet(cloud, launcher, recorder, tasks, public=self.public)

            async with open_fleet(pool, self.name, cloud.place, make) as fleet:
                yield fleet


# --- checks of options ------------------------------------------------------------------------------------------------


Several = str | Iterable[str]


def several(owner: str, option: str, value: Several | None) -> tuple[str, ...] | None:
    """Check an option that is a list of names.

    Raises:
        ValueError: The option is empty, or it is a str, which could mean one name or a list of letters.
    """
    if value is None:
        return None
    if isinstance(value, str):
        raise ValueError(f"{owner}({option}=...) takes a list: write {owner}({option}=[{value!r}])")
    names = tuple(value) if isinstance(value, Iterable) else ()
    if not names or not all(isinstance(name, str) and name for name in names):
        raise ValueError(f"{owner}({option}=...) takes a list of names: leave it out for its default")
    return tuple(dict.fromkeys(names))


_REGIONS = {  # for each cloud: a pattern that matches present and future region names, and an example
    "AWS": (r"[a-z]{2,4}(-[a-z]+)+-\d+", "us-east-1"),
    "GCP": (r"[a-z]+-[a-z]+\d+", "us-central1"),
}


def check_region(owner: str, region: str | None, endpoint_url: str | None) -> None:
    """Refuse a text that cannot be a region of the cloud, such as a zone, or a region of another cloud.

    With an ``endpoint_url``, any region is allowed, because the service is not the cloud's own.

    Raises:
        ValueError: The text cannot be a region.
    """
    form, example = _REGIONS[owner]
    # variables that may set another endpoint
    elsewhere = (f"{owner}_ENDPOINT_URL", f"{owner}_ENDPOINT_URL_EC2", f"{owner}_PROFILE")
    if endpoint_url or any(os.environ.get(name) for name in elsewhere):
        return
    if not region or re.fullmatch(form, region):
        return
    zone = re.fullmatch(rf"({form})-?[a-z]", region)
    of_zone = "" if zone is None else f"it looks like a zone: {owner}(region={zone[1]!r}, zones=[{region!r}])"
    meant = of_zone or f"its regions look like {example}"
    raise ValueError(f"{owner}(region={region!r}) is no region of {owner}: {meant}")


def set_all(provider: Any, options: Mapping[str, object], *, lists: Iterable[str] = ()) -> None:
    """Set and check the fields of a frozen dataclass, a provider.

    ``lists``: the names of the fields that are lists of names.

    Raises:
        ValueError: A field is an empty text, one of the ``lists`` is not a list of names, or the region is impossible.
    """
    names = {name: several(type(provider).__name__, name, getattr(provider, name)) for name in lists}
    for name, value in {**names, **options}.items():
        object.__setattr__(provider, name, value)
    for each in fields(provider):
        if getattr(provider, each.name) == "":
            raise ValueError(f"{type(provider).__name__}({each.name}=...) is empty: leave it out for its default")
    if type(provider).__name__ in _REGIONS:
        check_region(type(provider).__name__, provider.region, provider.endpoint_url)


def tags(
    owner: str,
    user_tags: Mapping[str, str] | Iterable[tuple[str, str]] | None,
    *,
    service: str,
    reserved: tuple[str, ...],
    option: str = "tags",
    key: str = "(?s:.{1,128})",
    value: str = "(?s:.{0,256})",
    limits: str = "keys of 1 to 128 characters and values of up to 256",
) -> tuple[tuple[str, str], ...]:
    """Check the user's tags.

    ``key``, ``value``: patterns of the tags that the ``service`` accepts. ``limits``: the same rules in words, for the
    error.

    Raises:
        ValueError: The service would refuse a tag, or a tag begins with a ``reserved`` prefix.
    """
    try:
        pairs = dict(user_tags or ())
    except (TypeError, ValueError):
        raise ValueError(f"{owner}({option}=...) takes names and their values, not {shown(user_tags)}") from None
    for name, text in pairs.items():
        if not isinstance(name, str) or not isinstance(text, str):
            raise ValueError(f"{owner}({option}=...) takes texts, not {shown(name)}: {shown(text)}")
        if name.lower().startswith(reserved):
            not_for = f"what begins with {' or '.join(reserved)} is not for users"
            raise ValueError(f"{owner}({option}=...): {name!r}: {not_for}")
        if not re.fullmatch(key, name) or not re.fullmatch(value, text):
            raise ValueError(f"{owner}({option}=...): {name!r}: {text!r}: {service} takes {limits}")
    return tuple(pairs.items())


def check_known(owner: str, what: str, values: Iterable[str], known: Collection[str]) -> None:
    """Check names in a user's options against the names that the cloud has.

    ``what``: the kind of name, such as ``"region"``.

    Raises:
        BadRequest: The cloud has no such name; the error suggests a similar one.
    """
    from difflib import get_close_matches

    for each in values:
        if each not in known:
            close = get_close_matches(each, known, n=1)
            hint = f"did you mean {close[0]!r}?" if close else f"it has {', '.join(sorted(known))}"
            raise BadRequest(f"{owner} has no {what} {each!r}: {hint}")
