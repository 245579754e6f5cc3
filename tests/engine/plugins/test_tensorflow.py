"""The tensorflow plugin: its variables, without TensorFlow. With it: tests/frameworks."""

from __future__ import annotations

import json
import os
from collections.abc import Callable

import pytest

from outrider import InstanceInfo, SpecError, instance_info, plugins

Place = Callable[..., InstanceInfo]


def test_every_rank_is_a_worker_at_a_port_of_its_own(place: Place) -> None:
    env = plugins.tensorflow().env(place(1, nodes=3))
    assert json.loads(env["TF_CONFIG"]) == {
        "cluster": {"worker": ["10.0.0.0:29500", "10.0.0.1:29501", "10.0.0.2:29502"]},
        "task": {"type": "worker", "index": 1},
    }
    assert set(env) == {"TF_CONFIG"}
    assert plugins.tensorflow().ports == "ranks"


def test_all_ranks_see_one_cluster(place: Place) -> None:
    configs = [json.loads(plugins.tensorflow(2).env(place(rank, each=2))["TF_CONFIG"]) for rank in range(4)]
    assert len({json.dumps(config["cluster"]) for config in configs}) == 1
    assert [config["task"]["index"] for config in configs] == [0, 1, 2, 3]


def test_a_task_alone_is_a_cluster_of_one() -> None:
    config = json.loads(plugins.tensorflow().env(instance_info())["TF_CONFIG"])
    assert config == {"cluster": {"worker": ["127.0.0.1:0"]}, "task": {"type": "worker", "index": 0}}


def test_several_ranks_of_a_node_share_its_gpus_and_its_threads(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(12)))
    env = plugins.tensorflow("auto").env(place(5, each=4, gpus=8))
    assert env["CUDA_VISIBLE_DEVICES"] == "2,3"
    assert (env["TF_NUM_INTRAOP_THREADS"], env["TF_NUM_INTEROP_THREADS"]) == ("3", "3")
    monkeypatch.setenv("TF_NUM_INTRAOP_THREADS", "9")
    assert plugins.tensorflow().env(place(0, shared=True))["TF_NUM_INTRAOP_THREADS"] == "9"


def test_invalid_options_are_refused() -> None:
    with pytest.raises(SpecError, match=r"plugins\.tensorflow: ranks_per_node"):
        plugins.tensorflow(0)
