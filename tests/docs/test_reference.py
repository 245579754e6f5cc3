"""docs/reference.md has every public name and option, with the defaults of the code, and no others."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest

import outrider
from outrider import accelerators, errors, events, integrations, plugins
from outrider.engine.api.task_options import Options

PAGE = (Path(__file__).parents[2] / "docs" / "reference.md").read_text()
SPAN = re.compile(r"`([^`\n]+)`")
SPANS = set(SPAN.findall(PAGE))
VERBS = [name for name, verb in vars(outrider.Pool).items() if callable(verb) and not name.startswith("_")]
GROUPS = {"run_group", "submit_group", "stream_group"}  # what the operators call
NAMES = [name for name in dir(plugins) if not name.startswith("_")]
STARS = {inspect.Parameter.VAR_POSITIONAL: "*", inspect.Parameter.VAR_KEYWORD: "**"}
CALLS = ["instance_info", "shard", "checkpoint", "should_stop", "preemption", "wait_preemption"]


def options(called: Callable[..., Any]) -> list[str]:
    """``name=default``, or ``name`` without one, as they are written; ``name=...`` of what has to be named."""
    given = inspect.signature(called).parameters.values()
    shown = (each for each in given if each.name != "self" and each.annotation != "Never")
    return [STARS.get(each.kind, "") + each.name + default(each) for each in shown]


def default(parameter: inspect.Parameter) -> str:
    value = parameter.default
    if value is parameter.empty:
        return "=..." if parameter.kind is parameter.KEYWORD_ONLY else ""
    if isinstance(value, outrider.Image | outrider.Worker):
        return f"={type(value).__name__}()"
    return "={}" if repr(value) == "<factory>" else f"={value!r}"


def named_options(called: Callable[..., Any]) -> set[str]:
    return {each for each in options(called) if not each.startswith("*")}


def signature(name: str, called: Callable[..., Any]) -> str:
    return f"{name}({', '.join(options(called))})"


def section(title: str) -> str:
    return PAGE[PAGE.index(f"\n## {title}") :].split("\n## ")[1]


def table(head: str, within: str = PAGE) -> set[str]:
    """What stands in the first column of the table whose head begins so."""
    rows = re.search(rf"^\| {head} \|.*\n\|[-|]+\|\n((?:\|.*\n)+)", within, re.MULTILINE)
    assert rows, f"no table {head}"
    return {span for row in rows[1].splitlines() for span in SPAN.findall(row.split("|")[1])}


def test_every_public_name_is_there() -> None:
    words = set(re.findall(r"\w+", " ".join(SPANS)))
    assert set(outrider.__all__) - words == set()


PROVIDERS = ["Local", "SSH", "Host", "Containers", "Slurm", "AWS", "GCP", "Lambda", "Vast", "Hyperstack", "RunPod"]


@pytest.mark.parametrize("name", ["Nodes", "Worker", *PROVIDERS, "Image", "Volume"])
def test_every_option_is_there_with_its_default(name: str) -> None:
    told = {each for each in table(f"`{name}`") if not each.startswith(f"{name}.")}
    assert told == named_options(getattr(outrider, name))


def test_every_option_of_a_pool_is_there_with_its_default() -> None:
    assert table("option", section("`Pool(")) == named_options(outrider.Pool)
    assert set(SPAN.findall(section("`Spec`"))) >= named_options(outrider.Spec)


def test_every_option_of_a_function_is_there_with_its_default() -> None:
    given = {f"{each.name.removesuffix('_s')}={each.default!r}" for each in fields(Options)}
    assert table("option", section("`@compute`")) == given - {"at_most_once=False", "needs=None"} | {
        "retry='on_loss'", "cpus=None", "memory_gb=None", "gpus=None",
    }  # fmt: skip


def test_every_accelerator_is_there() -> None:
    assert {name for name, value in vars(accelerators).items() if isinstance(value, accelerators.Model)} <= SPANS


@pytest.mark.parametrize("verb", [verb for verb in VERBS if verb not in GROUPS])
def test_every_verb_is_there_as_it_is_called(verb: str) -> None:
    assert signature(f"pool.{verb}", getattr(outrider.Pool, verb)) in SPANS


def test_every_property_is_there() -> None:
    properties = {f"pool.{name}" for name, value in vars(outrider.Pool).items() if isinstance(value, property)}
    assert properties | {signature("Pool.attach", outrider.Pool.attach)} <= SPANS


@pytest.mark.parametrize("name", CALLS)
def test_every_function_is_there_as_it_is_called(name: str) -> None:
    assert signature(name, getattr(outrider, name)) in SPANS


@pytest.mark.parametrize("name", NAMES)
def test_every_plugin_is_there_among_those_of_its_kind(name: str) -> None:
    made = getattr(plugins, name)
    plugin = made("1g.5gb") if name == "mig" else made()
    kind = "on whole nodes" if plugin.has_halves else "around each task"
    assert signature(f"plugins.{name}", made) in table(kind)


def test_every_adapter_is_there() -> None:
    head = r"adapters, which \[log what frameworks log\]\(guides/metrics.md#from-what-logs-already\)"
    adapters = {signature(f"integrations.{name}", getattr(integrations, name)) for name in integrations.ADAPTERS}
    assert table(head) == adapters


def test_every_member_of_a_plugin_is_there() -> None:
    members = {name for name in vars(outrider.Plugin) if not name.startswith("_")}
    assert {span.partition("(")[0] for span in table("`Plugin`")} == members


def test_every_fact_of_a_task_is_there() -> None:
    assert table("`InstanceInfo`") == {each.name for each in fields(outrider.InstanceInfo)}
    assert {each.name for each in fields(outrider.Peer)} <= set(SPAN.findall(section("Inside a task")))


def test_every_error_is_there() -> None:
    others = {"ItemOutcome", "Outcome", "OutriderError", "RemoteTraceback"}
    assert table("error") == {name for name in outrider.__all__ if name in vars(errors)} - others


@pytest.mark.parametrize("name", sorted(table("error")))
def test_every_error_is_there_with_its_attributes(name: str) -> None:
    kind = getattr(errors, name)
    (row,) = (row for row in PAGE.splitlines() if row.startswith(f"| `{name}` |"))
    inherited = {each for base in kind.__bases__ if base.__module__ == errors.__name__ for each in facts(base)}
    assert set(facts(kind)) - inherited <= set(SPAN.findall(row.split("|")[3]))


def facts(kind: type[Exception]) -> list[str]:
    """What it is made of besides its message, which are its attributes."""
    given = inspect.signature(kind.__init__).parameters.values()
    return [each.name for each in given if each.default is not each.empty]


def test_every_event_is_there() -> None:
    told = set(SPAN.findall(section("Events"))) - {"outrider.events", "at", "name"}
    kinds = {kind for kind in vars(events).values() if isinstance(kind, type) and issubclass(kind, events.Event)}
    assert told == {kind.__name__ for kind in kinds - {events.Event, events.NodeEvent, events.JobEvent}}


@pytest.mark.parametrize("name", ["JSONLines", "MLflow", "TensorBoard", "WandB", "Webhook"])
def test_every_tracker_is_there_with_its_options(name: str) -> None:
    assert f"trackers.{signature(name, getattr(outrider.trackers, name))}" in table("tracker", section("Trackers"))
