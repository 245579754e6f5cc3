"""Imports of packages that belong to one of Outrider's extras, which may not be installed."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from ..errors import BadRequest


@contextmanager
def from_extra(cloud: str, extra: str, *packages: str) -> Iterator[None]:
    """Return a context for imports of ``packages``, or of modules that need them.

    Raises:
        BadRequest: A package is missing; the error says how to install the extra.
    """
    try:
        yield
    except ImportError as error:
        if (error.name or "").split(".")[0] not in packages:
            raise
        raise BadRequest(f"{cloud} needs a part that is not installed: pip install 'outrider[{extra}]'") from error
