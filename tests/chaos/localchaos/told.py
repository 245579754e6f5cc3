"""An error as the facts that a referee decides on."""

from __future__ import annotations

import errno
from typing import Any

SHOWN = 600


def told(error: BaseException) -> dict[str, Any]:
    """``kinds``: its type's name and those of its bases. ``leaves``: of a group, each of what is in it."""
    facts: dict[str, Any] = {
        "kinds": [each.__name__ for each in type(error).__mro__ if each is not object],
        "text": str(error)[:SHOWN],
    }
    number = getattr(error, "errno", None)
    if isinstance(number, int):
        facts["errno"] = errno.errorcode.get(number, str(number))
    for name in ("signal", "exit_code", "full", "losses", "outcomes"):
        if getattr(error, name, None) is not None:
            facts[name] = str(getattr(error, name))[:SHOWN]
    if isinstance(error, BaseExceptionGroup):
        facts["leaves"] = [told(each) for each in error.exceptions]
    elif error.__cause__ is not None and "RemoteTraceback" not in type(error.__cause__).__name__:
        facts["cause"] = f"{type(error.__cause__).__name__}: {error.__cause__}"[:SHOWN]
    return facts
