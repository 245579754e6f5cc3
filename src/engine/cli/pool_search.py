"""The search for pools, for `outrider ps` and `outrider gc`: in the places of the journal, and in places that the user
names.
"""

from __future__ import annotations

import sys
from typing import Annotated

from cyclopts import Parameter

from ...lazy_dataclass import dataclass
from ...providers.errors import ProviderError
from ...providers.shared.journal import Journal
from ...providers.shared.pool_lock import Place
from ...providers.survey import PlaceAnswer
from ..api.language import worded
from ..api.printable import plain
from . import surveys
from .exit_codes import UNKNOWN
from .flags import Flag
from .orphans import FoundPool, known_pools


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class SearchOptions:
    """Places to search, in addition to those that this computer's journal lists.

    Parameters
    ----------
    region:
        An AWS region to search. Can be repeated.
    all_regions:
        Search every AWS region of the account.
    profile:
        The profile in ~/.aws to use for these regions.
    endpoint_url:
        The endpoint of another cloud with EC2's interface, to search instead of AWS.
    place:
        A place of any provider, such as aws:region=us-east-1,profile=lab. Can be repeated.
    """

    region: Annotated[list[str] | None, Flag] = None
    all_regions: Annotated[bool, Flag] = False
    profile: Annotated[str | None, Parameter(env_var="AWS_PROFILE")] = None
    endpoint_url: Annotated[str | None, Parameter(env_var="AWS_ENDPOINT_URL")] = None

    place: Annotated[list[str] | None, Flag] = None

    @property
    def places(self) -> list[tuple[str, Place]]:
        """The places of the options ``region`` and ``place``, with their providers. Exit with 2 if one is not valid."""
        regions: list[tuple[str, Place]] = [("aws", {"region": region, **self._access}) for region in self.region or ()]
        return regions + [_place_named(text) for text in self.place or ()]

    @property
    def everywhere(self) -> tuple[str, Place] | None:
        return ("aws", self._access) if self.all_regions else None

    @property
    def _access(self) -> dict[str, str]:
        options = {"profile": self.profile, "endpoint_url": self.endpoint_url}
        return {key: value for key, value in options.items() if value}


NO_OTHER_PLACES = SearchOptions()


def _place_named(text: str) -> tuple[str, Place]:
    provider, _, options = text.partition(":")
    pairs = [each.partition("=") for each in options.split(",")]
    place = {name.strip(): value.strip() for name, _, value in pairs}
    if provider not in surveys.SURVEYORS or not all(place) or not all(place.values()):
        known = ", ".join(surveys.SURVEYORS)
        reason = (
            f"--place takes a provider and where, as in aws:region=us-east-1, not {plain(text)!r}; providers: {known}"
        )
        print(f"outrider: {reason}", file=sys.stderr)
        raise SystemExit(UNKNOWN)
    return provider, place


def open_journal() -> Journal:
    """Open this user's journal (the local database of pools). Exit with 2 if that fails."""
    try:
        return Journal.open()
    except ProviderError as error:
        print(f"outrider: {worded(plain(str(error)))}", file=sys.stderr)
        raise SystemExit(UNKNOWN) from None


async def find_pools(journal: Journal, where: SearchOptions) -> tuple[list[FoundPool], list[PlaceAnswer]]:
    answers = await surveys.ask(journal.records(), where.places, everywhere=where.everywhere)
    return known_pools(journal.records(), answers), [answer for answer in answers if answer.error]
