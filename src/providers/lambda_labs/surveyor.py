"""The surveyor of Lambda. It lists machines for `outrider ps` and `outrider gc`, and ends them for `gc`."""

from __future__ import annotations

from contextlib import AbstractAsyncContextManager
from typing import TYPE_CHECKING

from ..cloud.surveyor import AccountSurveyor
from ..pool_lock import Place

if TYPE_CHECKING:
    from .cloud import LambdaCloud


class LambdaSurveyor(AccountSurveyor["LambdaCloud"]):
    """Implements `survey.Surveyor` for Lambda."""

    provider = "lambda"

    def reach(self, place: Place) -> AbstractAsyncContextManager[LambdaCloud]:
        from .cloud import reach

        return reach(place)
