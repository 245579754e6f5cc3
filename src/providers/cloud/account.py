"""Clouds that are opened with the API key of an account, which has the machines of all regions: `AccountCloud`."""

from __future__ import annotations

from collections.abc import Mapping

from .http import HttpApi
from .vendor import Vendor


class AccountCloud:
    """Implements ``place`` and ``where`` of `port.Cloud`, and has the ``api``.

    ``place``: an ``account``, and optionally a ``key_file`` and an ``endpoint_url``.
    """

    vendor: Vendor

    def __init__(self, api: HttpApi, place: Mapping[str, str]) -> None:
        self.api, self._place = api, place

    @property
    def place(self) -> Mapping[str, str]:
        return self._place

    def where(self, place: Mapping[str, str]) -> str:
        account = f"{self.vendor.service}'s account"
        return " ".join(filter(None, (account, place.get("account"), place.get("endpoint_url"))))


def place_of(key_file: str | None, endpoint_url: str | None) -> dict[str, str]:
    """The place that a provider's options say, without its account, which the key tells."""
    given = {"key_file": key_file, "endpoint_url": endpoint_url}
    return {name: value for name, value in given.items() if value}
