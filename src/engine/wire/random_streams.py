"""Sending of random number generators from a program to its tasks.

Generators that belong to a module are sent by name. For a generator to which a function refers, a plain copy would draw
the same numbers in every process. Instead, each task gets its own stream of random numbers, computed from the
generator's state, the number of the call and the rank. The streams of all tasks differ. If the program seeds the
generator, the streams are the same in each run of the program.
"""

from __future__ import annotations

import pickle
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

Used = tuple[Any, bytes]  # (random number generator to which a function refers, digest of the generator's state)
_local = threading.local()  # `loaded`: the list into which `loading` collects generators in this thread


def no_task() -> tuple[int, int] | None:
    return None


# returns (job, rank) of the task that this thread runs; set in processes that run tasks
task_of: Callable[[], tuple[int, int] | None] = no_task


@contextmanager
def loading(generators: list[Used]) -> Iterator[None]:
    """Collect in ``generators`` the random number generators that this thread unpickles during the ``with`` block.

    Only generators to which functions refer are collected.
    """
    before, _local.loaded = getattr(_local, "loaded", None), generators
    try:
        yield
    finally:
        _local.loaded = before


def reducers() -> dict[type, Callable[[Any, Any], Any]]:
    """Return the reducers for the random number generators of those libraries that are imported."""
    table: dict[type, Callable[[Any, Any], Any]] = {}
    if (python := sys.modules.get("random")) is not None:
        table |= {python.Random: _random, python.SystemRandom: lambda _, obj: (type(obj), ())}
    numpy: Any = sys.modules.get("numpy.random")
    if hasattr(numpy, "Generator"):  # false while numpy.random is still being imported
        table |= {numpy.RandomState: _random_state, numpy.Generator: reduce_used}
    return table


def reduce_used(pickler: Any, generator: Any) -> Any:
    """Return how to pickle a generator: with its state or, if a function refers to it, as one stream per task."""
    if not pickler.code:
        return NotImplemented
    if pickler.watch is not None:
        pickler.watch.generators.append(f"{type(generator).__module__}.{type(generator).__qualname__}")
    return _begin, (generator.__reduce_ex__(5),)


def _random(pickler: Any, generator: Any) -> Any:
    # the generator that functions of the module `random`, such as `random.random`, use
    if generator is sys.modules["random"]._inst:
        return _pythons_hidden, ()
    return reduce_used(pickler, generator)


def _pythons_hidden() -> Any:
    import random

    return random._inst


def _random_state(pickler: Any, generator: Any) -> Any:
    hidden = getattr(sys.modules.get("numpy.random.mtrand"), "_rand", None)
    if generator is hidden:
        return _hidden, ()
    return reduce_used(pickler, generator)


def _hidden() -> Any:
    import importlib

    return importlib.import_module("numpy.random.mtrand")._rand


def _begin(reduced: tuple[Any, ...]) -> Any:
    make, args, *rest = reduced
    generator = make(*args)
    state = rest[0] if rest else None
    if state is not None:
        generator.__setstate__(state)
    from hashlib import blake2b

    digest = blake2b(pickle.dumps(reduced, 5), digest_size=16).digest()
    if (loaded := getattr(_local, "loaded", None)) is not None:
        loaded.append((generator, digest))
    return generator


def begin_task(generators: list[Used], job: int, rank: int) -> None:
    """Set each generator to the start of the task's own stream of random numbers."""
    from hashlib import blake2b

    for generator, digest in generators:
        seed = blake2b(digest + b"%d/%d" % (job, rank), digest_size=16).digest()
        _seed(generator, int.from_bytes(seed, "big"))


def _seed(generator: Any, seed: int) -> None:
    numpy: Any = sys.modules.get("numpy.random")
    if (bits := getattr(generator, "bit_generator", None)) is not None:
        bits.state = type(bits)(numpy.SeedSequence(seed)).state
    elif numpy is not None and isinstance(generator, numpy.RandomState):
        generator.seed([seed >> 32 * part & 0xFFFFFFFF for part in range(4)])
    else:
        generator.seed(seed)
