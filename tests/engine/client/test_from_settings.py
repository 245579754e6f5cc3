"""What a pool's settings mean to its provider, its machines and its actors."""

from __future__ import annotations

from typing import Any, ClassVar

from outrider import Image, Nodes, Plugin, Pool, Spec, Worker
from outrider.engine.api.settings import Settings
from outrider.engine.checkpoint.store import VARIABLE
from outrider.engine.client.opening import (
    ENTRY_POINTS,
    entry_points,
    executor_setup,
    launch_request,
    pool_spec,
    requirements,
)
from outrider.providers.base import Machine, MachineId
from outrider.testing.fake_provider import Fake, FakeFleet

MACHINE = Machine(MachineId("m"), None, "")


class Heavy(Plugin):
    name = "heavy"
    preload: ClassVar[tuple[str, ...]] = ("numpy", "json")


class Light(Plugin):
    name = "light"
    preload: ClassVar[tuple[str, ...]] = ("json",)


class Free(Fake):
    free = True


def settings(**options: Any) -> Settings:
    given: dict[str, Any] = {"provider": Fake(), **options}
    return Pool(**given)._settings


def test_spares_are_asked_for_from_the_beginning() -> None:
    request = launch_request(settings(nodes=Nodes(4, min=2, spare=1), vcpus=8, lease=60, max_lifetime=3600), "key")
    assert (request.nodes, request.least, request.vcpus, request.client_key) == (5, 2, 8, "key")
    assert (request.lease_s, request.max_lifetime_s) == (60.0, 3600.0)
    spec = pool_spec(settings(nodes=Nodes(4, min=2, max=6, spare=1), worker=Worker(concurrency=3)))
    assert (spec.desired, spec.min, spec.spare, spec.slots) == (4, 2, 1, 3)


def test_modules_of_plugins_are_imported_once_and_before_unless_the_image_has_variables() -> None:
    plugins = [Heavy(), Light()]
    assert entry_points(settings(plugins=plugins)).preload == ("numpy", "json")
    assert entry_points(settings(plugins=plugins, image=Image(env={"A": "1"}))) == ENTRY_POINTS
    assert executor_setup(settings(plugins=plugins))["preload"] == ["numpy", "json"]


def test_an_executor_is_told_its_slots_and_where_checkpoints_are() -> None:
    setup = executor_setup(settings(worker=Worker(concurrency=2), checkpoints="/shared", image=Image(env={"A": "1"})))
    assert (setup["slots"], setup["kind"], setup["sample_every"]) == (2, "process", 5.0)
    assert setup["env"] == {"A": "1", VARIABLE: "file:///shared"}


def test_what_a_machine_has_is_checked_where_no_catalogue_says_it() -> None:
    fleet: Any = object.__new__(FakeFleet)
    found = requirements(settings(provider=Free(), vcpus=8, memory_gb=16), fleet)(MACHINE)
    assert (found.vcpus, found.memory_gb) == (8, 16.0)
    bought = requirements(settings(vcpus=8, memory_gb=16, accelerator="A100"), fleet)(MACHINE)
    assert (bought.vcpus, bought.memory_gb) == (0, 0.0)
    assert bought.accelerator is not None
    assert bought.accelerator.name == "A100"


def test_the_first_spec_is_the_one_that_is_asked_for() -> None:
    specs = Pool(Spec(provider=Fake(), vcpus=2), Spec(provider=Fake(), vcpus=4))._settings
    assert launch_request(specs, "key").vcpus == 2
