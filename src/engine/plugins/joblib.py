"""The joblib plugin: ``joblib.parallel_config(backend="outrider")`` runs joblib's tasks on the pool.

The plugin runs only at the client. `joblib_backend` is imported when joblib is known to be installed.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, ClassVar

from ...lazy_dataclass import dataclass
from ..api.errors import SpecError
from ..api.plugin import Plugin
from .client_versions import same_version

if TYPE_CHECKING:
    from ..api.plugin import PluginContext
    from .joblib_backend import JoblibPool


def joblib() -> Joblib:
    """Let joblib, and libraries that use it, run tasks on the pool.

        with Pool(nodes=4, plugins=[plugins.joblib()]) as pool:
            with joblib.parallel_config(backend="outrider"):
                GridSearchCV(model, grid).fit(X, y)

    ``n_jobs=-1`` means all slots of the pool. If several such pools are open, name one:
    ``parallel_config(backend="outrider", pool=pool)``.
    """
    return Joblib()


@dataclass(frozen=True)
class Joblib(Plugin):
    """The plugin that `joblib` makes."""

    name: ClassVar[str] = "joblib"

    def packages(self, accelerators: Sequence[str]) -> Sequence[str]:  # noqa: ARG002
        return (same_version("joblib"),)

    @asynccontextmanager
    async def attach(self, context: PluginContext) -> AsyncIterator[JoblibPool]:
        """Offer the pool to joblib while it is open.

        Raises:
            SpecError: joblib is not installed here.
        """
        async with opened(context, default=False) as pool:
            yield pool


@asynccontextmanager
async def opened(context: PluginContext, *, default: bool) -> AsyncIterator[JoblibPool]:
    """Make the pool a backend of joblib during the block; with ``default``, joblib's default backend.

    Raises:
        SpecError: joblib is not installed here, or another pool is the default.
    """
    try:
        from .joblib_backend import JoblibPool, offer
    except ModuleNotFoundError as error:
        raise SpecError(
            f"The joblib plugin needs joblib here, and on the nodes ({error}): pip install joblib."
        ) from error
    pool = JoblibPool(context)
    with offer(pool, default=default):
        try:
            yield pool
        finally:
            pool.close()
