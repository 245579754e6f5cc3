"""Vast.ai, as `outrider ps` and `outrider gc` ask it which instances there are, and where `gc` ends them."""

from __future__ import annotations

from contextlib import AbstractAsyncContextManager
from typing import TYPE_CHECKING

from ..cloud.surveyor import AccountSurveyor
from ..pool_lock import Place

if TYPE_CHECKING:
    from .cloud import VastCloud


class VastSurveyor(AccountSurveyor["VastCloud"]):
    """Implements `survey.Surveyor`."""

    provider = "vast"

    def reach(self, place: Place) -> AbstractAsyncContextManager[VastCloud]:
        from .cloud import reach

        return reach(place)
