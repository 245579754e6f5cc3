"""What a user's program says on its standard output, as JSON: a client's life as its user sees it."""

from __future__ import annotations

import json
import time
from typing import Any

from outrider import OutriderError


def say(what: str, **facts: Any) -> None:
    print(json.dumps({"what": what, "at": time.time(), **facts}), flush=True)


def told(error: BaseException) -> dict[str, Any]:
    """What a user's ``except`` sees, and what a program that prints the error shows."""
    inside = error.exceptions if isinstance(error, BaseExceptionGroup) else ()
    return {
        "type": type(error).__name__,
        "kinds": [kind.__name__ for kind in type(error).__mro__],
        "typed": isinstance(error, OutriderError),
        "text": str(error),
        "notes": [*getattr(error, "__notes__", ())],
        "inside": [told(each) for each in inside],
        "cause": "" if error.__cause__ is None else f"{type(error.__cause__).__name__}: {error.__cause__}",
    }
