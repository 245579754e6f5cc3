"""Random generators that functions mention: a stream for each task, the same again in the next run of a program."""

from __future__ import annotations

import pickle
import random
from typing import Any

import pytest

from outrider.engine.wire import pickler, random_streams

Draw = Any


def loaded(generator: Any) -> tuple[Any, list[random_streams.Used]]:
    """Return a generator as a function brings it, and what is noted of it."""
    noted: list[random_streams.Used] = []
    with random_streams.loading(noted):
        return pickle.loads(pickler.dumps(generator, code=True)), noted


def draws(kind: str, seed: int, job: int, rank: int) -> list[float]:
    if kind == "python":
        made: Any = random.Random(seed)
    else:
        numpy = pytest.importorskip("numpy.random")
        made = numpy.default_rng(seed) if kind == "Generator" else numpy.RandomState(seed)
    generator, noted = loaded(made)
    random_streams.begin_task(noted, job, rank)
    return [float(generator.random()) for _ in range(3)]


@pytest.mark.parametrize("kind", ["python", "Generator", "RandomState"])
def test_tasks_have_streams_of_their_own_that_a_seed_repeats(kind: str) -> None:
    assert draws(kind, 1, job=3, rank=0) == draws(kind, 1, job=3, rank=0)
    streams = [draws(kind, *each) for each in ((1, 3, 0), (1, 3, 1), (1, 4, 0), (2, 3, 0))]
    assert len({tuple(each) for each in streams}) == 4


def test_a_generator_that_is_handed_over_is_as_it_was() -> None:
    generator = random.Random(5)
    generator.random()
    assert pickle.loads(pickler.dumps(generator)).random() == generator.random()


def test_nothing_is_kept_of_generators_that_no_function_brings() -> None:
    generator = pickle.loads(pickler.dumps(random.Random(5), code=True))
    assert generator.random() == random.Random(5).random()
    assert getattr(random_streams._local, "loaded", None) is None
