"""The errors of a provider, one class for each reaction of the caller. The messages for users are in
`engine.api.errors`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable


class ProviderError(Exception):
    """The base of all errors of a provider.

    ``retry_after_s``: seconds after which a retry may succeed; None: no retry can succeed. ``code``: the cloud's own
    error code, such as ``InsufficientInstanceCapacity``; empty: there is none. ``advice``: the next step, as a
    sentence; empty: the advice of the class.

    ``kind``: a text that is equal for failures with the same cause, such as the message without its numbers. If a pool
    that starts gets the same kind twice in a row, it treats the failure as permanent. Empty: the failure may be
    temporary.
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
    """An option that a provider, or one of its parts, does not have. This error and `SpecError` are both ValueErrors,
    so ``except ValueError`` catches all errors in options.
    """


class NoCapacity(ProviderError):
    """No such machine is available here now: try elsewhere, or later."""


class Unreachable(ProviderError):
    """The provider's service cannot be reached from this computer, so no request was sent."""


class HostAway(ProviderError):
    """A host, or a service on it, does not respond at present. It is unknown whether the command was carried out."""


class QuotaExceeded(ProviderError):
    """The account's quota is reached; the cloud may have machines. Request more quota, or fewer machines."""


class NotAuthorized(ProviderError):
    """Credentials are missing, wrong, expired or too weak."""


class BadRequest(ProviderError):
    """The request can never succeed: the user's specification is wrong."""


class JournalError(ProviderError):
    """A record that must outlive the client cannot be written. Nothing was created, because it could not be found
    again.
    """


class NotGone(ProviderError):
    """The end of a pool's machines is not confirmed. Leaving a provider's block raises this error after it has removed
    everything that it could.

    ``machines`` may still be running. ``unsure``: further machines, whose ids are unknown, may also be running.
    ``left`` names resources that cost nothing, as texts to display, such as "launch template lt-1". ``by``: unix time
    by which all machines have ended themselves; None: unknown. ``why`` is the message without these lists. The error's
    ``__cause__`` is the provider's failure.
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
        """Return a copy of this error that also names the resources ``left``."""
        facts = {"machines": self.machines, "by": self.by, "unsure": self.unsure, "code": self.code}
        return NotGone(self.why, left=(*self.left, *left), **facts)  # type: ignore[arg-type]

    @property
    def costs(self) -> bool:
        """Return whether machines may still be running, and so cost money."""
        return bool(self.machines) or self.unsure
