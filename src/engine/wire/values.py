"""User objects as bytes: pickle protocol 5 followed by its buffers; the search for an unpicklable part."""

from __future__ import annotations

import io
import pickle
import sys
from collections.abc import Iterator, Sequence
from itertools import islice
from types import FunctionType
from typing import Any

from ...lazy_named_tuple import NamedTuple
from . import pickler, reducers
from .messages import Value

INLINE_BYTES = 64 * 1024  # larger values are sent as blobs
PIECE_BYTES = 1024 * 1024  # larger pickles are read in pieces, and a larger `bytes` is not copied into its pickle
FEW = 16  # only lists, tuples and dicts with at most so many items are searched for such a `bytes`
ALIGN_BYTES = 64  # a cache line, with which numpy's SIMD code is fastest


class Dumped(NamedTuple):
    """A pickled value: the concatenation of ``parts``, in all ``total`` bytes.

    The bytes may be views of the object's memory.
    """

    parts: list[bytes | memoryview]
    sizes: tuple[int, ...] | None  # see `Value`
    total: int


class Unpicklable(Exception):
    """Raised when an object cannot be pickled.

    The cause is the part at ``path``, of type ``kind``, for this ``reason``.
    """

    def __init__(self, path: str, kind: str, reason: str) -> None:
        super().__init__(f"{path} cannot be pickled: {kind}: {reason}")
        self.path = path
        self.kind = kind
        self.reason = reason

    def __reduce__(self) -> tuple[type[Unpicklable], tuple[str, str, str]]:
        return Unpicklable, (self.path, self.kind, self.reason)


def dump(obj: object, names: str | Sequence[str] = "value", *, by_reference: bool = True, code: bool = False) -> Dumped:
    """Pickle an object, without copying large buffers.

    A large `bytes` that is an item of a short list, tuple or dict is not copied either: it becomes a part of its own.

    Args:
        obj: the object.
        names: the name of the object in an error's path. A sequence names the items of a tuple, so that the error for
            ``dump((args, kwargs), ("args", "kwargs"))`` may begin with ``args[0]['model'].lock``.
        by_reference: False copies functions and classes of modules registered with cloudpickle.
        code: whether the object is a function, with everything to which it refers.

    Raises:
        Unpicklable
    """
    buffers: list[pickle.PickleBuffer] = []
    try:
        if _has_long_bytes(obj, 2):
            written = _pickled_in_parts(obj, buffers, by_reference=by_reference)
            if not buffers:
                return Dumped(written, None, sum(map(len, written)))
            head = b"".join(written)
        else:
            head = _pickled(obj, buffers, by_reference=by_reference and not code, code=code)
        if not buffers:
            return Dumped([head], None, len(head))
        views = [buffer.raw() for buffer in buffers]
    except Exception as error:  # any error of a __reduce__
        raise _explain(obj, names, error, code=code) from error
    parts: list[bytes | memoryview] = [head]
    total = len(head)
    for view in views:
        if gap := -total % ALIGN_BYTES:
            parts.append(bytes(gap))
        parts.append(view)
        total += gap + view.nbytes
    return Dumped(parts, (len(head), *(view.nbytes for view in views)), total)


def inline(dumped: Dumped) -> Value:
    """Return a value whose bytes are in the frame itself; only for ``total`` up to `INLINE_BYTES`."""
    parts = dumped.parts
    return Value(bytes(parts[0]) if len(parts) == 1 else b"".join(parts), dumped.sizes)


def load(data: Any, sizes: Sequence[int] | None = None) -> Any:
    """Return the object. ``data`` is bytes, or a writable mapping, over which arrays are created without a copy."""
    if sizes is None:
        return pickle.loads(data) if len(data) <= PIECE_BYTES else _in_pieces(memoryview(data), ())
    # a copy of bytes, because arrays must be writable
    view = memoryview(bytearray(data) if isinstance(data, bytes) else data)
    head, *buffers = cut(view, sizes)
    return load_parts(head, buffers)


def load_parts(head: memoryview, buffers: Sequence[memoryview]) -> Any:
    """Return the object of a pickle and its out-of-band buffers."""
    return pickle.loads(head, buffers=buffers) if len(head) <= PIECE_BYTES else _in_pieces(head, buffers)


def _in_pieces(head: memoryview, buffers: Sequence[memoryview]) -> Any:
    file: Any = _Pieces(head)  # its `read` returns memoryviews, which suffice for the unpickler
    return pickle.Unpickler(file, buffers=buffers).load()


class _Pieces:
    """A file with a large pickle, so that other threads can run while one thread unpickles.

    `pickle.loads` holds Python's lock from the first byte to the last. With a file, the unpickler returns to Python for
    each frame of 64 KiB. Larger bytes are copied here: without the lock if both ends have an address, else in pieces.
    """

    def __init__(self, view: memoryview) -> None:
        self._view, self._at = view, 0

    def read(self, size: int) -> memoryview:
        part = self._view[self._at : self._at + size]
        self._at += len(part)
        return part

    def readinto(self, buffer: memoryview) -> int:
        part = self.read(len(buffer))
        if len(part) <= PIECE_BYTES:
            buffer[: len(part)] = part
        else:
            from . import large_copy  # imports ctypes, which few programs need

            large_copy.copy(buffer[: len(part)], part)
        return len(part)

    def readline(self) -> bytes:
        """Return the next line. Only pickles of older protocols contain lines; protocol 5 has none."""
        line = bytearray()
        while not line.endswith(b"\n") and (char := bytes(self.read(1))):
            line += char
        return bytes(line)


def _pickled(obj: object, buffers: list[pickle.PickleBuffer], *, by_reference: bool, code: bool) -> bytes:
    """Pickle by the standard pickler if possible, in a tenth of the time. Objects of ``__main__`` must be copied."""
    if by_reference and ("torch" not in sys.modules or obj is None or (type(obj) is tuple and _is_nothing(obj))):
        try:
            head = pickle.dumps(obj, 5, buffer_callback=buffers.append)
            # these need a reducer: see `reducers`
            if b"__main__" not in head and b"andom" not in head and b"_Environ" not in head:
                return head
        except Exception:  # noqa: BLE001, S110 - lambdas, local classes: the other pickler decides
            pass
        buffers.clear()
    with io.BytesIO() as file:
        _write(obj, file, buffers, by_reference=by_reference, code=code)
        return file.getvalue()


def _is_nothing(obj: tuple[object, ...]) -> bool:
    """Return whether the object is the arguments ``((), {})`` of a call without arguments."""
    return len(obj) == 2 and type(obj[0]) is tuple and type(obj[1]) is dict and not obj[0] and not obj[1]


def _write(
    obj: object, file: Any, buffers: list[pickle.PickleBuffer], *, by_reference: bool, code: bool = False
) -> None:
    def dump() -> None:
        if by_reference and _has_written_plainly(obj, file, buffers):
            return
        pickler.Pickler(file, buffers.append, code=code).dump(obj)

    pickler.write(file, dump, buffers.clear)


def _has_written_plainly(obj: object, file: Any, buffers: list[pickle.PickleBuffer]) -> bool:
    plain = pickle.Pickler(file, 5, buffer_callback=buffers.append)
    plain.dispatch_table = reducers.plain_table()
    try:
        plain.dump(obj)
        if b"__main__" not in file.getvalue():
            return True
    except Exception:  # noqa: BLE001, S110 - lambdas, local classes: the other pickler decides
        pass
    _clear(file, buffers)
    return False


def _clear(file: Any, buffers: list[pickle.PickleBuffer]) -> None:
    file.seek(0)
    file.truncate()
    buffers.clear()


def _has_long_bytes(obj: object, depth: int) -> bool:
    kind: Any = type(obj)
    if kind is bytes:
        return len(obj) > PIECE_BYTES  # type: ignore[arg-type]  # obj is bytes
    if not depth or kind not in (tuple, list, dict) or len(obj) > FEW:  # type: ignore[arg-type]  # these types have a length
        return False
    items: Any = obj.values() if kind is dict else obj  # type: ignore[attr-defined]  # a dict has them
    for each in items:  # noqa: SIM110 - `any` takes twice as long
        if _has_long_bytes(each, depth - 1):
            return True
    return False


def _pickled_in_parts(
    obj: object, buffers: list[pickle.PickleBuffer], *, by_reference: bool
) -> list[bytes | memoryview]:
    """Pickle like `_pickled`, but into parts: each large `bytes` is a part of its own, and is not copied."""
    file = _PickleFile()
    _write(obj, file, buffers, by_reference=by_reference)
    return file.parts


class _PickleFile:
    """A file for a pickler, which passes large objects to it directly instead of copying them to a buffer."""

    def __init__(self) -> None:
        self.parts: list[bytes | memoryview] = []

    def write(self, data: Any) -> int:
        self.parts.append(data if type(data) is bytes else bytes(data))  # a bytearray is copied, because it may change
        return len(data)

    def getvalue(self) -> bytes:
        """Return the small parts of the pickle: names of modules are in these, and large parts are data."""
        return b"".join(part for part in self.parts if len(part) <= PIECE_BYTES)

    def seek(self, _: int) -> None:
        pass

    def truncate(self) -> None:
        self.parts = []


def cut(view: memoryview, sizes: Sequence[int]) -> Iterator[memoryview]:
    """Yield the parts of a value that have these sizes."""
    at = 0
    for size in sizes:
        yield view[at : at + size]
        at += size
        at += -at % ALIGN_BYTES


# --- which part of an object cannot be pickled? -----------------------------------------------------------------------

_DEPTH = 12  # levels of the search; a part deeper than this is reported by its ancestor at this level
_WIDTH = 10_000  # parts searched per object


def _explain(obj: object, names: str | Sequence[str], error: Exception, *, code: bool) -> Unpicklable:
    if isinstance(names, str) or not isinstance(obj, tuple):
        path, obj, error = _blame(str(names), obj, error, set(), _DEPTH, code=code)
    else:
        path = ", ".join(names)
        for name, item in zip(names, obj, strict=True):
            if (failure := _failure(item, code=code)) is not None:
                path, obj, error = _blame(name, item, failure, set(), _DEPTH, code=code)
                break
    kind, reason = type(obj), ((str(error).strip() or type(error).__name__).splitlines())[0]
    return Unpicklable(path, f"{kind.__module__}.{kind.__qualname__}".removeprefix("builtins."), reason[:500])


def _blame(
    path: str, obj: object, error: Exception, seen: set[int], depth: int, *, code: bool
) -> tuple[str, object, Exception]:
    """Find the deepest part of ``obj`` that cannot be pickled by itself."""
    seen.add(id(obj))
    if depth and not _refuses(obj):
        for step, child in _children(obj):
            if id(child) not in seen and (failure := _failure(child, code=code)) is not None:
                return _blame(path + step, child, failure, seen, depth - 1, code=code)
    return path, obj, error


def _refuses(obj: object) -> bool:
    """Return whether the object's class has its own ``__reduce__`` that raises: then its parts are not searched."""
    if all(getattr(type(obj), name) is getattr(object, name) for name in ("__reduce__", "__reduce_ex__")):
        return False
    try:
        obj.__reduce_ex__(5)
    except Exception:  # noqa: BLE001
        return not isinstance(obj, FunctionType | type)  # cloudpickle can pickle functions and classes
    return False


def _failure(obj: object, *, code: bool) -> Exception | None:
    buffers: list[pickle.PickleBuffer] = []
    try:
        pickler.dumps(obj, buffers.append, code=code)
        for buffer in buffers:
            buffer.raw()
    except Exception as error:  # noqa: BLE001
        return error
    return None


def _children(obj: object) -> Iterator[tuple[str, object]]:
    """Yield the parts of an object, each with the step that leads to it, such as ``.name``."""
    if isinstance(obj, dict):
        for key, value in islice(obj.items(), _WIDTH):
            yield f"[{key!r:.60}]", value
    elif isinstance(obj, list | tuple | set | frozenset):
        for index, value in islice(enumerate(obj), _WIDTH):
            yield f"[{index}]" if isinstance(obj, list | tuple) else "{" + f"{value!r:.60}" + "}", value
    else:
        yield from _attributes(obj)


def _attributes(obj: object) -> Iterator[tuple[str, object]]:
    if (code := getattr(obj, "__code__", None)) is not None:
        for name, cell in zip(code.co_freevars, getattr(obj, "__closure__", None) or (), strict=False):
            try:
                yield f" (its variable {name!r})", cell.cell_contents
            except ValueError:  # the variable is not bound yet
                continue
        scope = getattr(obj, "__globals__", {})
        for name in code.co_names:
            if name in scope:
                yield f" (its global {name!r})", scope[name]
    if (bound := getattr(obj, "__self__", None)) is not None:
        yield ".__self__", bound
    state = getattr(obj, "__dict__", None)
    if isinstance(state, dict):
        for name, value in state.items():
            yield f".{name}", value
    for type_ in type(obj).__mro__:
        slots = type_.__dict__.get("__slots__", ())
        for name in (slots,) if isinstance(slots, str) else slots:
            if hasattr(obj, name):
                yield f".{name}", getattr(obj, name)
