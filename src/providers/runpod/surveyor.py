"""The surveyor of RunPod. It lists pods for `outrider ps` and `outrider gc`, and ends them for `gc`."""

from __future__ import annotations

from contextlib import AbstractAsyncContextManager
from typing import TYPE_CHECKING

from ..cloud.surveyor import AccountSurveyor
from ..pool_lock import Place

if TYPE_CHECKING:
    from .cloud import RunPodCloud


class RunPodSurveyor(AccountSurveyor["RunPodCloud"]):
    """Implements `survey.Surveyor` for RunPod."""

    provider = "runpod"

    def reach(self, place: Place) -> AbstractAsyncContextManager[RunPodCloud]:
        from .cloud import reach

        return reach(place)
