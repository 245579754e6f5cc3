"""Packing of calls for the nodes of one pool. A function is pickled once per pool, the arguments once per call."""

from __future__ import annotations

import asyncio
import hashlib
import itertools
import os
import re
import warnings
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext, suppress
from functools import partial
from typing import TYPE_CHECKING, Any

from ...lazy_dataclass import dataclass
from ..api.errors import SpecError
from ..api.pending_base import Pickled, refused_as_arguments
from ..api.plugin import merged
from ..api.secrets import SECRET, allow_secrets, secrets_allowed
from ..wire import importable, values
from ..wire.copies import Watch
from ..wire.messages import RunFlag, Value
from . import function_pickling, program
from .client_streams import ForNodes, Source
from .error_notes import cause_of, pickling_error
from .frozen_items import ItemPickler
from .payload import Blob, Shared, pending_references, referred
from .script import Scripts
from .stored_objects import packing
from .task_payload import Payload

if TYPE_CHECKING:
    from ...actors.amounts import Amounts
    from ..api.calls import Call, Callee, StreamCall
    from ..api.plugin import Plugin
    from ..api.settings import WorkerKind
    from ..wire.importable import ImportableModules
    from ..wire.script_modules import Script
    from .client_streams import RankValues, Values
    from .stored_objects import StoredObject


_PLAIN = {type(None), bool, bytes, float, int, str}
# Warn if a function refers to mutable variables with a larger pickle: pickling them takes 10 ms in each call.
WARNED_CODE_BYTES = 8 << 20
# Warn if the buffers of a call are larger: copying them blocks the event loop for about 0.2 s.
WARNED_COPY_BYTES = 256 << 20
# Warn if the pickled arguments of a call are larger: pickling blocks the program for seconds.
WARNED_BYTES = 1 << 30


class Packer:
    """Packs calls of one pool into payloads for tasks. Use it only in the thread of the pool's event loop."""

    def __init__(
        self,
        plugins: Sequence[Plugin],
        kind: WorkerKind,
        *,
        drop: Callable[[Blob], None],
        forget: Callable[[bytes], None],
        objects: object = None,
    ) -> None:
        """Create the packer of a pool.

        Args:
            plugins: The pool's plugins.
            kind: The kind of the pool's workers: processes or threads.
            drop: Called with a blob when no task needs the blob any more.
            forget: Called with the digest of a function when no task needs the function any more.
            objects: The pool's stored objects, to which calls may refer.
        """
        # the modules that nodes can import; None: the same modules as this process
        self.node_modules: ImportableModules | None = None
        self.definitions = Definitions(forget)
        self.outer_plugins: tuple[Plugin, ...] = ()
        self._plugins, self._kind, self._drop = tuple(plugins), kind, drop
        self._blobs, self._objects = itertools.count(1), objects or self
        self._warned = self._warned_of_generators = self._warned_of_code = self._warned_of_copy = False
        self._scripts = Scripts()
        # A prefix that makes blob names unique. A node that was adopted from another client may still have that
        # client's blobs.
        self._prefix = os.urandom(4).hex()

    def plugins_of(self, function: Callee) -> tuple[Plugin, ...]:
        return merged((*self.outer_plugins, *self._plugins), function.plugins)

    def set_outer_plugins(self, plugins: Sequence[Plugin]) -> None:
        """Set plugins that are applied around all other plugins, for every task packed from now on. Empty: none."""
        self.outer_plugins = tuple(plugins)
        self.definitions.clear()

    def pack(self, call: Call[Any] | StreamCall[Any]) -> Payload:
        """Pickle a call. The payload is used for all attempts and ranks of the call.

        Large buffers of the arguments are not copied: if the caller changes them, tasks may see the change. `own`
        copies them.

        Raises:
            SerializationError: an object cannot be pickled. The error has the path of the object.
            SpecError: a plugin of the function cannot be used in this pool.
        """
        options = call.options
        args, kwargs, inputs = call.detach()
        defined = self._current(call.function)
        name = options.name or call.function.__name__
        flags = defined.flags if options.needs is None else self._flags(defined.flags, options.needs, call.function)
        objects: tuple[StoredObject, ...] = ()
        if packing.ever:
            packing.begin(self._objects)
        try:
            copied = self._copied()
            if defined.copied is not None:
                copied = (*copied, defined.copied)
            copies = bool(copied) or self.node_modules is not None
            if not copies or _is_plain(args, kwargs):
                value, blob = self._dump((args, kwargs), name, call.function)
            else:
                with self._for_nodes(copied):
                    value, blob = self._dump((args, kwargs), name, call.function, by_reference=False)
        finally:
            if packing.ever:
                objects = packing.end()
        return Payload(
            name,
            defined.digest,
            defined.code,
            value,
            blob,
            options.timeout_s,
            flags | RunFlag.ALONE if inputs else flags,
            inputs=self._sources(inputs, copied if copies else None) if inputs else (),
            shared=referred() if pending_references else (),
            objects=objects,
            defined=defined,
            needs=options.needs,
        )

    def _sources(self, inputs: Sequence[Any], copied: Sequence[str] | None) -> tuple[Source, ...]:
        """Return a `Source` for each streamed argument of a call: it sends the argument's items to the task.

        ``copied``: modules that nodes cannot import; None: each node can import all modules.
        """
        for_nodes: ForNodes = nullcontext if copied is None else partial(self._for_nodes, copied)
        return tuple(Source(each, for_nodes) for each in inputs)

    def _copied(self) -> tuple[str, ...]:
        """Return the modules that no node can import.

        These are modules whose import has not ended, and modules that were loaded without an import.
        """
        return (*importable.being_imported(), *self._scripts.loaded_by_hand)

    @contextmanager
    def _for_nodes(self, copied: Sequence[str]) -> Iterator[bool]:
        """Pickle for this pool's nodes, within the ``with`` block. ``copied``: modules that nodes cannot import.

        Yields True if classes may have to be copied.
        """
        with function_pickling.for_nodes(self.node_modules), function_pickling.copying(*copied):
            yield bool(copied) or self.node_modules is not None

    def pack_stream(self, call: StreamCall[Any], output: Values | RankValues) -> Payload:
        payload = self.pack(call)
        payload.output = output
        payload.flags |= RunFlag.STREAM | RunFlag.ALONE
        return payload

    def share(self, value: object) -> Shared[Any]:
        """Pickle a value that many calls of this pool may use. It is sent to each node only once."""
        try:
            with self._for_nodes(self._copied()) as copies:
                dumped = values.dump(value, "the shared value", by_reference=not copies)
        except values.Unpicklable as error:
            raise pickling_error(error, "", "the shared value") from cause_of(error)
        return Shared(self._blob(dumped), dumped.sizes, self._drop)

    def dump(self, value: object) -> tuple[Value, Blob | None]:
        """Pickle a value for `pool.put`; calls of this pool will refer to it."""
        try:
            with self._for_nodes(self._copied()) as copies:
                dumped = values.dump(value, "the value", by_reference=not copies)
        except values.Unpicklable as error:
            raise pickling_error(error, "pool.put", "the value") from cause_of(error)
        if dumped.total <= values.INLINE_BYTES:
            return values.inline(dumped), None
        return Value(b"", dumped.sizes), self._blob(dumped)

    def own(self, payload: Payload) -> None:
        """Copy a call's large buffers, so that the caller may change them afterwards. This blocks the event loop.

        Raises:
            MemoryError: there is not enough memory for the copy.
        """
        size_bytes = payload.borrowed_bytes
        if not size_bytes:
            return
        if size_bytes >= WARNED_COPY_BYTES and not self._warned_of_copy:
            self._warned_of_copy = True
            warnings.warn(
                f"{size_bytes >> 20:,} MiB are copied for a call of {payload.name} while the event loop waits. Await "
                "the call by `await pool.run(...)`, which takes no copy here, or `await pool.put(...)` the value "
                "before. Further calls of this pool do not repeat this warning.",
                RuntimeWarning,
                stacklevel=4,
            )
        try:
            payload.own()
        except BaseException:
            self.release(payload)
            raise

    def item_pickler(self, function: Callee) -> ItemPickler:
        """Return the pickler for the items of ``pool.map`` with this function."""
        defined = self._current(function)
        copied = defined.copied or self._copied()
        return ItemPickler(self._objects, by_reference=not copied and self.node_modules is None)

    def release(self, payload: Payload) -> None:
        """Drop the data that only this payload used. Call it when the payload's job has ended."""
        payload.objects = ()
        if payload.blob is not None:
            self._drop(payload.blob)
            payload.blob = None
        for shared in payload.shared:
            shared.released()
        payload.shared = ()

    def _blob(self, dumped: values.Dumped) -> Blob:
        return Blob(f"{self._prefix}-{next(self._blobs)}", dumped.parts, dumped.total)

    def _dump(
        self,
        arguments: tuple[tuple[Any, ...], dict[str, Any]],
        task: str,
        function: Callee,
        *,
        by_reference: bool = True,
    ) -> tuple[Value, Blob | None]:
        try:
            before = Pickled.latest
            dumped = values.dump(arguments, ("args", "kwargs"), by_reference=by_reference)
            if Pickled.latest is not before:
                with refused_as_arguments():
                    values.dump(arguments, ("args", "kwargs"), by_reference=False)
        except values.Unpicklable as error:
            pending_references.clear()
            if error.kind == SECRET and not secrets_allowed():
                with allow_secrets():
                    return self._dump(arguments, task, function, by_reference=by_reference)
            if function.takes_self:
                error.path = _as_of_a_method(error.path)
            raise pickling_error(error, task, "an argument") from cause_of(error)
        if dumped.total <= values.INLINE_BYTES:
            return values.inline(dumped), None
        if len(dumped.parts[0]) >= WARNED_BYTES and not self._warned:
            self._warned = True
            _warn(len(dumped.parts[0]), task)
        blob = self._blob(dumped)
        return Value(b"", dumped.sizes, blob.name), blob

    def _current(self, function: Callee) -> Defined:
        """Return the current definition of a function, which is its pickle and how to run it.

        This takes 1 us if the function has been pickled before and refers to nothing that can be modified in place,
        such as a list. Otherwise the function is pickled again and compared.
        """
        if (reloaded := self._scripts.news()) is not None:
            self.definitions.clear()
            if self.node_modules is not None:
                self.node_modules.forget(reloaded)
        known = self.definitions.get(function)
        if known is None:
            return self._define(function)
        defined, watch = known
        is_same = watch.is_unchanged() and not watch.needs_rest
        if is_same and (not watch.may_change or self._code_of(function) == watch.code):
            return defined
        return self._define(function)

    def _code_of(self, function: Callee) -> bytes:
        with self._for_nodes(self._copied()):
            return b"".join(filter(None, program.code_of(function, Watch())))

    def _define(self, function: Callee) -> Defined:
        """Pickle a function with the current values of the variables to which it refers."""
        plugins = self.plugins_of(function)
        self._check(function, plugins)
        module, watch = function.__module__, Watch()
        code = self._build(function, watch)
        with function_pickling.for_nodes(self.node_modules):
            copied = None if module == "__main__" or importable.nodes_have(module) else module
        flags = RunFlag.FRESH if any(plugin.fresh_process for plugin in plugins) else 0
        self._warn_of(watch, len(code), function.__name__)
        return self.definitions.add(function, code, int(flags), copied, watch)

    def _build(self, function: Callee, watch: Watch) -> bytes:
        plugins = *self.outer_plugins, *self._plugins
        with self._for_nodes(self._copied()):
            return program.build(function, plugins, describe=self._described, watch=watch)

    def _described(self, watch: Watch) -> Script:
        return self._scripts.of_function(watch, shares_files=self.node_modules is None)

    def _warn_of(self, watch: Watch, size_bytes: int, task: str) -> None:
        """Warn once about variables of a function that may surprise the user or are slow to pickle.

        Random number generators surprise: each task has its own stream of numbers.
        """
        if watch.generators and not self._warned_of_generators:
            self._warned_of_generators = True
            warnings.warn(
                f"{task} refers to a random number generator of this program ({watch.generators[0]}). Each task draws "
                "from a stream of its own, made from the generator's state, the number of the call and the rank. Make "
                "the generator inside the function, from a seed that is an argument, to choose the stream.",
                RuntimeWarning,
                stacklevel=6,
            )
        if watch.may_change and size_bytes >= WARNED_CODE_BYTES and not self._warned_of_code:
            self._warned_of_code = True
            warnings.warn(
                f"{task} refers to {size_bytes >> 20:,} MiB of this program's variables, which are pickled for each "
                "call, to see whether they have changed. Pass them as an argument, or by pool.put.",
                RuntimeWarning,
                stacklevel=6,
            )

    def _flags(self, flags: int, needs: Amounts, function: Callee) -> int:
        """Return the flags of a call that requests resources (``needs``). Such a call runs in a new process."""
        for plugin in self.plugins_of(function) if needs.gpus else ():
            if plugin.shares_devices:
                raise SpecError(
                    f"The {plugin.name} plugin says which device each task of a node sees, and so does "
                    f"gpus={needs.gpus} of {function.__name__}: leave one of them out."
                )
        return flags | int(RunFlag.FRESH)

    def _check(self, function: Callee, plugins: Sequence[Plugin]) -> None:
        for plugin in function.plugins:
            if plugin.has_halves and plugin not in self._plugins:
                raise SpecError(
                    f"The {plugin.name} plugin works on whole nodes: give it to the pool, by Pool(plugins=[...]), and "
                    f"not to {function.__name__} alone."
                )
        if self._kind != "thread":
            return
        for plugin in plugins:
            if plugin.collective or plugin.fresh_process or plugin.fresh_ranks:
                raise SpecError(
                    f"The {plugin.name} plugin sets up a whole process, which {function.__name__} would share with "
                    'other tasks: use Worker(kind="process").'
                )


def _is_plain(args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """Return whether all arguments have builtin types, which each node has.

    If so, the plain pickler can be used, which is ten times faster.
    """
    return _PLAIN.issuperset(map(type, args)) and _PLAIN.issuperset(map(type, kwargs.values()))


def _warn(size_bytes: int, task: str) -> None:
    warnings.warn(
        f"{size_bytes >> 20:,} MiB are pickled for a call of {task} while the event loop waits: all is, but arrays, "
        "tensors and `bytes`. Rather give the call a path, of a file that pool.push has brought or of a Volume. "
        "Of this pool's further calls nothing is said.",
        RuntimeWarning,
        stacklevel=6,
    )


def _as_of_a_method(path: str) -> str:
    """Return the path of a method's argument as the caller counts arguments, which is without ``self``."""
    match = re.match(r"args\[(\d+)\]", path)
    if match is None:
        return path
    number = int(match[1])
    return ("self" if number == 0 else f"args[{number - 1}]") + path[match.end() :]


@dataclass(frozen=True, slots=True, weakref_slot=True, eq=False)
class Defined:
    """The definition of a function, as nodes store it. Functions with equal pickles share one definition.

    Payloads of running calls keep a definition alive.
    """

    digest: bytes
    code: bytes
    flags: int
    # the function's module if nodes cannot import it; arguments of types from this module are then copied, too
    copied: str | None


class Definitions:
    """The definitions of the functions that a pool's nodes know.

    When this process no longer uses a large function, nodes forget it. Otherwise they would keep more and more
    functions, because each ``map`` creates a new one.
    """

    def __init__(self, forget: Callable[[bytes], None]) -> None:
        """Create it without definitions.

        ``forget``: called in the event loop with the digest of a large function that is no longer used.
        """
        self._forget = forget
        self._loop = asyncio.get_running_loop()
        self._of: weakref.WeakKeyDictionary[Callee, tuple[Defined, Watch]] = weakref.WeakKeyDictionary()
        self._alive: weakref.WeakValueDictionary[bytes, Defined] = weakref.WeakValueDictionary()

    def __len__(self) -> int:
        return len(self._of)

    def get(self, function: Callee) -> tuple[Defined, Watch] | None:
        """Return the last definition of a function and the dependencies of its pickle; None if it has no definition."""
        return self._of.get(function)

    def add(self, function: Callee, code: bytes, flags: int, copied: str | None, watch: Watch | None = None) -> Defined:
        digest = hashlib.blake2b(code, digest_size=16).digest()
        defined = self._alive.get(digest)
        if defined is None:
            self._alive[digest] = defined = Defined(digest, code, flags, copied)
            if len(code) > values.INLINE_BYTES:
                weakref.finalize(defined, self._let_go, digest).atexit = False
        self._of[function] = defined, watch or Watch()
        return defined

    def clear(self) -> None:
        self._of.clear()

    def _let_go(self, digest: bytes) -> None:
        """Notify the event loop that a definition is no longer used. May be called in any thread."""
        with suppress(RuntimeError):  # raised if the loop is closed: then the nodes are gone, too
            self._loop.call_soon_threadsafe(self._gone, digest)

    def _gone(self, digest: bytes) -> None:
        if digest not in self._alive:
            self._forget(digest)
