"""What users configure is checked when it is written."""

import pickle
from datetime import timedelta
from typing import Any

import pytest

from outrider import Image, Nodes, Plugin, Pool, SpecError, Worker, plugins
from outrider.engine.api.checks import check_known, check_limit
from outrider.engine.api.settings import check_pool, placement
from outrider.engine.api.task_options import Options
from outrider.engine.pool_options import PoolOptions


def test_nodes_can_be_written_in_three_ways() -> None:
    assert Nodes.of(4) == Nodes(4, min=4)
    assert Nodes.of(4).max is None
    assert Nodes.of((2, 8)) == Nodes(desired=8, min=2, max=8)
    assert Nodes.of(Nodes(8, min=4, max=16, spare=1)) == Nodes(8, min=4, max=16, spare=1)


@pytest.mark.parametrize(
    ("nodes", "why"),
    [
        (0, r'at least 1, not 0; down to none goes Nodes\(min=0, max=8, scale="load"\)'),
        (-3, "at least 1"),
        ((8, 2), "less than the least"),
        ((0, 2), "at least 1"),
        (True, "whole number"),
        (2.5, "whole number, not 2.5"),
        ("4", "whole number, not '4'"),
        ((1, 2, 3), "whole number"),
        (10**6, "at most 100,000, not 1000000"),
        (10**400, "at most 100,000, not 1000"),
    ],
)
def test_a_number_of_nodes_that_means_nothing_is_refused(nodes: Any, why: str) -> None:
    with pytest.raises(SpecError, match=why):
        Nodes.of(nodes)


def test_restarts_need_a_broadcast_that_runs_again_as_a_whole() -> None:
    assert Options().changed(max_restarts=3).max_restarts == 3
    for options in ({"retry": "never"}, {"on_loss": "resend"}, {"on_loss": "fail"}):
        with pytest.raises(SpecError, match="max_restarts=3 runs every rank again"):
            Options().changed(max_restarts=3, **options)  # type: ignore[arg-type]


def test_a_stall_is_restarted_where_it_has_a_length_and_may_run_again() -> None:
    chosen = Options().changed(stall=timedelta(minutes=5), on_stall="restart")
    assert (chosen.stall_s, chosen.on_stall) == (300.0, "restart")
    with pytest.raises(SpecError, match="give stall= as well"):
        Options().changed(on_stall="restart")
    with pytest.raises(SpecError, match='retry="never" forbids it'):
        chosen.changed(retry="never")
    with pytest.raises(SpecError, match="on_stall"):
        chosen.changed(on_stall="wait")  # type: ignore[typeddict-item]
    for seconds in (0, -1, "3"):
        with pytest.raises(SpecError, match="stall"):
            Options().changed(stall=seconds)  # type: ignore[typeddict-item]


def test_spares_are_counted() -> None:
    assert Nodes(4).spare == 0
    with pytest.raises(SpecError, match=r"Nodes\(spare=...\) must be at least 0, not -1"):
        Nodes(4, spare=-1)


def test_bounds_that_contradict_are_refused() -> None:
    with pytest.raises(SpecError, match="max=2 is less than min=4"):
        Nodes(3, min=4, max=2)
    with pytest.raises(SpecError, match="desired=1 is less than min=2"):
        Nodes(1, min=2, max=4)
    with pytest.raises(SpecError, match="desired=5 is more than max=4"):
        Nodes(5, min=2, max=4)


def test_a_number_of_nodes_can_follow_the_load() -> None:
    nodes = Nodes(max=8, scale="load", idle=60)
    assert (nodes.desired, nodes.min, nodes.max, nodes.idle) == (0, 0, 8, 60.0)
    assert Nodes(min=2, max=8, scale="load").desired == 2
    assert Nodes(min=2, max=8, scale="load").idle == 600.0


@pytest.mark.parametrize(
    ("given", "why"),
    [
        ({}, r"Nodes\(4\), or by load"),
        ({"min": 0, "max": 8}, r"Nodes\(4\), or by load"),
        ({"desired": 0}, r"Nodes\(desired=...\) must be at least 1, not 0; down to none goes Nodes"),
        ({"desired": 4, "idle": 60}, 'add scale="load"'),
        ({"desired": 4, "max": 8, "scale": "load"}, "the work decides how many"),
        ({"scale": "load"}, r"needs max=\.\.\."),
        ({"min": 3, "max": 2, "scale": "load"}, "max=2 is less than min=3"),
        ({"min": -1, "max": 2, "scale": "load"}, "at least 0, not -1"),
        ({"max": 0, "scale": "load"}, "at least 1, not 0"),
        ({"max": 4, "scale": "load", "idle": 0}, "more than 0 seconds"),
        ({"max": 4, "scale": "queue"}, "takes 'load', not 'queue'"),
    ],
)
def test_nodes_by_load_that_mean_nothing_are_refused(given: dict[str, Any], why: str) -> None:
    with pytest.raises(SpecError, match=why):
        Nodes(**given)


def test_what_nodes_that_leave_do_not_go_with_is_refused() -> None:
    scaled = Nodes(max=4, scale="load")
    with pytest.raises(SpecError, match="does not see what dask runs"):
        Pool(nodes=scaled, plugins=[plugins.dask()])
    with pytest.raises(SpecError, match=r"use pool\.fetch before"):
        Pool(nodes=scaled, keep="out")


def test_worker_and_image_check_themselves() -> None:
    assert Worker(concurrency=3, kind="thread").concurrency == 3
    with pytest.raises(SpecError, match=r"Did you mean 'process'"):
        Worker(kind="proces")  # type: ignore[arg-type]
    with pytest.raises(SpecError, match="at least 1"):
        Worker(concurrency=0)
    with pytest.raises(SpecError, match="value of A must be a string"):
        Image(env={"A": 1})  # type: ignore[dict-item]
    with pytest.raises(SpecError, match="cannot be the name"):
        Image(env={"A=B": "1"})
    with pytest.raises(SpecError, match="COMPUTE_POOL"):
        Image(env={"COMPUTE_POOL": ""})


def test_amounts_that_no_machine_has_stay_numbers() -> None:
    assert Worker(object_memory_gb=1e305).object_bytes == (2**62, None)
    assert Options().changed(memory_gb=1e305).needs == (0, 2**62, 0)
    with pytest.raises(SpecError, match="memory_gb must be more than 0 GB and finite"):
        Options().changed(memory_gb=10**400)


def test_what_would_keep_an_event_loop_busy_for_ever_is_refused() -> None:
    with pytest.raises(SpecError, match="resize takes 2 nodes or more"):
        Nodes(2).check_size(10**400)
    with pytest.raises(SpecError, match=r"spare=...\) must be at most 100,000"):
        Nodes(2, spare=10**9)
    with pytest.raises(SpecError, match=r"concurrency=...\) must be at most 100,000"):
        Worker(10**9)


def test_true_is_no_number_and_no_number_is_true() -> None:
    with pytest.raises(SpecError, match="limit must be at least 1, not True"):
        check_limit(True)
    with pytest.raises(SpecError, match=r"node_to_node=...\) takes True or False, not 0"):
        Worker(node_to_node=0)  # type: ignore[arg-type]


def test_an_image_keeps_its_own_copy_of_the_environment() -> None:
    env = {"A": "1"}
    image = Image(env=env)
    env["A"] = "2"
    assert image.env == {"A": "1"}


def test_options_cross_to_nodes_as_they_are() -> None:
    given: dict[str, Any] = {
        "timeout": 3.0,
        "queue_timeout": 2.0,
        "deadline": 9.0,
        "retry": "never",
        "on_loss": "fail",
        "name": "n",
    }
    chosen = Options().changed(**given)
    assert pickle.loads(pickle.dumps(chosen)) == chosen != Options()
    assert Options().changed(timeout=timedelta(seconds=3)).timeout_s == 3


@pytest.mark.parametrize("seconds", [0, -1, float("nan"), float("inf"), "3", True])
def test_times_that_mean_nothing_are_refused(seconds: Any) -> None:
    with pytest.raises(SpecError, match="timeout"):
        Options().changed(timeout=seconds)
    with pytest.raises(SpecError, match="deadline"):
        Options().changed(deadline=seconds)


def test_placement_takes_head_or_a_rank() -> None:
    assert [placement(each, most=4) for each in (None, "head", 3)] == [None, 0, 3]  # type: ignore[arg-type]
    for wrong in (-1, "tail", 1.0, True):
        with pytest.raises(SpecError, match="on takes"):
            placement(wrong, most=4)  # type: ignore[arg-type]
    with pytest.raises(SpecError, match="the last of 4 has rank 3"):
        placement(4, most=4)


def test_a_pools_parts_are_checked_with_the_fix_named() -> None:
    check_pool([plugins.torch()], "auto", "silent", "first")
    with pytest.raises(SpecError, match=r"write plugins.torch\(\)"):
        check_pool([plugins.torch], "auto", "auto", "first")
    with pytest.raises(SpecError, match=r"plugins=\[plugins.torch\(\)\]"):
        check_pool(plugins.torch(), "auto", "auto", "first")
    with pytest.raises(SpecError, match="console takes"):
        check_pool([], "auto", "none", "first")
    with pytest.raises(SpecError, match="selection takes"):
        check_pool([], "auto", "auto", "best")


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"name": 5}, "Own.name is a text, not 5"),
        ({"preload": "numpy"}, r"Own.preload has the names of modules, as in \('numpy',\), not 'numpy'"),
        ({"preload": (5,)}, r"not \(5,\)"),
        ({"ports": "all"}, "Own.ports is one of none, head, ranks, not 'all'"),
    ],
)
def test_a_plugin_of_ones_own_is_checked_as_it_is_given(wrong: dict[str, Any], said: str) -> None:
    with pytest.raises(SpecError, match=said):
        check_pool([type("Own", (Plugin,), {"name": "own", **wrong})()], "auto", "silent", "first")


def test_an_unknown_option_names_the_one_that_was_meant() -> None:
    with pytest.raises(SpecError, match=r"did you mean 'nodes'\?"):
        check_known("Pool", ["node"], PoolOptions.__annotations__)
    with pytest.raises(SpecError, match=r"it has .* nodes, .* provider"):
        check_known("Pool", ["zzz"], PoolOptions.__annotations__)
