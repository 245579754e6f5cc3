"""Conversion of users' objects to bytes and back. The bytes are a pickle of protocol 5, followed by its buffers.

If an object cannot be pickled, this module finds the part of the object that is the cause.
"""

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

INLINE_BYTES = 64 * 1024  # larger values are sent as blobs, not inside a frame
PIECE_BYTES = 1024 * 1024  # a larger pickle is read in pieces; a larger `bytes` object is not copied into the pickle
FEW = 16  # lists, tuples and dicts with more items are not searched for large `bytes` objects
ALIGN_BYTES = 64  # alignment of buffers: a cache line, with which numpy's SIMD code is fastest


class Dumped(NamedTuple):
    """A pickled value. Its bytes are the concatenation of ``parts``, with a total size of ``total`` bytes.

    The parts may be views of the object's own memory, which is not copied.
    """

    parts: list[bytes | memoryview]
    sizes: tuple[int, ...] | None  # see `Value.sizes`
    total: int


class Unpicklable(Exception):
    """Raised when an object cannot be pickled.

    ``path``: the part of the object that is the cause, such as ``args[0].lock``. ``kind``: the type of that part.
    ``reason``: the error of that part.
    """

    def __init__(self, path: str, kind: str, reason: str) -> None:
        super().__init__(f"{path} cannot be pickled: {kind}: {reason}")
        self.path = path
        self.kind = kind
        self.reason = reason

    def __reduce__(self) -> tuple[type[Unpicklable], tuple[str, str, str]]:
        return Unpicklable, (self.path, self.kind, self.reason)


def dump(obj: object, names: str | Sequence[str] = "value", *, by_reference: bool = True, code: bool = False) -> Dumped:
    """Pickle an object without copying its large buffers.

    A large `bytes` object in a short list, tuple or dict is not copied either, but returned as a separate part.

    Args:
        obj: The object.
        names: The object's name in error messages. If ``obj`` is a tuple, a sequence of names for its items: the error
            for ``dump((args, kwargs), ("args", "kwargs"))`` may begin with ``args[0]['model'].lock``.
        by_reference: False: copy functions and classes of the modules that are registered with cloudpickle.
        code: Whether the object is a function and what it refers to.

    Raises:
        Unpicklable: the object, or a part of it, cannot be pickled.
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
    except Exception as error:  # a user's `__reduce__` may raise any error
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
    """Return a message value that contains the bytes themselves. ``total`` must not exceed `INLINE_BYTES`."""
    parts = dumped.parts
    return Value(bytes(parts[0]) if len(parts) == 1 else b"".join(parts), dumped.sizes)


def load(data: Any, sizes: Sequence[int] | None = None) -> Any:
    """Unpickle an object from ``data``: bytes, or writable memory such as a mapped file.

    Arrays of the object use writable memory directly, without a copy.
    """
    if sizes is None:
        return pickle.loads(data) if len(data) <= PIECE_BYTES else _in_pieces(memoryview(data), ())
    # copy `bytes` into writable memory, because arrays must be writable
    view = memoryview(bytearray(data) if isinstance(data, bytes) else data)
    head, *buffers = cut(view, sizes)
    return load_parts(head, buffers)


def load_parts(head: memoryview, buffers: Sequence[memoryview]) -> Any:
    """Unpickle an object from a pickle and the pickle's out-of-band buffers."""
    return pickle.loads(head, buffers=buffers) if len(head) <= PIECE_BYTES else _in_pieces(head, buffers)


def _in_pieces(head: memoryview, buffers: Sequence[memoryview]) -> Any:
    file: Any = _Pieces(head)  # its `read` returns memoryviews instead of bytes, which the unpickler accepts
    return pickle.Unpickler(file, buffers=buffers).load()


class _Pieces:
    """A file object for reading a large pickle. It lets other threads run while one thread unpickles.

    `pickle.loads` holds Python's lock (GIL) all the time. With a file object, the unpickler calls Python code for each
    pickle frame of 64 KiB, so threads can switch. This class copies larger byte ranges itself: without the lock if
    ctypes can get both addresses, else in pieces.
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
            from . import large_copy  # imported here, because it imports ctypes, which few programs need

            large_copy.copy(buffer[: len(part)], part)
        return len(part)

    def readline(self) -> bytes:
        """Return the next line. Only pickles of older protocols have lines; pickles of protocol 5 have none."""
        line = bytearray()
        while not line.endswith(b"\n") and (char := bytes(self.read(1))):
            line += char
        return bytes(line)


def _pickled(obj: object, buffers: list[pickle.PickleBuffer], *, by_reference: bool, code: bool) -> bytes:
    """Pickle with Python's standard pickler if possible, which takes a tenth of the time.

    Objects defined in ``__main__`` need our pickler, because they must be sent as copies.
    """
    if by_reference and ("torch" not in sys.modules or obj is None or (type(obj) is tuple and _is_nothing(obj))):
        try:
            head = pickle.dumps(obj, 5, buffer_callback=buffers.append)
            # a pickle that contains one of these texts has objects that need our reducers (see `reducers`)
            if b"__main__" not in head and b"andom" not in head and b"_Environ" not in head:
                return head
        except Exception:  # noqa: BLE001, S110 - lambdas, local classes: the other pickler decides
            pass
        buffers.clear()
    with io.BytesIO() as file:
        _write(obj, file, buffers, by_reference=by_reference, code=code)
        return file.getvalue()


def _is_nothing(obj: tuple[object, ...]) -> bool:
    """Return whether the object is ``((), {})``, the arguments of a call without arguments."""
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
    """Pickle like `_pickled`, but return a list of parts. Each large `bytes` object is a part, and is not copied."""
    file = _PickleFile()
    _write(obj, file, buffers, by_reference=by_reference)
    return file.parts


class _PickleFile:
    """A file object into which a pickler writes. It keeps large `bytes` objects as they are, without copying them."""

    def __init__(self) -> None:
        self.parts: list[bytes | memoryview] = []

    def write(self, data: Any) -> int:
        self.parts.append(data if type(data) is bytes else bytes(data))  # copy a bytearray, because it may change later
        return len(data)

    def getvalue(self) -> bytes:
        """Return the small parts of the pickle, joined.

        Module names are always in small parts; large parts contain only data.
        """
        return b"".join(part for part in self.parts if len(part) <= PIECE_BYTES)

    def seek(self, _: int) -> None:
        pass

    def truncate(self) -> None:
        self.parts = []


def cut(view: memoryview, sizes: Sequence[int]) -> Iterator[memoryview]:
    """Yield slices of ``view`` with these sizes. Each slice begins at a multiple of `ALIGN_BYTES`."""
    at = 0
    for size in sizes:
        yield view[at : at + size]
        at += size
        at += -at % ALIGN_BYTES


# --- search for the part of an object that cannot be pickled ----------------------------------------------------------

_DEPTH = 12  # maximum depth of the search; an error deeper in the object is reported for the object at this depth
_WIDTH = 10_000  # maximum number of items that are searched per object


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
    """Find the innermost part of ``obj`` that cannot be pickled by itself. Return its path, the part, and its error."""
    seen.add(id(obj))
    if depth and not _refuses(obj):
        for step, child in _children(obj):
            if id(child) not in seen and (failure := _failure(child, code=code)) is not None:
                return _blame(path + step, child, failure, seen, depth - 1, code=code)
    return path, obj, error


def _refuses(obj: object) -> bool:
    """Return whether the object's class defines a ``__reduce__`` that raises.

    If so, the object's parts are not searched.
    """
    if all(getattr(type(obj), name) is getattr(object, name) for name in ("__reduce__", "__reduce_ex__")):
        return False
    try:
        obj.__reduce_ex__(5)
    except Exception:  # noqa: BLE001
        # functions and classes do not count, because cloudpickle can pickle them
        return not isinstance(obj, FunctionType | type)
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
    """Yield the parts of an object, each with its path from the object, such as ``.name`` or ``[0]``."""
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
