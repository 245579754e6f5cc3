"""The errors of a provider, one class for each reaction of the caller. `engine.api.errors` has the user's messages."""

from __future__ import annotations

import re
from collections.abc import Iterable


class ProviderError(Exception):
    """The base of these errors. ``retry_after_s``: least seconds after which a retry may succeed; None: never.

    ``code``: the cloud's own error code, such as ``InsufficientInstanceCapacity``; empty: none. ``advice``: the next
    step, as a sentence; empty: the advice of the class. ``kind``: a text that is equal for failures with the same
    cause, such as the message without its numbers; a starting pool treats the failure as permanent if it occurs twice
    in a row. Empty: the failure may be temporary.
    """

    retry_after_s: float | None = None
    code: str = ""
    advice: str = ""
    kind: str = ""

    def __init__(
        self, message: str, *, retry_after_s: float | None = None, code: str = "", advice: str = "", kind: str = ""
    ) -> None:
        super().__init__(message)
        self.kind = re.sub(r"\d+", "", kind)
        self.retry_after_s = retry_after_s
        self.code = code
        self.advice = advice


class UnknownOption(TypeError, ValueError):
    """An option that a provider, or one of its parts, does not have. ``except ValueError`` catches all errors in
    options: this one and `SpecError` are both ValueErrors.
    """


class NoCapacity(ProviderError):
    """No such machine is available here now: try elsewhere, or later."""


class Unreachable(ProviderError):
    """The provider's service cannot be reached from this computer: no request was sent."""


class HostAway(ProviderError):
    """A host, or a service on it, does not respond at present. Whether the command was carried out is unknown."""


class QuotaExceeded(ProviderError):
    """The account's quota is reached, not the cloud's stock: request more quota, or fewer machines."""


class NotAuthorized(ProviderError):
    """Credentials are missing, wrong, expired or too weak."""


class BadRequest(ProviderError):
    """The request can never succeed: the user's specification is wrong."""


class JournalError(ProviderError):
    """A record that must outlive the client cannot be written: nothing was created, as it could not be found again."""


class NotGone(ProviderError):
    """The end of a pool's machines is not confirmed. Leaving a provider's context raises this at its end, after it has
    removed everything that it could.

    ``machines`` may still be running, and so may ``unsure`` further machines without known ids. ``left`` names
    resources that cost nothing, to display, as in "launch template lt-1". ``by``: unix time by which all machines have
    ended themselves; None: unknown. ``why`` is the message without these parts. The error's cause is the provider's
    failure.
    """

    def __init__(
        self,
        message: str,
        *,
        machines: Iterable[str] = (),
        left: Iterable[str] = (),
        by: float | None = None,
        unsure: bool = False,
        code: str = "",
    ) -> None:
        machines, left = tuple(machines), tuple(left)
        running = f"; may still be running: {', '.join(machines)}" if machines else ""
        others = f"; left at no cost: {', '.join(left)}" if left else ""
        super().__init__(f"{message}{running}{others}", code=code)
        self.why = message
        self.machines = machines
        self.left = left
        self.by = by
        self.unsure = unsure

    def beside(self, left: Iterable[str]) -> NotGone:
        """Return a copy of this error that names ``left`` as well."""
        facts = {"machines": self.machines, "by": self.by, "unsure": self.unsure, "code": self.code}
        return NotGone(self.why, left=(*self.left, *left), **facts)  # type: ignore[arg-type]

    @property
    def costs(self) -> bool:
        """Return whether machines may still be running."""
        return bool(self.machines) or self.unsure
