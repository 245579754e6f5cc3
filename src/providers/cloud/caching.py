"""Results that are computed once: shared by concurrent callers, kept for a while, or kept on disk (prices).

`Shared` and `OncePerKey` compute a result for the first caller, and other callers wait for it. `kept_for` caches a
cloud's responses for all pools of this process. `current_prices` combines the table in the package, the prices that are
cached on disk, and the cloud's own price list.
"""

from __future__ import annotations

import json
import math
import tempfile
from collections.abc import Awaitable, Callable, Collection, Coroutine, Hashable, Iterable, Mapping, Sequence
from contextlib import suppress
from functools import cache, partial, wraps
from pathlib import Path
from time import monotonic
from typing import TYPE_CHECKING, Any, Concatenate, Final, Generic, ParamSpec, TypeVar

import anyio

from ...lazy_dataclass import dataclass
from ..errors import ProviderError
from ..shared.paths import check_private, make_private
from ..shared.side_by_side import only

if TYPE_CHECKING:
    from anyio.abc import TaskGroup


K = TypeVar("K", bound=Hashable)
T = TypeVar("T")


class _Try(Generic[T]):
    def __init__(self) -> None:
        self.scope = anyio.CancelScope()
        self.done = anyio.Event()
        self.results: list[T] = []
        self.error: BaseException | None = None


class Shared(Generic[T]):
    """The result of ``make``, which is computed once and shared by all callers.

    An error is raised in all waiting callers. After a transient error, a later caller starts the computation again.
    """

    def __init__(self, tasks: TaskGroup, make: Callable[[], Awaitable[T]]) -> None:
        self._tasks, self._make = tasks, make
        self._try: _Try[T] | None = None

    def start(self) -> None:
        """Start the computation, unless it has started."""
        if self._try is None:
            self._try = _Try()
            self._tasks.start_soon(self._run, self._try)

    async def get(self) -> T:
        """Wait for the result. Cancelling a caller leaves the computation running."""
        self.start()
        mine = self._try
        assert mine is not None
        await mine.done.wait()
        if mine.error is None:
            return mine.results[0]
        if mine is self._try and getattr(mine.error, "retry_after_s", None) is not None:
            self._try = None
        raise mine.error

    async def stop(self) -> None:
        """Cancel the computation if it is running, and wait for its end."""
        if self._try is not None:
            self._try.scope.cancel()
            await self._try.done.wait()

    async def _run(self, mine: _Try[T]) -> None:
        mine.error = ProviderError("the pool is closing")
        try:
            with mine.scope:
                mine.results.append(await self._make())
                mine.error = None
        except Exception as error:  # noqa: BLE001  raised in every caller of `get`
            mine.error = only(error)
        finally:
            mine.done.set()


class OncePerKey(Generic[K, T]):
    """The result of ``make(key)`` for each key. The first caller computes it, other callers wait, and the result is
    kept.

    If the computation fails or is cancelled, the next caller repeats it.
    """

    def __init__(self, make: Callable[[K], Awaitable[T]]) -> None:
        self._make = make
        self._results: dict[K, T] = {}
        self._making: dict[K, anyio.Lock] = {}

    async def get(self, key: K) -> T:
        async with self._making.setdefault(key, anyio.Lock()):
            if key not in self._results:
                self._results[key] = await self._make(key)
            return self._results[key]

    def forget(self, key: K, result: T) -> None:
        """Drop the result of a key, unless the key has another result by now."""
        if self._results.get(key) is result:
            del self._results[key]


# --- responses kept for a while ---------------------------------------------------------------------------------------


P = ParamSpec("P")
Api = TypeVar("Api")


@dataclass(frozen=True, slots=True)
class _Kept:
    value: Any
    until: float


_cache: dict[Hashable, _Kept] = {}


async def cached(key: Hashable, seconds: float, find: Callable[[], Awaitable[T]]) -> T:
    """Return the cached result of ``find`` if the result is younger than ``seconds``; else call ``find``. Errors are
    not cached.
    """
    kept = _cache.get(key)
    if kept is None or kept.until <= monotonic():
        kept = _cache[key] = _Kept(await find(), monotonic() + seconds)
    value: T = kept.value
    return value


def kept_for(
    seconds: float, by: Callable[[Api], Hashable]
) -> Callable[[Callable[Concatenate[Api, P], Awaitable[T]]], Callable[Concatenate[Api, P], Coroutine[Any, Any, T]]]:
    """Return a decorator for a query ``ask(api, ...)``: it caches each result for ``seconds``, with the `repr` of the
    arguments as the key.

    ``by``: returns a further part of the key for an ``api``, such as its region. Errors are not cached.
    """

    def decorated(
        ask: Callable[Concatenate[Api, P], Awaitable[T]],
    ) -> Callable[Concatenate[Api, P], Coroutine[Any, Any, T]]:
        @wraps(ask)
        async def answer(api: Api, /, *args: P.args, **kwargs: P.kwargs) -> T:
            key = (ask.__module__, ask.__qualname__, by(api), repr((args, kwargs)))
            return await cached(key, seconds, partial(ask, api, *args, **kwargs))

        return answer

    return decorated


# --- prices kept on disk ----------------------------------------------------------------------------------------------


MONTH_S: Final = 30 * 86400.0  # the oldest price to use without a new request; on-demand prices rarely change


@dataclass(frozen=True, slots=True)
class Price:
    """A price in USD per hour, and its date (seconds since 1970)."""

    usd: float
    at: float


@cache
def bundled_table(module: str) -> Mapping[str, Any]:
    """Return the table in ``prices.json`` beside a module. ``module``: the module's ``__file__``."""
    table: dict[str, Any] = json.loads(Path(module).with_name("prices.json").read_text(encoding="utf-8"))
    return table


def cheapest_first(prices: Iterable[tuple[str, float]]) -> list[str]:
    """Return the regions in these (region, price) pairs, each once, ordered by the lowest price of each region."""
    lowest: dict[str, float] = {}
    for place, price in prices:
        lowest[place] = min(price, lowest.get(place, math.inf))
    return sorted(lowest, key=lambda place: (lowest[place], place))


async def current_prices(
    types: Collection[str],
    known: Mapping[str, Price],
    ask: Callable[[Sequence[str]], Awaitable[Mapping[str, float]]],
    *,
    now: float,
    kept: Path | None,
    at_a_time: int,
    patience_s: float,
) -> dict[str, float]:
    """Return the prices of these types in USD per hour. Types without a known price are left out; no error is raised.

    ``known``: prices from the package's table; prices in the cache file ``kept`` are newer. Prices that are missing or
    older than a month are requested, ``at_a_time`` types per call, and cached. If the price list does not answer all
    calls within ``patience_s``, refuses, or answers in an unknown form, old prices are used. ``now``: seconds since
    1970.
    """
    prices = {**known} | {name: price for name, price in _read(kept).items() if name in types}
    old = [name for name in types if name not in prices or prices[name].at < now - MONTH_S]
    fresh: dict[str, Price] = {}
    # any failure of the price list is ignored, because the old prices can be used
    with anyio.move_on_after(patience_s), suppress(Exception):
        for start in range(0, len(old), at_a_time):
            answer = await ask(old[start : start + at_a_time])
            fresh |= {name: Price(usd, now) for name, usd in answer.items()}
    if fresh:
        _write(kept, _read(kept) | fresh)
    return {name: price.usd for name, price in (prices | fresh).items()}


def _read(kept: Path | None) -> dict[str, Price]:
    if kept is None:
        return {}
    try:
        # if other users may write to this folder, they could set a low price for an expensive machine
        check_private(kept.parent)
        return {name: Price(float(usd), float(at)) for name, (usd, at) in json.loads(kept.read_text("utf-8")).items()}
    except (OSError, ValueError, TypeError, AttributeError):
        return {}  # there is no cache file, others may write to its folder, or it is damaged


def _write(kept: Path | None, prices: Mapping[str, Price]) -> None:
    if kept is None:
        return
    text = json.dumps({name: [price.usd, price.at] for name, price in sorted(prices.items())}, indent=0)
    try:
        make_private(kept.parent)
        with tempfile.NamedTemporaryFile("w", encoding="utf-8", dir=kept.parent, delete=False) as file:
            file.write(text)
        Path(file.name).replace(kept)
    except OSError:
        pass  # if the cache cannot be written, the next process requests the price list again
