"""A pool as a backend of joblib: batches become tasks, and arrays that several batches use are sent to a node once.

joblib calls a backend from two threads: the caller of ``Parallel``, and the thread that reports results. The pool runs
on its event loop. Pickling and unpickling happen in joblib's threads; the loop only passes bytes on.
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

from joblib import parallel
from joblib._parallel_backends import AutoBatchingMixin, ParallelBackendBase

from ..api.compute import compute
from ..api.errors import PoolClosed, SpecError
from ..client.jobs import SubmittedJob
from ..serialization import function_pickling
from ..wire import importable, pickler
from ..wire.values import INLINE_BYTES

if TYPE_CHECKING:
    from ..api.plugin import PluginContext
    from ..client.job_intake import JobIntake
    from ..serialization.payload import Shared

NAME = "outrider"
LARGE_BYTES = INLINE_BYTES  # larger objects do not fit in a frame: batches share them as blobs
# most bytes of large objects that are kept, for later batches, when no unfinished batch uses them
IDLE_BYTES = 1024 * 1024 * 1024


class JoblibPool:
    """The pool as joblib uses it, and as `Pool.handle` returns it: ``parallel_config(backend=handle.backend())``."""

    def __init__(self, context: PluginContext) -> None:
        self._context = context
        self.core: JobIntake = context.core
        self.loop = asyncio.get_running_loop()
        self.reports = ThreadPoolExecutor(1, thread_name_prefix="outrider-joblib")
        self._thread = threading.get_ident()
        self._closed = False

    def backend(self, **options: Any) -> OutriderBackend:
        """Return a backend that runs on this pool, even if other pools are open."""
        return OutriderBackend(pool=self, **options)

    @property
    def slots(self) -> int:
        return self._context.slots

    def check(self) -> None:
        """Check that the pool can be used from this thread.

        Raises:
            PoolClosed: the pool has ended.
            SpecError: this is the thread of the pool's event loop, which a wait would block.
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


class OpenPools:
    """The open pools that joblib can use, and the default one."""

    def __init__(self) -> None:
        self.pools: list[JoblibPool] = []
        self.default: JoblibPool | None = None
        self.lock = threading.Lock()


_open_pools = OpenPools()


@contextmanager
def offer(pool: JoblibPool, *, default: bool) -> Iterator[None]:
    """Let joblib use the pool during the block. After the last pool, joblib's former state is restored.

    Raises:
        SpecError: another pool is the ``default`` already.
    """
    with _open_pools.lock:
        before = parallel.DEFAULT_BACKEND
        if default and _open_pools.default is not None:
            raise SpecError(
                "Another open pool is scikit-learn's default already: give this one sklearn(default=False)."
            )
        _open_pools.pools.append(pool)
        _open_pools.default = pool if default else _open_pools.default
        parallel.register_parallel_backend(NAME, OutriderBackend, make_default=default)
    try:
        yield
    finally:
        with _open_pools.lock:
            _open_pools.pools.remove(pool)
            if default:
                _open_pools.default = None
                parallel.DEFAULT_BACKEND = before
            if not _open_pools.pools:
                parallel.BACKENDS.pop(NAME, None)


class OutriderBackend(AutoBatchingMixin, ParallelBackendBase):  # type: ignore[misc]
    """The backend of one ``parallel_config`` or ``Parallel``. ``pool``: the pool to use, if several are open."""

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
        self._pool = None if pool is None else _joblib_pool(pool)
        self._jobs: set[Batch] = set()
        self._large = LargeObjects()
        self._modules: dict[str, bool] = {}  # module name -> whether nodes can import the module

    # --- called by joblib --------------------------------------------------------------------------------------------

    def effective_n_jobs(self, n_jobs: int | None) -> int:  # pyright: ignore[reportIncompatibleMethodOverride]
        """Return the number of parallel tasks, at least 2 if ``n_jobs`` is relative to the slots.

        With 1, joblib would not use a backend.
        """
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
            self._pool = _joblib_pool(pool)
        self._chosen().check()
        return self.effective_n_jobs(n_jobs)

    def stop_call(self) -> None:
        """Release the arrays of this ``Parallel`` call: the caller may change them before the next call."""
        large, self._large = self._large, LargeObjects()
        self._chosen().loop.call_soon_threadsafe(large.close)

    def submit(self, func: Any, callback: Callable[[Any], None] | None = None) -> Batch:
        pool = self._chosen()
        pool.check()
        packed, named = self._packed(func)
        self._large.batch_submitted(named)
        work = Batch(pool, self._jobs, callback, partial(self._large.batch_ended, named))
        call = run_batch(packed, self.inner_max_num_threads, *named).with_(name=_name(func))
        self._jobs.add(work)
        pool.loop.call_soon_threadsafe(work.start, call)
        return work

    def retrieve_result_callback(self, out: Batch) -> Any:
        return out.result()

    def abort_everything(self, ensure_ready: bool = True) -> None:  # noqa: ARG002  no preparation is needed
        """End the tasks on their nodes, with all processes that the tasks started."""
        for work in tuple(self._jobs):
            work.cancel()

    def terminate(self) -> None:
        self._jobs.clear()

    # --- helpers -----------------------------------------------------------------------------------------------------

    def _chosen(self) -> JoblibPool:
        if self._pool is None:
            pools = _open_pools.pools if _open_pools.default is None else [_open_pools.default]
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
        """Pickle a batch; return the bytes, and references to the batch's large objects."""
        file = io.BytesIO()
        chosen = Pickler(file, self._large)
        modules = {getattr(_function(each), "__module__", None) or "" for each, *_ in batch.items}
        with function_pickling.for_nodes(self._chosen().core.node_modules):
            mine = [name for name in modules if not self._modules.setdefault(name, importable.nodes_have(name))]
            with function_pickling.copying(*mine):
                chosen.dump(batch)
        return file.getvalue(), chosen.named


class Batch:
    """A submitted batch. Its result is unpickled in joblib's thread, when joblib first requests the result."""

    def __init__(
        self, pool: JoblibPool, jobs: set[Batch], callback: Callable[[Any], None] | None, ended: Callable[[], None]
    ) -> None:
        self._pool, self._jobs, self._callback, self._ended = pool, jobs, callback, ended
        self._job: SubmittedJob[Any] | None = None
        self._error: BaseException | None = None
        self._cancelled = False

    def start(self, call: Any) -> None:
        """Submit the batch. Runs on the event loop."""
        core = self._pool.core
        if self._cancelled:
            return
        try:
            payload = core.packer.pack(_resolved(core, call))
            job: SubmittedJob[Any] = SubmittedJob(core, payload, call.options)
            self._job = job
            core.submit(job, None, self._settled)
        except Exception as error:  # noqa: BLE001  raised when the result is requested
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
            except RuntimeError:  # the pool is closed; joblib's next call raises an error for that
                threading.Thread(target=self._callback, args=(self,), daemon=True).start()


# --- large arguments -------------------------------------------------------------------------------------------------


class Reference:
    """A large object that batches of one call use; its upload to the nodes begins with the first batch."""

    __slots__ = ("batches", "shared", "size_bytes", "value")

    def __init__(self, value: Any) -> None:
        self.value = value  # keeps the object alive, so that no other object can get its id
        self.size_bytes: int = len(value) if isinstance(value, bytes) else value.nbytes
        self.shared: Shared[Any] | None = None
        self.batches = 0  # number of unfinished batches that use the object

    def close(self) -> None:
        """Release the object. Runs on the event loop."""
        if self.shared is not None:
            self.shared.close()
        self.value = self.shared = None


class LargeObjects:
    """The large objects of one ``Parallel`` call, by identity, as in joblib's own memory mapping.

    A call may read any number of files, each into an array of its own, so the objects cannot all be kept until the end
    of the call; yet the next batch may use the same objects as the last batch. Objects that no unfinished batch uses
    are kept up to `IDLE_BYTES`, the most recent first; the objects of the newest batch are always kept. An object that
    was released is shared again at its next use.
    """

    def __init__(self) -> None:
        self._references: dict[int, Reference] = {}
        self._idle: dict[Reference, None] = {}  # objects that no unfinished batch uses, the longest unused first
        self._idle_bytes = 0
        self._newest: Sequence[Reference] = ()  # objects of the newest batch, which counts as unfinished
        self._lock = threading.Lock()  # joblib's threads add objects while batches end on the event loop

    def name(self, value: Any, named: list[Reference]) -> int:
        """Return the index of an object in ``named``, a batch's list of large objects; add a new object."""
        with self._lock:
            reference = self._references.get(id(value))
            if reference is None:
                reference = self._references[id(value)] = Reference(value)
            if reference not in named:
                named.append(reference)
                self._use([reference])
            return named.index(reference)

    def batch_submitted(self, named: Sequence[Reference]) -> None:
        """Note the newest batch, which uses ``named``."""
        with self._lock:
            self._use(named)
            self._leave(self._newest)
            self._newest = named

    def batch_ended(self, named: Sequence[Reference]) -> None:
        """Note that a batch that used ``named`` has ended. Runs on the event loop."""
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
        """Release all objects. Runs on the event loop."""
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


class Pickler(pickler.Pickler):
    """Replace large arrays and byte strings by references, at any depth of the pickled data, and list them."""

    def __init__(self, file: io.BytesIO, large: LargeObjects) -> None:
        super().__init__(file)
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
    """Run one of joblib's batches on the node, with its large objects."""
    batch = Unpickler(io.BytesIO(packed), large).load()
    with _limited(threads):
        return batch()


def _resolved(core: JobIntake, call: Any) -> Any:
    """Replace a call's references to large objects by shared values, which are sent to each node only once."""
    packed, threads, *references = call.args
    shared = []
    for reference in cast("list[Reference]", references):
        if reference.shared is None:
            reference.shared = core.packer.share(reference.value)
        shared.append(reference.shared)
    return type(call)(call.function, (packed, threads, *shared), {}, call.options)


def _limited(threads: int | None) -> Any:
    """Limit BLAS and OpenMP to ``threads``, by default to this task's share of the processors."""
    try:
        from threadpoolctl import threadpool_limits
    except ModuleNotFoundError:
        return nullcontext()
    return threadpool_limits(threads or _share())


def _share() -> int:
    import os

    from ..runtime.instance_info import instance_info

    info = instance_info()
    here = max(1, sum(peer.hostname == info.hostname for peer in info.peers))  # nodes on this computer
    return max(1, len(os.sched_getaffinity(0)) // (info.workers_per_node * here))


def _joblib_pool(pool: Any) -> JoblibPool:
    """Return the `JoblibPool` of a user's argument ``pool=``."""
    if isinstance(pool, JoblibPool):
        return pool
    for name in ("joblib", "sklearn"):
        try:
            handle = pool.handle(name)
        except SpecError:
            continue
        return cast("JoblibPool", handle)
    raise SpecError("This pool has no joblib plugin: open it with plugins=[plugins.joblib()].")


def _name(batch: Any) -> str:
    function = _function(batch.items[0][0]) if len(batch.items) else None
    return getattr(function, "__name__", None) or "joblib"


def _function(function: Any) -> Any:
    """Return the user's function without scikit-learn's wrapper."""
    return getattr(function, "function", function)


def _array_type() -> Any:
    import sys

    numpy = sys.modules.get("numpy")  # no arrays exist before numpy is imported
    return None if numpy is None else numpy.ndarray
