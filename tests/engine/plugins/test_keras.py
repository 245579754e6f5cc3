"""The keras plugin: its variable, and the backends that it brings. With Keras: tests/frameworks."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from outrider import InstanceInfo, SpecError, plugins
from outrider.engine.api.plugin import merged
from outrider.engine.plugins.jax import Jax
from outrider.engine.plugins.tensorflow import TensorFlow
from outrider.engine.plugins.torch import Torch

Place = Callable[..., InstanceInfo]


@pytest.mark.parametrize(("backend", "brought"), [("jax", Jax()), ("torch", Torch()), ("tensorflow", TensorFlow())])
def test_the_backends_plugin_comes_along_in_front(backend: Any, brought: Any, place: Place) -> None:
    plugin = plugins.keras(backend)
    assert merged([plugin], []) == (brought, plugin)
    assert plugin.env(place(0)) == {"KERAS_BACKEND": backend}


def test_given_plugin_replaces_the_brought_one() -> None:
    keras, own = plugins.keras("jax"), plugins.jax(cpu_devices=2)
    assert merged([keras, own], []) == (own, keras)
    assert merged([own], [keras]) == (own, keras)
    assert merged([keras], [own]) == (own, keras)


def test_weights_begin_the_same_everywhere_and_not_in_every_broadcast(place: Place) -> None:
    keras = plugins.keras()
    assert len({keras._seed(place(rank)) for rank in range(2)}) == 1
    assert keras._seed(place(0)) != keras._seed(replace(place(0), job=8))
    assert plugins.keras(seed=3)._seed(place(1)) == 3


def test_without_data_parallelism_keras_is_left_alone(place: Place) -> None:
    with plugins.keras(data_parallel=False).session(place(0)), plugins.keras("torch").session(place(0)):
        pass  # and keras is not imported: this environment may lack it


@pytest.mark.parametrize("options", [{"backend": "theano"}, {"backend": None}, {"seed": -1}, {"seed": "1"}])
def test_invalid_options_are_refused(options: dict[str, Any]) -> None:
    with pytest.raises(SpecError, match=r"plugins\.keras: "):
        plugins.keras(**options)
