"""The scikit-learn plugin: ``n_jobs`` of its estimators means the pool's slots."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from ..api.plugin import Plugin
from .joblib import opened

if TYPE_CHECKING:
    from ..api.plugin_sides import PluginContext
    from .joblib_backend import JoblibPool


def sklearn(*, default: bool = True) -> Sklearn:
    """`plugins.joblib`, and by ``default`` without a ``with`` around the fit: while the pool is open it is joblib's
    default backend, so that ``GridSearchCV(..., n_jobs=-1).fit(X, y)`` runs on it.

    What asks for threads, as a forest's own trees do, stays here. One pool at a time can be the default.
    """
    return Sklearn(default)


@dataclass(frozen=True)
class Sklearn(Plugin):
    """See `sklearn`."""

    default: bool = True

    name: ClassVar[str] = "sklearn"

    @asynccontextmanager
    async def attach(self, site: PluginContext) -> AsyncIterator[JoblibPool]:
        """
        Raises:
            SpecError: joblib is not installed here, or another pool is the default.
        """
        async with opened(site, default=self.default) as pool:
            yield pool
