"""The surveyor of Vast.ai. It lists instances for `outrider ps` and `outrider gc`, and ends them for `gc`."""

from __future__ import annotations

from contextlib import AbstractAsyncContextManager
from typing import TYPE_CHECKING

from ..cloud.surveyor import AccountSurveyor
from ..pool_lock import Place

if TYPE_CHECKING:
    from .cloud import VastCloud


class VastSurveyor(AccountSurveyor["VastCloud"]):
    """Implements `survey.Surveyor` for Vast.ai."""

    provider = "vast"

    def reach(self, place: Place) -> AbstractAsyncContextManager[VastCloud]:
        from .cloud import reach

        return reach(place)
