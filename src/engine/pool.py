"""`Pool`: a set of nodes that exist while the pool's block runs, with methods that run functions on the nodes."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from inspect import Parameter, Signature
from typing import TYPE_CHECKING, ClassVar, Unpack

from ..collector import at_rest
from .api import settings
from .api.checks import check_known
from .client.opening import Opening
from .pool_options import DEFAULTS, AttachOptions, PoolOptions
from .pool_verbs import PoolVerbs

if TYPE_CHECKING:
    from os import PathLike
    from types import TracebackType

    from ..providers.base import Provider
    from .api.settings import Spec
    from .client.loop_thread import LoopThread
    from .sync import SyncPool


class Pool(PoolVerbs):
    """A cluster that exists while its block runs: ``async with Pool(...) as pool``, or ``with Pool(...) as pool``.

    The block begins when enough nodes are ready. If opening is cancelled, the pool ends everything that it has started.
    Leaving the block cancels the calls that still run, and returns when the provider has confirmed that every machine
    is gone.

    Times are in seconds, money is in USD, and sizes are per machine.

    Args:
        specs: Several `Spec`, in place of ``provider`` and the options of machines, for a pool that may use machines of
            several kinds. If a spec has no machines available, the pool tries the next one (see ``selection``).
        provider: Where machines come from. Default: `Local()`, this computer.
        accelerator: The devices of each machine: ``"A100"``, ``"A100:8"`` or ``accelerators.A100(count=8)``.
        vcpus: The least number of virtual processors of each machine. None: any.
        memory_gb: The least memory of each machine, in GB. None: any.
        disk_gb: The least disk of each machine, in GB. None: any.
        architecture: ``"x86_64"`` or ``"arm64"``. None: the one that costs less.
        allocation: ``"spot"``, ``"spot-if-available"``, ``"on-demand"`` or ``"cheapest"``. None:
            ``"spot-if-available"``.
        max_hourly_cost: The highest price of one machine in USD per hour; more expensive machines are not used. None:
            no limit.
        interconnect: ``"efa"`` places machines close together on a fast network, for ranks that communicate much.
        selection: Which of several specs is tried first: the ``"cheapest"``, or the ``"first"`` in the order given.
        nodes: ``4``; ``(2, 8)``: ready with 2 and growing to 8; or `Nodes`, which also sets spares and scaling by load.
            Default: 1.
        worker: The task slots of each node: `Worker`, or the number of tasks that a node runs at a time. Default: 1.
        image: The software of the nodes: Python, packages, files and environment variables.
        plugins: Plugins that prepare every task's process, as in ``[plugins.torch()]``.
        on_loss: What a broadcast does when it loses a rank, unless its function sets it: ``"auto"``, ``"restart"``,
            ``"resend"`` or ``"fail"``.
        checkpoints: Where tasks keep their checkpoints: a folder that all nodes share, or a URL.
        volumes: Buckets that every node mounts as folders.
        name: A name to find the pool by, as `attach` does. Several pools may have the same name.
        keep: A folder in the work folder of every node, copied to the same folder here when the block ends, as `fetch`
            copies.
        console: ``"rich"`` shows a live table, ``"plain"`` prints lines, ``"silent"`` shows nothing, not even the
            output of tasks. ``"auto"`` is a table on a terminal and in notebooks, only the output of tasks in
            applications that have set up logging, and lines elsewhere.
        boot_timeout: Seconds from the launch of a machine to a ready node. A straggler (a machine that does not respond
            although most others of the same launch do) is replaced earlier. Default: 600.
        start_timeout: Seconds that a machine may wait in its provider's queue; then `StartTimeout`. This time does not
            count towards other timeouts. None: no limit.
        replace_timeout: Seconds to wait for the replacement of a lost node. Default: 600.
        lease: Seconds after which a node without contact to this program ends itself. Default: 120.
        max_lifetime: Seconds after which the pool ends with `BudgetExceeded`. None: no limit.
        max_cost: The total cost in USD at which the pool ends with `BudgetExceeded`; see `cost`. None: no limit.
        max_idle: Seconds without any use of the pool's GPUs (of its processors, if it has no GPUs) after which
            `PoolIdle` ends the pool, even if calls are running. None: no limit.
        sample_every: Seconds between two samples of each node's resource use, shown by `outrider top`; at least 0.1.
            With 0 or None, no samples. Default: 5.
        run: The name of the record that the pool writes. None: in scripts and notebooks the name of the pool or script;
            in applications that have set up logging, no record. False: no record.
        trackers: Experiment trackers that receive the record, as in ``[trackers.MLflow("http://host:5000")]``. They
            receive nothing if there is no record.
        flush_timeout: Seconds that the end of the block waits for the trackers; 0 means no wait. Default: 5.
        traces: Whether calls are traced with OpenTelemetry. Needs ``outrider[otel]``.
        chaos: Faults to inject, for tests: see `outrider.testing.Chaos`.

    Raises:
        SpecError: An argument can never work; nothing was started.
        CapacityError: On entering: too few machines. Other errors of the provider and the image are raised there, too.
        CleanupError: On leaving: the end of some machines was not confirmed within the time of their lease. If the
            block itself raised, its error is raised instead, with this one as its ``cleanup``.
    """

    __signature__: ClassVar[Signature] = settings.shown_signature(
        PoolOptions, DEFAULTS, Parameter("specs", Parameter.VAR_POSITIONAL, annotation="Spec")
    )

    def __init__(self, *specs: Spec, **options: Unpack[PoolOptions]) -> None:
        super().__init__(*specs, **options)
        self._entered: SyncPool | None = None

    @classmethod
    def from_config(
        cls, pool: str = "default", /, *, file: str | PathLike[str] | None = None, **options: Unpack[PoolOptions]
    ) -> Pool:
        """Return the pool that a file describes: ``with Pool.from_config("train") as pool``.

        The file is the nearest ``outrider.toml``, or ``pyproject.toml`` with a ``[tool.outrider]`` table, in the
        working directory or a folder above it. Each key of ``[pools.train]`` is an option of `Pool`. Relative paths
        start at the folder of the file.

        Args:
            pool: The name of the pool in the file.
            file: The path of the file, in place of a search for it.
            options: Options of `Pool`, which override those of the file.

        Raises:
            SpecError: The file or the pool does not exist, or the file has an invalid value. The message names the
                file, the table, and the key that was probably meant.
        """
        from .api.language import TOML
        from .config.files import pool_of
        from .config.tables import telling

        specs, written, where = pool_of(pool, file, besides=options)
        whole: PoolOptions = {**written, **options}
        with telling(where):
            result = cls(*specs, **whole)
        result._language = TOML
        return result

    @classmethod
    def attach(cls, name: str, /, *, provider: Provider, **options: Unpack[AttachOptions]) -> Pool:
        """Take over the machines of a client on this computer that died: ``async with Pool.attach(...)``.

        The remaining machines of the pool ``name`` whose lease has not expired become nodes of this pool, and their
        running tasks are ended. Machines that cannot be taken over are terminated. `cost`, ``max_cost`` and
        ``max_lifetime`` count from this call on. A machine still ends itself by the lease and the lifetime with which
        it was launched.

        Args:
            name: The name of the pool to take over.
            provider: The provider of the pool's machines.
            options: Options of `Pool`; give the same options as for the pool that is taken over. Without ``nodes``, all
                remaining machines become nodes, and one new node is launched if there are none. With ``nodes``, surplus
                machines are terminated, which is printed, and missing machines are launched.

        Raises:
            SpecError: The machines of ``provider`` end with their client. Also raised on entering, if no such pool is
                left on this computer, or if its owner is alive.
        """
        settings.check_outlives(provider)
        check_known("Pool.attach", options, AttachOptions.__annotations__)
        pool = cls(provider=provider, **options)
        name = settings.pool_name(name, most=settings.UNIQUE_LENGTH)
        pool._settings = replace(pool._settings, name=name, attach="nodes" if "nodes" in options else "all")
        return pool

    def __enter__(self) -> SyncPool:
        from .client.loop_thread import LoopThread, interrupts_held

        self.check_unopened()
        thread = LoopThread(_import_sync)
        try:  # from here on, an interrupt (Ctrl-C) may be raised at any point
            # an interrupt here could lose resources that a provider has just created, so it is raised later
            with interrupts_held():
                self._begun_opening = Opening(self._settings)
            with at_rest():  # importing asyncio is slow; meanwhile, the provider's processes start
                thread.start()
            from .sync import SyncPool

            sync = SyncPool(self)
            sync._open_in(thread)
            # keep a reference to the `SyncPool`: the user's `with Pool():`, without `as`, keeps none
            self._entered = sync
        except BaseException as error:
            if self._sync is not None:
                self._sync._abandon(error)
            else:
                self._drop_in_thread(thread)
            raise
        return sync

    def _drop_in_thread(self, thread: LoopThread) -> None:
        """Undo an opening that has begun, if an interrupt came before the pool was entered.

        If no thread can be started for this, do nothing: the opening then ends by itself.
        """
        try:
            if self._begun_opening is not None:
                with suppress(RuntimeError):  # no thread can be started
                    thread.start()
                    thread.submit(self._take_opening().drop).result()
        finally:
            thread.stop()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        # a forked child may leave the block, but must not end its parent's pool (see `__aexit__`)
        if self._core is None or not self._core.inherited:
            self._sync.close(error)


def _import_sync() -> None:
    from . import sync  # noqa: F401  and with it asyncio


ComputePool = Pool
