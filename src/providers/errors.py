"""What a provider can fail with, by what the caller should do about it. `engine.errors` shows users the same in their words."""

from __future__ import annotations


class ProviderError(Exception):
    """Base. ``retry_after_s``: the least time after which the same call may go better; None: it will not."""

    retry_after_s: float | None = None

    def __init__(self, message: str, *, retry_after_s: float | None = None) -> None:
        super().__init__(message)
        self.retry_after_s = retry_after_s


class NoCapacity(ProviderError):
    """There is no such machine to be had here now: try elsewhere, or later."""


class QuotaExceeded(ProviderError):
    """The account's limit, not the cloud's stock: ask for more quota, or for less."""


class NotAuthorized(ProviderError):
    """Credentials are missing, wrong, expired or too weak."""


class BadRequest(ProviderError):
    """The request can never work as it is: the user's specification is at fault."""
