"""Packages that come with an extra of Outrider's, which may not be installed."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from ..errors import BadRequest


@contextmanager
def from_extra(cloud: str, extra: str, *packages: str) -> Iterator[None]:
    """Import ``packages``, or what needs them, in this context.

    Raises:
        BadRequest: one of them is missing; says how to install the extra.
    """
    try:
        yield
    except ImportError as error:
        if (error.name or "").split(".")[0] not in packages:
            raise
        raise BadRequest(f"{cloud} needs a part that is not installed: pip install 'outrider[{extra}]'") from error
