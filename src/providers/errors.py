"""The errors of a provider, divided by what the caller should do about each. `engine.api.errors` has users' words."""

from __future__ import annotations

import re
from collections.abc import Iterable


class ProviderError(Exception):
    """Base. ``retry_after_s``: the least time after which the same call may go better; None: it will not.

    ``code``: the cloud's own name for it, such as ``InsufficientInstanceCapacity``; empty: it has none. ``advice``: the
    next step, as a sentence; empty: the one that fits all errors of this class. ``kind``: equal for failures with the
    same cause, without its numbers, which a starting pool takes for lasting when met twice in a row; empty: it may pass
    by itself.
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
    """A provider, or what it is made of, was given an option that it does not have. As for all that is wrong with
    options, ``except ValueError`` catches it: `SpecError` of the rest is one as well.
    """


class NoCapacity(ProviderError):
    """No such machine is to be had here now: try elsewhere, or later."""


class Unreachable(ProviderError):
    """The provider's service cannot be reached from this computer: nothing was asked for."""


class HostAway(ProviderError):
    """A host, or the service there that is asked, does not answer at present. Whether the command was carried out,
    nobody knows.
    """


class QuotaExceeded(ProviderError):
    """The account's limit, not the cloud's stock: ask for more quota, or for less."""


class NotAuthorized(ProviderError):
    """Credentials are missing, wrong, expired or too weak."""


class BadRequest(ProviderError):
    """The request can never work as it is: the user's specification is at fault."""


class JournalError(ProviderError):
    """A record that must outlive the client cannot be written: nothing was created, as nobody could find it again."""


class NotGone(ProviderError):
    """A pool has been ended, and that it is gone is not confirmed. Raised by leaving a provider's context, at its end:
    what could be removed has been.

    ``machines`` may still be running, and ``unsure`` others of which nobody was told. ``left`` costs nothing: it is
    named for people, as in "launch template lt-1". ``by``: unix time at which the machines have ended themselves at
    the latest; None: nobody knows. ``why`` is the message without these. The cause is what the provider failed with.
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
        """Machines may still be running."""
        return bool(self.machines) or self.unsure
