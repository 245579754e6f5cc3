"""Sending of tensors. Only the bytes that a tensor covers are sent, as out-of-band buffers of the pickle.

For a dense tensor on the CPU, the covered part of its storage is sent. If several tensors of one pickle cover the same
bytes, these bytes are sent once, and the tensors share memory at the receiver, too. A view with gaps, such as a column
of a matrix, becomes a separate contiguous tensor, unless a tensor without gaps covers the same memory. All other
tensors (on GPUs, sparse, quantized, DTensors, other subclasses) are pickled by their own methods.
"""

from __future__ import annotations

import ctypes
import importlib
import pickle
import sys
import threading
import warnings
from bisect import bisect_right
from collections.abc import Callable, Iterable
from typing import Any

# a part of a storage is sent from a multiple of this offset, which is the size of the largest element type
ALIGN_BYTES = 16
Place = tuple[int, int]  # (address of a storage, its size in bytes)
Span = tuple[int, int]  # (first byte, end) of a range of bytes within a storage
_local = threading.local()


class CoveredParts:
    """The parts of storages that the tensors of one pickle cover."""

    def __init__(self) -> None:
        # storage -> the parts of it that are sent, sorted by their first byte. When the pickle is final, the parts do
        # not overlap.
        self._of: dict[Place, list[_Part]] = {}
        # storage -> ranges of bytes that views with gaps cover; these views were copied
        self._copied: dict[Place, list[Span]] = {}
        # storage -> ranges of bytes that must be sent as one part, because several tensors overlap in the range
        self._joined: dict[Place, list[Span]] = {}
        self._overlap = False  # whether tensors overlap, in which case the object must be pickled again

    def has(self, storage: Any, begin: int, end: int) -> bool:
        """Return whether a tensor without gaps covers these bytes. If there is none yet, record the bytes as copied."""
        place = _place(storage)
        before = self._before(place, begin)
        if self._span_in(place, begin, end) is not None or (before is not None and end <= before.end):
            return True
        self._copied.setdefault(place, []).append((begin, end))
        return False

    def covering(self, storage: Any, begin: int, end: int) -> _Part:
        """Return the part of the storage that contains these bytes. Create the part if there is none yet."""
        place = _place(storage)
        before = self._before(place, begin)
        if before is not None and end <= before.end:
            return before
        begin, end = self._span_in(place, begin, end) or (begin, end)
        parts = self._of.setdefault(place, [])
        at = bisect_right(parts, begin, key=_first)
        beside = parts[max(at - 1, 0) : at + 1]
        copied = self._copied.get(place, [])
        if any(part.first < end and begin < part.end for part in beside) or _overlapping(copied, begin, end):
            spans = [*self._joined.get(place, []), *((part.first, part.end) for part in parts), *copied]
            over = _overlapping(spans, begin, end)
            union = min(begin, *(first for first, _ in over)), max(end, *(last for _, last in over))
            kept = [span for span in self._joined.get(place, []) if not _overlapping([span], *union)]
            self._joined[place] = [*kept, union]
            self._overlap = True
        part = _Part(storage, begin, end)
        parts.insert(at, part)
        return part

    def again(self) -> bool:
        """Return whether the object must be pickled again because tensors overlapped.

        If so, prepare for the next try.
        """
        overlap, self._overlap = self._overlap, False
        if overlap:
            self._of, self._copied = {}, {}
        return overlap

    def _before(self, place: Place, begin: int) -> _Part | None:
        """Return the last part of a storage that begins at or before byte ``begin``; None if there is none."""
        parts = self._of.get(place, [])
        at = bisect_right(parts, begin, key=_first)
        return parts[at - 1] if at else None

    def _span_in(self, place: Place, begin: int, end: int) -> Span | None:
        """Return the range in ``_joined`` that contains these bytes; None if there is none."""
        return next((span for span in self._joined.get(place, ()) if span[0] <= begin and end <= span[1]), None)


def _place(storage: Any) -> Place:
    return storage.data_ptr(), storage.nbytes()


def _first(part: _Part) -> int:
    return part.first


def _overlapping(spans: Iterable[Span], begin: int, end: int) -> list[Span]:
    return [(first, last) for first, last in spans if first < end and begin < last]


class collected:  # noqa: N801 - a context manager
    """A context manager for one pickle: overlapping tensors that are pickled in it share memory at the receiver.

    A pickle that is created inside another pickle has a context of its own.
    """

    def __enter__(self) -> CoveredParts:
        self._before = getattr(_local, "parts", None)
        _local.parts = parts = CoveredParts()
        return parts

    def __exit__(self, *_: object) -> None:
        _local.parts = self._before


class _Part:
    """The bytes of a storage from ``first`` to ``end``.

    A few bytes before ``first`` are sent, too, so that the elements are aligned in memory.
    """

    def __init__(self, storage: Any, first: int, end: int) -> None:
        self._storage, self.first, self.end = storage, first, end
        self.begin = first - first % ALIGN_BYTES

    def __reduce__(self) -> tuple[Any, ...]:
        return _storage, (_buffer(self._storage, self.begin, self.end),)


def _buffer(storage: Any, begin: int, end: int) -> pickle.PickleBuffer:
    view: Any = (ctypes.c_ubyte * (end - begin)).from_address(storage.data_ptr() + begin)
    view.storage = storage  # a reference, so that the storage lives as long as the view
    return pickle.PickleBuffer(view)


def _storage(data: Any) -> Any:
    torch = importlib.import_module("torch")
    view = memoryview(data)
    if view.readonly:  # copied, because torch has no read-only tensors
        return torch.frombuffer(bytearray(view), dtype=torch.uint8).untyped_storage()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return torch.frombuffer(view, dtype=torch.uint8).untyped_storage()


def reducers() -> dict[type, Callable[[Any, Any], Any]]:
    """Return the reducers for types of torch, which must be imported."""
    torch: Any = sys.modules["torch"]
    return {torch.Tensor: _tensor, torch.nn.Parameter: _tensor, torch.Generator: _generator}


def _tensor(_: Any, tensor: Any) -> Any:
    torch: Any = sys.modules["torch"]
    parts = getattr(_local, "parts", None)
    if parts is None or not _is_plain(torch, tensor):
        return NotImplemented
    values = tensor.detach()
    try:
        values.untyped_storage().data_ptr()
    except RuntimeError:  # inside functions of torch.func, a tensor may be a placeholder without memory
        return NotImplemented
    size = values.element_size()
    begin = values.storage_offset() * size
    end = begin
    if values.numel():
        end += (sum((count - 1) * step for count, step in zip(values.shape, values.stride(), strict=True)) + 1) * size
    if values.numel() * size < end - begin and not parts.has(values.untyped_storage(), begin, end):
        values = values.contiguous()
        begin, end = 0, values.numel() * size
    part = None
    offset = 0
    if end > begin:
        part = parts.covering(values.untyped_storage(), begin, end)
        offset = (begin - part.begin) // size
    state = dict(vars(tensor)) or None
    is_parameter = type(tensor) is torch.nn.Parameter
    args = part, values.dtype, (offset, tuple(values.shape), values.stride()), tensor.requires_grad, is_parameter
    return (_rebuilt, args) if state is None else (_rebuilt, args, state, None, None, _set_attributes)


def _is_plain(torch: Any, tensor: Any) -> bool:
    """Return whether the tensor is ordinary CPU memory of this process, which can be sent as bytes."""
    return (
        tensor.layout is torch.strided
        and tensor.device.type == "cpu"
        and not tensor.is_quantized
        and not tensor.is_conj()
        and not tensor.is_neg()
        and not getattr(tensor, "_backward_hooks", None)  # torch warns about such hooks when it pickles the tensor
    )


def _rebuilt(storage: Any, dtype: Any, place: tuple[int, Any, Any], requires_grad: bool, is_parameter: bool) -> Any:
    torch = importlib.import_module("torch")
    values = torch.empty(0, dtype=dtype)
    if storage is None:
        values = torch.empty_strided(*place[1:], dtype=dtype)
    else:
        values.set_(storage, *place)
    if is_parameter:
        return torch.nn.Parameter(values, requires_grad)
    return values.requires_grad_() if requires_grad else values


def _set_attributes(tensor: Any, state: dict[str, Any]) -> None:
    vars(tensor).update(state)


def _generator(_: Any, generator: Any) -> Any:
    torch: Any = sys.modules["torch"]
    if generator is torch.default_generator:
        return _default_generator, ()
    return NotImplemented


def _default_generator() -> Any:
    return importlib.import_module("torch").default_generator
