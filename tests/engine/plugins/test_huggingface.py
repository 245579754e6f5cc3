"""The huggingface plugin: its variables, and a token that shows nowhere. With transformers: tests/frameworks."""

from __future__ import annotations

import os
import pickle
from collections.abc import Callable
from typing import Any, ClassVar

import pytest

from outrider import InstanceInfo, Plugin, Secret, SpecError, compute, plugins
from outrider.engine.api.plugin import merged
from outrider.engine.plugins.torch import Torch
from outrider.engine.serialization.program import build

Place = Callable[..., InstanceInfo]


class WithoutTorch(Plugin):
    """Takes the place of what is brought."""

    name: ClassVar[str] = "torch"


CANARY = "hf_canary0123456789"


def test_the_token_is_in_the_tasks_environment_and_shows_nowhere(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MY_TOKEN", CANARY)
    for token in (Secret(CANARY), CANARY, Secret.env("MY_TOKEN")):
        plugin = plugins.huggingface(token)
        assert plugin.env(place(0))["HF_TOKEN"] == CANARY
        assert CANARY not in f"{plugin!r} {plugin}"
        with pytest.raises(TypeError, match="on the way to a node"):
            pickle.dumps(plugin)


def test_the_token_travels_with_the_function() -> None:
    @compute
    def function() -> str:
        return os.environ["HF_TOKEN"]

    built = build(function, [plugins.huggingface(Secret(CANARY)), WithoutTorch()])
    assert pickle.loads(built)(lambda: ((), {})) == CANARY
    assert "HF_TOKEN" not in os.environ


def test_trainer_gets_its_process_group_and_a_process_of_its_own() -> None:
    plugin = plugins.huggingface()
    assert merged([plugin], []) == (Torch(), plugin)
    own = plugins.torch("gloo")
    assert merged([own, plugin], []) == (own, plugin)
    assert plugin.fresh_process


def test_variables_are_those_that_were_asked_for(place: Place) -> None:
    assert plugins.huggingface().env(place(0)) == {}
    assert plugins.huggingface(home="/data/hf", offline=True).env(place(0)) == {
        "HF_HOME": "/data/hf",
        "HF_HUB_OFFLINE": "1",
        "HF_DATASETS_OFFLINE": "1",
    }


def test_ranks_of_one_host_show_one_bar_and_share_its_cores(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    first, second = (plugins.huggingface().env(place(rank, each=2)) for rank in range(2))
    assert first == {"TOKENIZERS_PARALLELISM": "false"}
    assert second == {"TOKENIZERS_PARALLELISM": "false", "HF_HUB_DISABLE_PROGRESS_BARS": "1"}
    monkeypatch.setenv("TOKENIZERS_PARALLELISM", "true")
    assert plugins.huggingface().env(place(0, each=2))["TOKENIZERS_PARALLELISM"] == "true"


@pytest.mark.parametrize("options", [{"token": 3}, {"token": b"x"}, {"home": ""}, {"home": 3}])
def test_invalid_options_are_refused(options: dict[str, Any]) -> None:
    with pytest.raises(SpecError, match=r"plugins\.huggingface: "):
        plugins.huggingface(**options)
