"""A pool as a backend of joblib's: batches become tasks, arrays that several of them name are sent to a node once.

joblib calls a backend from the thread that called ``Parallel`` and from the one that reports results; the pool lives
on its loop. What is pickled and unpickled is so in joblib's threads, the loop only passes bytes.
"""

from __future__ import annotations

import asyncio
import io
import pickle
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, nullcontext
from functools import partial
from typing import TYPE_CHECKING, Any, cast

import cloudpickle
from joblib import parallel
from joblib._parallel_backends import AutoBatchingMixin, ParallelBackendBase

from ..api.compute import compute
from ..api.errors import PoolClosed, SpecError
from ..client.jobs import SubmittedJob
from ..serialization import pickling
from ..wire.values import INLINE_BYTES

if TYPE_CHECKING:
    from ..api.plugin_sides import PluginContext
    from ..client.open_pool import OpenPool
    from ..serialization.shared import Shared

NAME = "outrider"
LARGE_BYTES = INLINE_BYTES  # what would not ride in a frame is worth a blob that other batches can name
IDLE_BYTES = 1024 * 1024 * 1024  # of large objects that no unfinished batch names, but one to come may


class JoblibPool:
    """What `Pool.handle` gives: the pool as joblib sees it. ``parallel_config(backend=handle.backend())``."""

    def __init__(self, site: PluginContext) -> None:
        self._site = site
        self.core: OpenPool = site.core
        self.loop = asyncio.get_running_loop()
        self.reports = ThreadPoolExecutor(1, thread_name_prefix="outrider-joblib")
        self._thread = threading.get_ident()
        self._closed = False

    def backend(self, **options: Any) -> OutriderBackend:
        """A backend that runs on this pool, whatever others are open."""
        return OutriderBackend(pool=self, **options)

    @property
    def slots(self) -> int:
        return self._site.slots

    def check(self) -> None:
        """
        Raises:
            PoolClosed
            SpecError: called where waiting would stop the pool itself.
        """
        if self._closed:
            raise PoolClosed("The pool that this joblib backend runs on has ended: open another one.")
        if threading.get_ident() == self._thread:
            raise SpecError(
                "joblib would wait for the pool on the pool's own event loop: call it in a thread, by "
                "asyncio.to_thread(...), or open the pool by `with Pool(...)`."
            )

    def close(self) -> None:
        self._closed = True
        self.reports.shutdown(wait=False)


class Opened:
    """The open pools: of whom the backend's name alone means one."""

    def __init__(self) -> None:
        self.pools: list[JoblibPool] = []
        self.default: JoblibPool | None = None
        self.lock = threading.Lock()


_opened = Opened()


@contextmanager
def offered(pool: JoblibPool, *, default: bool) -> Iterator[None]:
    """The pool is joblib's within this; when the last one goes, joblib is as it was.

    Raises:
        SpecError: another pool is the ``default``.
    """
    with _opened.lock:
        before = parallel.DEFAULT_BACKEND
        if default and _opened.default is not None:
            raise SpecError(
                "Another open pool is scikit-learn's default already: give this one sklearn(default=False)."
            )
        _opened.pools.append(pool)
        _opened.default = pool if default else _opened.default
        parallel.register_parallel_backend(NAME, OutriderBackend, make_default=default)
    try:
        yield
    finally:
        with _opened.lock:
            _opened.pools.remove(pool)
            if default:
                _opened.default = None
                parallel.DEFAULT_BACKEND = before
            if not _opened.pools:
                parallel.BACKENDS.pop(NAME, None)


class OutriderBackend(AutoBatchingMixin, ParallelBackendBase):  # type: ignore[misc]
    """One for each ``parallel_config`` or ``Parallel``. ``pool``: which, where several are open."""

    supports_retrieve_callback = True
    supports_inner_max_num_threads = True
    default_n_jobs = -1

    def __init__(
        self,
        nesting_level: int | None = None,
        inner_max_num_threads: int | None = None,
        pool: Any = None,
        **options: Any,
    ) -> None:
        super().__init__(nesting_level=nesting_level, inner_max_num_threads=inner_max_num_threads, **options)
        self._pool = None if pool is None else _of(pool)
        self._jobs: set[Work] = set()
        self._large = Large()
        self._modules: dict[str, bool] = {}  # whether nodes can import them

    # --- what joblib asks --------------------------------------------------------------------------------------------

    def effective_n_jobs(self, n_jobs: int | None) -> int:  # pyright: ignore[reportIncompatibleMethodOverride]
        """With one slot it is 2 all the same: at 1 joblib would run everything here."""
        if n_jobs == 0:
            raise ValueError("n_jobs == 0 in Parallel has no meaning")
        slots = self._chosen().slots
        if n_jobs is None:
            n_jobs = -1
        return n_jobs if n_jobs > 0 else max(slots + 1 + n_jobs, 2)

    def configure(  # pyright: ignore[reportIncompatibleMethodOverride]
        self, n_jobs: int = 1, parallel: Any = None, pool: Any = None, **_: Any
    ) -> int:
        self.parallel = parallel
        if pool is not None:
            self._pool = _of(pool)
        self._chosen().check()
        return self.effective_n_jobs(n_jobs)

    def stop_call(self) -> None:
        """The arrays of this call are not needed any more; another call may find them changed."""
        large, self._large = self._large, Large()
        self._chosen().loop.call_soon_threadsafe(large.close)

    def submit(self, func: Any, callback: Callable[[Any], None] | None = None) -> Work:
        pool = self._chosen()
        pool.check()
        packed, named = self._packed(func)
        self._large.submitted(named)
        work = Work(pool, self._jobs, callback, partial(self._large.left, named))
        call = run_batch(packed, self.inner_max_num_threads, *named).with_(name=_name(func))
        self._jobs.add(work)
        pool.loop.call_soon_threadsafe(work.start, call)
        return work

    def retrieve_result_callback(self, out: Work) -> Any:
        return out.result()

    def abort_everything(self, ensure_ready: bool = True) -> None:  # noqa: ARG002  there is nothing to make ready
        """End the tasks on their nodes, with all that they started."""
        for work in tuple(self._jobs):
            work.cancel()

    def terminate(self) -> None:
        self._jobs.clear()

    # --- helpers -----------------------------------------------------------------------------------------------------

    def _chosen(self) -> JoblibPool:
        if self._pool is None:
            pools = _opened.pools if _opened.default is None else [_opened.default]
            if not pools:
                raise PoolClosed("No pool is open for joblib: open a Pool(plugins=[plugins.joblib()]) around it.")
            if len(pools) > 1:
                raise SpecError(
                    f'{len(pools)} pools are open for joblib: say which one, by parallel_config(backend="outrider", '
                    "pool=pool)."
                )
            self._pool = pools[0]
        return self._pool

    def _packed(self, batch: Any) -> tuple[bytes, list[Reference]]:
        """The batch as bytes, and what it refers to."""
        file = io.BytesIO()
        pickler = Pickler(file, self._large)
        modules = {getattr(_function(each), "__module__", None) or "" for each, *_ in batch.items}
        with pickling.towards(self._chosen().core.reach):
            mine = [name for name in modules if not self._modules.setdefault(name, pickling.reached(name))]
            with pickling.copied(*mine):
                pickler.dump(batch)
        return file.getvalue(), pickler.named


class Work:
    """One batch on its way; its result is unpickled by who asks, in joblib's thread."""

    def __init__(
        self, pool: JoblibPool, jobs: set[Work], callback: Callable[[Any], None] | None, ended: Callable[[], None]
    ) -> None:
        self._pool, self._jobs, self._callback, self._ended = pool, jobs, callback, ended
        self._job: SubmittedJob[Any] | None = None
        self._error: BaseException | None = None
        self._cancelled = False

    def start(self, call: Any) -> None:
        """On the loop."""
        core = self._pool.core
        if self._cancelled:
            return
        try:
            payload = core.packer.pack(_resolved(core, call))
            job: SubmittedJob[Any] = SubmittedJob(core, payload, call.options)
            self._job = job
            core.submit(job.id, payload, call.options, None, self._settled)
        except Exception as error:  # noqa: BLE001  told to whoever asks for the result
            self._error = error
            self._report()

    def cancel(self) -> None:
        self._cancelled = True
        self._pool.loop.call_soon_threadsafe(lambda: self._job is not None and self._job.cancel())

    def result(self) -> Any:
        if self._error is not None:
            raise self._error
        assert self._job is not None, "reported after it was settled"
        return self._job.result()

    get = result

    def _settled(self, ending: Any) -> None:
        assert self._job is not None, "submitted before it can be settled"
        self._job(ending)
        self._report()

    def _report(self) -> None:
        self._jobs.discard(self)
        self._ended()
        if self._callback is not None and not self._cancelled:
            try:
                self._pool.reports.submit(self._callback, self)
            except RuntimeError:  # the pool is closed, and whoever waits is told by its next call
                threading.Thread(target=self._callback, args=(self,), daemon=True).start()


# --- large arguments -------------------------------------------------------------------------------------------------


class Reference:
    """A large object that batches of one call name; shared with the nodes when the first of them is sent."""

    __slots__ = ("batches", "shared", "size_bytes", "value")

    def __init__(self, value: Any) -> None:
        self.value = value  # kept, so that nothing else can have its identity
        self.size_bytes: int = len(value) if isinstance(value, bytes) else value.nbytes
        self.shared: Shared[Any] | None = None
        self.batches = 0  # that name it and are unfinished

    def close(self) -> None:
        """On the loop. Whoever still has this keeps no memory by it."""
        if self.shared is not None:
            self.shared.close()
        self.value = self.shared = None


class Large:
    """The large objects of one ``Parallel`` call, by identity, as joblib's own memory mapping has it.

    A call may read any number of files, each into an array of its own, so not all of them can stay until its end; but
    the next batch may name the same ones as the last. Those that no unfinished batch names stay up to `IDLE_BYTES`, the
    latest to become so; what the newest batch names stays anyhow. What has gone is shared anew when it is named.
    """

    def __init__(self) -> None:
        self._references: dict[int, Reference] = {}
        self._idle: dict[Reference, None] = {}  # in the order in which they became so
        self._idle_bytes = 0
        self._newest: Sequence[Reference] = ()  # counts as unfinished
        self._lock = threading.Lock()  # objects are named in joblib's threads, batches end on the loop

    def name(self, value: Any, named: list[Reference]) -> int:
        """Its place among what a batch has ``named``, where it comes to be."""
        with self._lock:
            reference = self._references.get(id(value))
            if reference is None:
                reference = self._references[id(value)] = Reference(value)
            if reference not in named:
                named.append(reference)
                self._use([reference])
            return named.index(reference)

    def submitted(self, named: Sequence[Reference]) -> None:
        """A batch that names these is the newest."""
        with self._lock:
            self._use(named)
            self._leave(self._newest)
            self._newest = named

    def left(self, named: Sequence[Reference]) -> None:
        """A batch that named these has ended. On the loop."""
        gone = []
        with self._lock:
            self._leave(named)
            while self._idle_bytes > IDLE_BYTES:
                oldest = next(iter(self._idle))
                self._take_from_idle(oldest)
                self._references.pop(id(oldest.value), None)
                gone.append(oldest)
        for each in gone:
            each.close()

    def close(self) -> None:
        """On the loop."""
        with self._lock:
            references = list(self._references.values())
            self._references.clear()
        for each in references:
            each.close()

    def _use(self, references: Sequence[Reference]) -> None:
        for each in references:
            if each in self._idle:
                self._take_from_idle(each)
            each.batches += 1

    def _leave(self, references: Sequence[Reference]) -> None:
        for each in references:
            each.batches -= 1
            if not each.batches:
                self._idle[each] = None
                self._idle_bytes += each.size_bytes

    def _take_from_idle(self, reference: Reference) -> None:
        del self._idle[reference]
        self._idle_bytes -= reference.size_bytes


class Pickler(cloudpickle.Pickler):  # type: ignore[misc]
    """Leaves large arrays and byte strings out, wherever they are, and lists them."""

    def __init__(self, file: io.BytesIO, large: Large) -> None:
        super().__init__(file, protocol=5)
        self._large = large
        self.named: list[Reference] = []
        self._arrays = _array_type()

    def persistent_id(self, obj: Any) -> int | None:
        kind = type(obj)
        if kind is bytes:
            if len(obj) < LARGE_BYTES:
                return None
        elif kind is not self._arrays or obj.nbytes < LARGE_BYTES or obj.dtype.hasobject:
            return None
        return self._large.name(obj, self.named)


class Unpickler(pickle.Unpickler):
    def __init__(self, file: io.BytesIO, large: Sequence[Any]) -> None:
        super().__init__(file)
        self._large = large

    def persistent_load(self, pid: Any) -> Any:
        return self._large[pid]


@compute
def run_batch(packed: bytes, threads: int | None, *large: Any) -> Any:
    """On the node: one of joblib's batches, with its large arguments."""
    batch = Unpickler(io.BytesIO(packed), large).load()
    with _limited(threads):
        return batch()


def _resolved(core: OpenPool, call: Any) -> Any:
    """The call with its references shared, those that are new to the pool from now on."""
    packed, threads, *references = call.args
    shared = []
    for reference in cast("list[Reference]", references):
        if reference.shared is None:
            reference.shared = core.packer.share(reference.value)
        shared.append(reference.shared)
    return type(call)(call.function, (packed, threads, *shared), {}, call.options)


def _limited(threads: int | None) -> Any:
    """As many threads of BLAS and OpenMP as this task's share of the processors, or as many as were asked for."""
    try:
        from threadpoolctl import threadpool_limits
    except ModuleNotFoundError:
        return nullcontext()
    return threadpool_limits(threads or _share())


def _share() -> int:
    import os

    from ..runtime.instance_info import instance_info

    info = instance_info()
    here = max(1, sum(peer.hostname == info.hostname for peer in info.peers))  # nodes of one computer share it
    return max(1, len(os.sched_getaffinity(0)) // (info.workers_per_node * here))


def _of(pool: Any) -> JoblibPool:
    """From whatever users call the pool."""
    if isinstance(pool, JoblibPool):
        return pool
    for name in ("joblib", "sklearn"):
        try:
            found = pool.handle(name)
        except SpecError:
            continue
        return cast("JoblibPool", found)
    raise SpecError("This pool has no joblib plugin: open it with plugins=[plugins.joblib()].")


def _name(batch: Any) -> str:
    function = _function(batch.items[0][0]) if len(batch.items) else None
    return getattr(function, "__name__", None) or "joblib"


def _function(function: Any) -> Any:
    """The user's, out of scikit-learn's wrapper."""
    return getattr(function, "function", function)


def _array_type() -> Any:
    import sys

    numpy = sys.modules.get("numpy")  # without it there are no arrays
    return None if numpy is None else numpy.ndarray
