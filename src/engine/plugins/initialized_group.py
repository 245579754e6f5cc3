"""Support for functions that call ``init_process_group`` inside the torch plugin: they get the plugin's group."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import wraps
from inspect import signature
from typing import Any

from ..api.errors import SpecError

_MARK = "finds_the_plugins_group"
_present: list[str] = []  # the backend of the plugin's group while the function runs; otherwise empty


@contextmanager
def reused_group(distributed: Any, backend: str) -> Iterator[None]:
    """Let `init_process_group` return at once during the block, as long as the default group exists.

    The function is replaced once per process and stays replaced: modules imported in the block may keep a reference to
    it.
    """
    original = distributed.init_process_group
    if not hasattr(original, _MARK):
        for module in (distributed, distributed.distributed_c10d):
            module.init_process_group = _finding(distributed, original)
    _present.append(backend)
    try:
        yield
    finally:
        _present.pop()


def _finding(distributed: Any, original: Any) -> Any:
    @wraps(original)
    def init_process_group(*args: Any, **options: Any) -> None:
        if not _present or not distributed.is_initialized():
            original(*args, **options)
            return
        arguments = signature(original).bind(*args, **options).arguments
        refuse_another(arguments, _present[-1], distributed.get_rank(), distributed.get_world_size())
        if arguments.get("timeout") is not None:
            distributed.distributed_c10d._set_pg_timeout(arguments["timeout"])

    setattr(init_process_group, _MARK, True)
    return init_process_group


def refuse_another(args: Mapping[str, Any], backend: str, rank: int, size: int) -> None:
    """Refuse a call for a group that differs from the present one. The call's rendezvous options do not matter.

    Raises:
        SpecError: the call has another backend, rank or world size, or options of the backend.
    """
    backends = {None, "undefined", backend, *(each.rpartition(":")[2] for each in backend.split(","))}
    fits: dict[str, Callable[[Any], bool]] = {
        "backend": lambda value: (value.lower() if isinstance(value, str) else value) in backends,
        "rank": lambda value: value in (-1, rank),
        "world_size": lambda value: value in (-1, None, size),
        "pg_options": lambda value: value is None,
    }
    for name in fits.keys() & args.keys():
        if not fits[name](args[name]):
            raise SpecError(
                f"init_process_group({name}={args[name]!r}) asks for another group than the one that plugins.torch() "
                f"has made, of rank {rank} of {size} with {backend}: use plugins.torch(init=False), with which the "
                "function makes its own."
            )
