"""The scikit-learn plugin: ``n_jobs`` of estimators counts the pool's slots."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, ClassVar

from ...lazy_dataclass import dataclass
from ..api.plugin import Plugin
from .client_versions import same_version
from .joblib import opened

if TYPE_CHECKING:
    from ..api.plugin import PluginContext
    from .joblib_backend import JoblibPool


def sklearn(*, default: bool = True) -> Sklearn:
    """Run scikit-learn's parallel work on the pool, as `plugins.joblib` does.

    Work that needs threads, such as the trees of a forest, stays here.

    Args:
        default: True: while the pool is open it is joblib's default backend, so that ``GridSearchCV(...,
            n_jobs=-1).fit(X, y)`` runs on it without a ``with`` block. Only one pool at a time can be the default.
    """
    return Sklearn(default)


@dataclass(frozen=True)
class Sklearn(Plugin):
    """The plugin that `sklearn` makes."""

    default: bool = True

    name: ClassVar[str] = "sklearn"

    def packages(self, accelerators: Sequence[str]) -> Sequence[str]:  # noqa: ARG002
        return (same_version("scikit-learn"), same_version("joblib"))

    @asynccontextmanager
    async def attach(self, context: PluginContext) -> AsyncIterator[JoblibPool]:
        """Offer the pool to joblib while it is open.

        Raises:
            SpecError: joblib is not installed here, or another pool is the default.
        """
        async with opened(context, default=self.default) as pool:
            yield pool
